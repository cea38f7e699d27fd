"""Importing `nbtriton.config`: what it must not load, and that it shares Triton's message class."""

from __future__ import annotations

import pytest

from tests.children import run_python

FORBIDDEN = (
    "grpc",
    "tritonclient.grpc",
    "tritonclient.http",
    "numpy",
    "torch",
    "pandas",
    "IPython",
)

# Loads the generated module the way tritonclient's own package does, where grpc is missing.
GENERATED = """
import importlib.util, sys
folder = importlib.util.find_spec("tritonclient").submodule_search_locations[0]
name = "tritonclient.grpc.model_config_pb2"
spec = importlib.util.spec_from_file_location(name, folder + "/grpc/model_config_pb2.py")
theirs = importlib.util.module_from_spec(spec)
sys.modules[name] = theirs
spec.loader.exec_module(theirs)
"""

CLIENT = "from tritonclient.grpc import model_config_pb2 as theirs\n"

OURS = "import nbtriton.config as ours\n"

CHECK = """
assert theirs.ModelConfig is ours.ModelConfig
config = ours.parse_pbtxt("name: 'm' input { name: 'IN' data_type: TYPE_FP32 dims: 4 }")
copy = theirs.ModelConfig()
copy.CopyFrom(config)
assert ours.to_dict(ours.as_config(copy)) == ours.to_dict(config)
"""


def run(code: str) -> str:
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_protobuf_and_nothing_else_of_weight() -> None:
    loaded = run("import nbtriton.config, sys; print(*sys.modules)").split()
    assert "google.protobuf.text_format" in loaded
    assert not [name for name in FORBIDDEN if name in loaded]


@pytest.mark.parametrize("order", [GENERATED + OURS, OURS + GENERATED], ids=["after", "before"])
def test_the_class_is_the_one_of_the_generated_module(order: str) -> None:
    run(order + CHECK)


@pytest.mark.parametrize("order", [CLIENT + OURS, OURS + CLIENT], ids=["after", "before"])
def test_the_class_is_the_one_of_tritonclient(order: str) -> None:
    pytest.importorskip("grpc", reason="tritonclient.grpc needs grpcio")
    run(order + CHECK)


def test_the_pure_python_protobuf_is_enough() -> None:
    run(
        'import os; os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"\n'
        + OURS
        + GENERATED
        + CHECK
    )


def test_static_types_know_every_field() -> None:
    """`_messages.pyi` is what mypy sees of the message; it must not fall behind."""
    import ast
    from importlib.resources import files

    from nbtriton.config import ModelConfig

    tree = ast.parse((files("nbtriton.config") / "_messages.pyi").read_text())
    typed: dict[str, set[str]] = {}

    def visit(node: ast.ClassDef, prefix: str) -> None:
        names = typed.setdefault(prefix + node.name, set())
        for part in node.body:
            if isinstance(part, ast.ClassDef):
                visit(part, f"{prefix}{node.name}.")
            elif isinstance(part, ast.FunctionDef):
                names.add(part.name)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                names.add(part.target.id)

    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            visit(node, "inference.")

    def known(descriptor: object) -> None:
        if descriptor.GetOptions().map_entry:  # type: ignore[attr-defined]
            return
        fields = {field.name for field in descriptor.fields}  # type: ignore[attr-defined]
        assert fields - {"global"} <= typed[descriptor.full_name]  # type: ignore[attr-defined]
        for nested in descriptor.nested_types:  # type: ignore[attr-defined]
            known(nested)

    for descriptor in ModelConfig.DESCRIPTOR.file.message_types_by_name.values():
        known(descriptor)
