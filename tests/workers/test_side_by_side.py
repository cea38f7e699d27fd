"""Two models with two versions of one package, in one ensemble; and in other versions of Python."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nbtriton.common.errors import ModelError, UnavailableError
from nbtriton.extensions.environments import environment
from nbtriton.serving.server import Server

pytestmark = pytest.mark.slow

MODEL = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
import tiny

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT64", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]})
        return config

    def initialize(self, args):
        pb_utils.Logger.log_info(f"tiny {tiny.VERSION}")

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if values[0] < 0:
                raise ValueError(f"tiny {tiny.VERSION} takes nothing negative")
            out = np.append(values, [tiny.VERSION, *sys.version_info[:2]])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
ENVIRONMENT = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}'
ENSEMBLE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
ensemble_scheduling { step [
  { model_name: "old" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "between" } },
  { model_name: "new" model_version: -1
    input_map { key: "IN" value: "between" } output_map { key: "OUT" value: "OUT" } }
] }
"""


@pytest.fixture
def repository(tmp_path):
    """Write a model that runs in a folder."""

    def write(name, folder):
        version = tmp_path / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(ENVIRONMENT.format(folder))
        return tmp_path / "models"

    return write


def test_two_versions_of_one_package_in_an_ensemble(wheels, repository):
    assert importlib.util.find_spec("tiny") is None
    for name, wanted in (("old", "tiny<2"), ("new", "tiny>=2")):
        root = repository(name, environment(name, [wanted]).folder)
    with Server() as server:
        server.load_repository(root)
        server.load(ENSEMBLE, name="both")
        python = list(sys.version_info[:2])
        for first in range(3):
            found = server.infer("both", {"IN": np.array([first])})["OUT"]
            assert found.tolist() == [first, 1, *python, 2, *python]
        with pytest.raises(ModelError, match="ValueError: tiny 1 takes nothing negative") as caught:
            server.infer("both", {"IN": np.array([-1])})
        assert f"{root}/old/1/model.py(" in caught.value.message
    assert "tiny" not in sys.modules


def another_python():
    """Return the oldest interpreter of another minor version that starts, with its name; None without."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for minor in range(10, 16):
        name = f"python3.{minor}"
        places = [shutil.which(name), *pyenv.glob(f"3.{minor}.*/bin/{name}")]
        for python in filter(None, places if minor != sys.version_info.minor else ()):
            if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
                return name, python
    return None


def test_a_model_runs_in_another_python(repository):
    """Made once in the user's cache, as the real server is: NumPy comes from where pip finds it."""
    found = another_python()
    if found is None:
        pytest.skip("there is no Python of another version, from 3.10 on")
    name, python = found
    try:
        made = environment(name, ["numpy"], python=python)
    except UnavailableError as error:
        pytest.skip(f"no NumPy for {name}: {error.message.splitlines()[-1]}")
    root = repository("m", made.folder)
    (root / "m" / "1" / "tiny.py").write_text("VERSION = 5\n")
    with Server() as server:
        server.load_repository(root)
        out = server.infer("m", {"IN": np.array([7])})["OUT"]
        assert out.tolist() == [7, 5, 3, int(name.removeprefix("python3."))]
        with pytest.raises(ModelError, match="ValueError: tiny 5 takes nothing negative"):
            server.infer("m", {"IN": np.array([-1])})
