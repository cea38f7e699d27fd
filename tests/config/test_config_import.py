"""Importing `nbtriton.model.config`: what it must not load, and that tritonclient's messages stand beside it."""

from __future__ import annotations

from typing import Any

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

CLIENT = "from tritonclient.grpc import model_config_pb2 as theirs\n"

OURS = "import nbtriton.model.config as ours\n"

CHECK = """
config = ours.parse_pbtxt("name: 'm' input { name: 'IN' data_type: TYPE_FP32 dims: 4 }")
copy = theirs.ModelConfig.FromString(config.SerializeToString())
assert ours.as_config(copy) == config
"""


def run(code: str) -> str:
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_protobuf_and_nothing_else_of_weight() -> None:
    loaded = run("import nbtriton.model.config, sys; print(*sys.modules)").split()
    assert "google.protobuf.text_format" in loaded
    assert not [name for name in FORBIDDEN if name in loaded]


@pytest.mark.medium
@pytest.mark.parametrize("order", [CLIENT + OURS, OURS + CLIENT], ids=["after", "before"])
def test_a_message_of_tritonclient_is_a_configuration(order: str) -> None:
    pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    run(order + CHECK)


@pytest.mark.medium
def test_the_pure_python_protobuf_is_enough() -> None:
    run(
        'import os; os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"\n'
        + OURS
        + "import nbtriton.model.config._proto as theirs\n"
        "assert ours.parse_pbtxt('name: \"m\"').name == 'm'\n"
        "request = theirs.messages.ModelInferRequest(model_name='m')\n"
        "request.inputs.add(name='IN', datatype='FP32', shape=[4])\n"
        "assert theirs.messages.ModelInferRequest.FromString(request.SerializeToString()) == request"
    )


def test_the_definitions_are_those_of_tritonclient() -> None:
    """All that it knows is known; `scripts/messages.py` brings what a newer one adds."""
    pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    from tritonclient.grpc import model_config_pb2, service_pb2

    from nbtriton.model.config import ModelConfig
    from nbtriton.model.config._proto import messages

    ours = {
        "model_config.proto": ModelConfig.DESCRIPTOR.file,
        "grpc_service.proto": messages.ModelInferRequest.DESCRIPTOR.file,
    }
    for module in (model_config_pb2, service_pb2):
        theirs = module.DESCRIPTOR
        assert fields(theirs) <= fields(ours[theirs.name])


def fields(file: Any) -> set[tuple[str, int, int, int]]:
    """Every field and enum value of a file: full name, number, type."""
    found: set[tuple[str, int, int, int]] = set()

    def visit(message: Any) -> None:
        for field in message.fields:
            found.add((field.full_name, field.number, field.type, field.has_presence))
        for enum in message.enum_types:
            found.update((value.name, value.number, 0, 0) for value in enum.values)
        for nested in message.nested_types:
            visit(nested)

    for message in file.message_types_by_name.values():
        visit(message)
    for enum in file.enum_types_by_name.values():
        found.update((value.name, value.number, 0, 0) for value in enum.values)
    return found


def test_static_types_know_every_field() -> None:
    """`_messages.pyi` is what mypy sees of the message; it must not fall behind."""
    import ast
    from importlib.resources import files

    from nbtriton.model.config import ModelConfig

    tree = ast.parse((files("nbtriton.model.config") / "_messages.pyi").read_text())
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
