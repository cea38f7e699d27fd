"""A ``model.py`` in the backend directory serves many models, the same in both servers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtriton.extensions.verify.reference import Reference
from tests.differential.servers import call, launch_ours, noted

pytestmark = [pytest.mark.reference]

# As vLLM's does, it completes the configuration and looks for its settings among the model's files.
BACKEND = """
import json, os
import numpy as np
import triton_python_backend_utils as pb_utils
from beside import SIGN

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
        return config

    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.by = SIGN * json.load(file)["by"]
        self.names = [args["model_name"], args["model_version"], os.path.basename(args["model_repository"])]

    def execute(self, requests):
        print(self.names)
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * np.float32(self.by)),
                pb_utils.Tensor("NAMES", np.array(self.names, np.object_)),
            ])
            for r in requests
        ]
"""
NAMES = 'output { name: "NAMES" data_type: TYPE_STRING dims: [ 3 ] }'
REQUEST = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
# Method, path and body of each request.
REQUESTS = (
    ("GET", "models/twice/config", None),
    ("GET", "models/thrice/config", None),
    ("POST", "models/twice/infer", REQUEST),
    ("POST", "models/twice/versions/2/infer", REQUEST),
    ("POST", "models/thrice/infer", REQUEST),
    ("POST", "repository/models/nobodys/load", {}),
)


@pytest.fixture
def backends(tmp_path: Path, reference: Reference) -> Path:
    folder = tmp_path / "backends"
    (folder / "times").mkdir(parents=True)
    (folder / "times" / "model.py").write_text(BACKEND)
    (folder / "times" / "beside.py").write_text("SIGN = -1\n")
    # Where the real server has its python backend.
    (folder / "python").symlink_to(reference.directory / "backends" / "python")
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name, backend, by in (
        ("twice", "times", 2),
        ("thrice", "times", 3),
        ("nobodys", "tims", 1),
    ):
        for version in (1, 2):
            (folder / name / str(version)).mkdir(parents=True)
            (folder / name / str(version) / "model.json").write_text(
                json.dumps({"by": by * version})
            )
        (folder / name / "config.pbtxt").write_text(
            f'backend: "{backend}" version_policy {{ all {{ }} }} {NAMES}'
        )
    return folder


def responses(url: str) -> Iterator[object]:
    """Yield the responses of one server; an error is its status and its text."""
    for method, path, body in REQUESTS:
        data = None if body is None else json.dumps(body).encode()
        status, text = call(url, path, data, method=method)
        document = json.loads(text)
        if status == 200:
            yield document
        else:  # versions load side by side: they are listed as they failed
            opening, _, listed = document["error"].strip().partition(": ")
            yield status, opening, sorted(listed.split(";"))


def test_models_of_a_python_based_backend(
    reference: Reference, backends: Path, repository: Path
) -> None:
    flags = (
        f"--backend-directory={backends}", "--model-control-mode=explicit",
        "--load-model=twice", "--load-model=thrice",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        found = {
            "ours": stack.enter_context(launch_ours(repository, *flags)),
            "real": stack.enter_context(reference.server(repository, *flags)),
        }
        for side, server in found.items():
            stack.enter_context(noted(side, server))
        ours, theirs = (list(responses(server.http_url)) for server in found.values())
    assert ours == theirs
    one, two = ours[2], ours[3]
    assert one["outputs"][0]["data"] == [-4, -8]
    assert two["outputs"][1]["data"] == ["twice", "2", "twice"]
