"""Backends are found by name and by source."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nbtriton.backends import backend_for, find_backend
from nbtriton.backends.python import PythonBackend
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.onnxruntime import OnnxRuntimeBackend
from nbtriton.extensions.pytorch import PyTorchBackend
from tests.children import run_python

SOURCE = Path(__file__).parents[2] / "src"


class TritonPythonModel:
    pass


class HasExecute:
    def execute(self, requests):
        return []


class Net(torch.nn.Module):
    def execute(self):
        pass


def function(x):
    return x


def test_the_built_in_backends_are_found():
    assert find_backend("python") is PythonBackend
    assert find_backend("pytorch") is PyTorchBackend
    assert find_backend("onnxruntime") is OnnxRuntimeBackend
    for name in ("identity", "repeat"):
        assert find_backend(name).name == name


def test_V36_an_unknown_backend_is_an_error_with_the_nearest_name():
    with pytest.raises(InvalidArgumentError) as caught:
        find_backend("pyton")
    assert caught.value.message == (
        "unable to find backend library for backend 'pyton', try specifying runtime on the model "
        "configuration."
    )
    assert caught.value.hint == "did you mean 'python'?"


@pytest.mark.parametrize(
    ("source", "backend"),
    [
        (TritonPythonModel, PythonBackend),
        (HasExecute, PythonBackend),
        (function, PythonBackend),
        (Path("m/1/model.py"), PythonBackend),
        (Net, PyTorchBackend),
        (Net(), PyTorchBackend),
        (Path("m/1/model.pt"), PyTorchBackend),
        (Path("m/1/model.pt2"), PyTorchBackend),
        (Path("m/1/model.onnx"), OnnxRuntimeBackend),
        (b"a serialized model", OnnxRuntimeBackend),
    ],
)
def test_sources_find_their_backend(source, backend):
    assert backend_for(source) is backend


@pytest.mark.parametrize("source", [3, object, Path("model.plan"), HasExecute()])
def test_other_sources_are_refused(source):
    with pytest.raises(InvalidArgumentError, match="no backend runs"):
        backend_for(source)


@pytest.mark.medium
def test_backends_outside_the_package_come_by_entry_point(tmp_path):
    (tmp_path / "outside.py").write_text(
        "from nbtriton.backends import Backend\n"
        "class Outside(Backend):\n"
        "    name = 'outside'\n"
        "    def accepts(source): return source == 'mine'\n"
        "    def create_instance(self, context): raise NotImplementedError\n"
    )
    info = tmp_path / "outside-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[nbtriton.backends]\noutside = outside:Outside\n")
    program = (
        "from nbtriton.backends import backend_for, find_backend\n"
        "assert find_backend('outside').__name__ == 'Outside'\n"
        "assert backend_for('mine') is find_backend('outside')\n"
    )
    path = f"{SOURCE}:{tmp_path}"
    run_python("-c", program, check=True, env={"PYTHONPATH": path})


@pytest.mark.medium
def test_the_entries_of_all_kinds_are_read_once_until_a_package_comes(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from nbtriton.common import entries\n"
        "entries.places('magics')\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, about: event == 'open' and opened.append(about[0]))\n"
        "assert 'late' not in entries.places('endpoints')\n"
        "assert not [one for one in opened if str(one).endswith('entry_points.txt')], opened\n"
        "info = Path(sys.argv[1], 'late-1.dist-info')\n"
        "info.mkdir()\n"
        "(info / 'METADATA').write_text('Metadata-Version: 2.1\\nName: late\\nVersion: 1\\n')\n"
        "(info / 'entry_points.txt').write_text('[nbtriton.endpoints]\\nlate = late:Late\\n')\n"
        "assert entries.places('endpoints')['late'] == 'late:Late'\n"
    )
    path = f"{SOURCE}:{tmp_path}"
    run_python("-c", program, tmp_path, check=True, env={"PYTHONPATH": path})


@pytest.mark.medium
def test_finding_backends_does_not_import_frameworks():
    program = (
        "import sys\n"
        "from nbtriton.backends import backend_for, find_backend\n"
        "for name in ('pytorch', 'python', 'onnxruntime', 'identity'):\n"
        "    find_backend(name)()\n"
        "backend_for(lambda x: x); backend_for(b'')\n"
        "assert not {'torch', 'onnxruntime', 'onnx'} & sys.modules.keys()\n"
    )
    run_python("-c", program, check=True, env={"PYTHONPATH": str(SOURCE)})
