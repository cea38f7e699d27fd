"""The environment of an exported model is packed into the model's directory."""

from __future__ import annotations

import json
import platform
import sys
import tarfile

import numpy as np
import pytest

from nbtriton.common.errors import InternalError, UnsupportedError
from nbtriton.serving.repository.export.writer import ExportWarning
from nbtriton.serving.server import Server
from tests.workers.environments import make_environment, pack

pytestmark = pytest.mark.slow

MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils
from tiny import VERSION

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def execute(self, requests):
        activated = os.path.isfile(os.path.join(os.environ["VIRTUAL_ENV"], "bin", "activate"))
        reverted = os.environ["VIRTUAL_ENV"] not in os.environ["LD_LIBRARY_PATH"]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.append(
                pb_utils.get_input_tensor_by_name(r, "IN").as_numpy(), [VERSION, activated, reverted]
            ).astype(np.float32))])
            for r in requests
        ]
"""
CONFIG = (
    'backend: "python" parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}'
)
IN = {"IN": np.array([5], np.float32)}
OUT = [5, 1, 1, 1]


@pytest.fixture
def made(tmp_path):
    return with_tiny(make_environment(tmp_path / "env"))


def with_tiny(folder):
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "tiny.py").write_text("VERSION = 1\n")
    return folder


@pytest.fixture
def server(tmp_path):
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    with Server() as running:
        yield running


def load(server, tmp_path, path):
    server.load(CONFIG.format(path), tmp_path / "m" / "1" / "model.py", name="m")
    return server.infer("m", IN)["OUT"].tolist()


def ask(repository):
    with Server() as other:
        control = other.load_repository(repository)
        assert not control.errors
        parameter = other.config("m").parameters["EXECUTION_ENV_PATH"].string_value
        return other.infer("m", IN)["OUT"].tolist(), parameter


@pytest.mark.reference
def test_PB91_a_packed_environment_runs_on_the_real_server(server, tmp_path, reference):
    """With the NumPy of its stub, and with a package that is only in the environment."""
    site = next(reference.directory.glob("venv/lib/python3*/site-packages"))
    if site.parent.name != f"python{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"the real server's stub is for {site.parent.name}")
    made = with_tiny(make_environment(tmp_path / "env", packages=site))
    assert load(server, tmp_path, made) == OUT
    said = []
    with pytest.warns(ExportWarning) as caught:
        result = server.export(
            tmp_path / "out", verify=True, requests={"m": [IN]}, reference=reference.directory,
            on_progress=said.append,
        )  # fmt: skip
    assert result.ok, result
    name = f"{made.name}.tar.gz"
    assert sorted(path.name for path in (tmp_path / "out" / "m").iterdir()) == sorted(
        ["1", name, "config.pbtxt"]
    )
    assert ask(tmp_path / "out") == (OUT, f"$$TRITON_MODEL_DIRECTORY/{name}")
    assert said[0] == f"packing the environment of model 'm' from {made}"
    texts = " ".join(str(one.message) for one in caught)
    assert f"Python {platform.python_version()}" in texts
    assert "python_prefix='/usr'" in texts
    with tarfile.open(tmp_path / "out" / "m" / name) as archive:
        assert "bin/activate" in archive.getnames()


def test_the_python_of_another_place(server, made, tmp_path):
    load(server, tmp_path, made)
    with pytest.warns(ExportWarning) as caught:
        server.export(tmp_path / "out", python_prefix="/opt/there")
    (archive,) = (tmp_path / "out" / "m").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        links = {m.linkname for m in file if m.name.startswith("bin/python")}
    assert any(link.startswith("/opt/there/bin/python") for link in links)
    texts = " ".join(str(one.message) for one in caught)
    assert "expected in /opt/there on the server" in texts
    assert ("needs numpy<2" in texts) == (np.__version__ >= "2")


def test_an_archive_is_copied(server, made, tmp_path):
    archive = pack(made, tmp_path / "packed.tar.gz")
    assert load(server, tmp_path, archive) == OUT
    server.export(tmp_path / "out")
    assert ask(tmp_path / "out") == (OUT, "$$TRITON_MODEL_DIRECTORY/packed.tar.gz")
    # Again from there, where it is the model's own already.
    with Server() as other:
        other.load_repository(tmp_path / "out")
        other.export(tmp_path / "again")
    assert ask(tmp_path / "again") == (OUT, "$$TRITON_MODEL_DIRECTORY/packed.tar.gz")


def test_a_conda_environment_is_packed_by_conda_pack(server, made, tmp_path):
    meta = made / "conda-meta"
    meta.mkdir()
    (meta / "history").touch()
    files = [str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()]
    record = {"name": "tiny", "version": "1.0", "files": files, "url": "", "link": None}
    (meta / "tiny-1.0-0.json").write_text(json.dumps(record))
    load(server, tmp_path, made)
    with pytest.warns(ExportWarning):
        server.export(tmp_path / "out")
    (archive,) = (tmp_path / "out" / "m").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        assert {"bin/activate", "bin/conda-unpack"} <= set(file.getnames())


def test_what_cannot_be_packed_is_one_error_and_writes_nothing(server, made, tmp_path):
    load(server, tmp_path, made)
    (made / "pyvenv.cfg").rename(made / "away")
    with pytest.raises(UnsupportedError, match="neither a virtual environment nor one of conda's"):
        server.export(tmp_path / "out")
    (made / "bin").rename(made / "gone")
    (made / "away").rename(made / "pyvenv.cfg")
    with pytest.raises(InternalError, match="no Python interpreter"):
        server.export(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
