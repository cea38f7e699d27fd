"""The wheel: what it holds, and what it needs. It is installed into an environment with the core alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bench.installed import bytes_of, environment_of_links, packages_of
from nbtriton.common.packages import DISTRIBUTIONS, EXTRAS
from tests.children import finish, run_python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE_BYTES = 250_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_python(
        "-m", "hatchling", "build", "-t", "wheel", "-d", folder,
        cwd=ROOT, env={**os.environ, "NBTRITON_COMPILED": "0"}, check=True,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that has the wheel and what its core needs, and nothing else."""
    folder = tmp_path_factory.mktemp("core")
    python = environment_of_links(folder / "env", packages_of(PROJECT["dependencies"]))
    (site,) = (folder / "env" / "lib").glob("python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return python


def run(python: Path, cells: list[str], folder: Path) -> list[str]:
    """What each cell of a notebook shows, in a new process without a front end."""
    program = """
import io, json, sys
from contextlib import redirect_stdout
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")
shown = []
for cell in json.load(sys.stdin):
    with redirect_stdout(io.StringIO()) as out:
        shell.run_cell(cell, store_history=True)
    shown.append(out.getvalue())
shell.run_line_magic("unload_ext", "nbtriton")
print(json.dumps(shown))
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    process = subprocess.Popen(
        [python, "-c", program], cwd=folder, text=True, env={**environment, "IPYTHONDIR": str(folder)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(cells))
    process.stdin.close()
    process.stdin = None
    out, err = finish(process)
    assert process.returncode == 0, err
    shown: list[str] = json.loads(out.splitlines()[-1])
    return shown


def test_it_holds_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert packed == source


def test_the_core_is_small() -> None:
    packages = packages_of(PROJECT["dependencies"])
    assert not {"torch", "matplotlib", "grpcio", "tritonclient", "onnxruntime"} & set(packages)
    assert bytes_of(packages) < CORE_BYTES


def test_the_readme_runs_with_the_core_alone(core: Path, tmp_path: Path) -> None:
    cells = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    # Measured for real in test_readme.py.
    cells = [re.sub(r"^(%triton_perf .*)$", r"\1 --request-count 5", cell) for cell in cells]
    last = "from nbtriton import *\nimport inspect, nbtriton\ninspect.getmembers(nbtriton)\nnbtriton.__file__"
    shown = run(core, [*cells, "%triton_dag pipeline", last], tmp_path)
    assert not [text for text in shown if "Error" in text or "Traceback" in text]
    assert str(core.parents[1]) in shown[-1]
    assert "pipeline" in shown[-2]


# A cell that needs each extra.
ASKING = {
    "torch": "nt.server().load('backend: \"pytorch\"', 'model.pt', name='module')",
    "onnx": "nt.server().load(None, 'model.onnx', name='graph')",
    "fil": "nt.server().load({'backend': 'fil', 'parameters': {'output_class': {'string_value': 'false'}}}, "
    "'checkpoint.tl', name='trees')",
    "openvino": "nt.server().load(None, 'model.xml', name='intel')",
    "plot": "nt.perf(nt.server(), 'double', request_count=2).plot()",
    "grpc": "nt.perf(None, 'double', url='grpc://127.0.0.1:1')",
    "env": "from pathlib import Path\nfrom nbtriton.serving.repository.export.model_writer import _pack\n"
    "_pack(Path('environment'), Path('packed.tar.gz'), None)",
    "otel": "from nbtriton.serving.frontends import OpenTelemetry, serve\n"
    "serve(nt.server(), http_port=0, opentelemetry=OpenTelemetry())",
    "steps": "nt.step('resize')",
    "video": "nt.step('video')",
    "ray": "nt.server().load('parameters { key: \"INSTANCE_ISOLATION\" value { string_value: \"ray\" } }', double, name='far')",
    "gpu": "from nbtriton.model.tensors import to_kind\nto_kind(np.ones(1), 'cupy')",
}


def test_a_missing_extra_is_one_sentence_and_the_line_to_type(core: Path, tmp_path: Path) -> None:
    assert set(ASKING) == set(EXTRAS.values())
    for file in ("model.pt", "model.onnx", "model.xml", "checkpoint.tl"):
        (tmp_path / file).touch()
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "pyvenv.cfg").touch()
    first = [
        "%load_ext nbtriton",
        "import numpy as np\nimport nbtriton as nt",
        (
            '%%triton_model double\ndef double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n'
            '    return {"OUT": IN * 2}'
        ),
    ]
    shown = run(core, [*first, *ASKING.values()], tmp_path)[len(first) :]
    for extra, text in zip(ASKING, shown, strict=True):
        *_, sentence, hint = text.strip().splitlines()
        assert "needs the package" in sentence, text
        # Of a model, the hint goes on with stand-ins.
        assert hint.partition(";")[0] == f"  hint: pip install 'nbtriton[{extra}]'"
        assert "Traceback" not in text
        assert "site-packages" not in text


def test_every_package_that_is_asked_for_is_in_its_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    for package, extra in EXTRAS.items():
        name = DISTRIBUTIONS.get(package, package)
        assert any(text.startswith(name) for text in extras[extra]), package
