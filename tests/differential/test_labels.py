"""Where class labels come from: a model's own file, an ensemble's, or that of the step behind it."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from nbtriton.repository.verify.running import launch
from tests.differential.harness import Model, write

pytestmark = [pytest.mark.reference, pytest.mark.slow]

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]
            )
            for r in requests
        ]
"""
LABELS = 'label_filename: "labels.txt"'


def tensors(extra: str) -> str:
    return f"""
input {{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] {extra} }}
"""


def ensemble(member: str, extra: str = "") -> str:
    return (
        f'platform: "ensemble" {tensors(extra)} ensemble_scheduling {{ step {{ model_name: "{member}" '
        'model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }'
    )


MODELS = (
    Model("labelled", 'backend: "python"' + tensors(LABELS), ECHO, files={"labels.txt": b"a\nb\n"}),
    Model("of_the_step", ensemble("labelled")),
    Model("own", ensemble("labelled", LABELS), files={"labels.txt": b"x\ny\n"}),
    Model("short", ensemble("labelled", LABELS), files={"labels.txt": b"x"}),
    Model("of_the_ensemble", ensemble("own")),
    Model("missing", ensemble("labelled", LABELS)),
)


def ask(url: str, path: str, body: Any) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{url}/v2/{path}", json.dumps(body).encode()) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def answers(url: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    body = {
        "inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "OUT", "parameters": {"classification": 2}}],
    }
    for model in MODELS:
        loaded = ask(url, f"repository/models/{model.name}/load", {})
        status, text = ask(url, f"models/{model.name}/infer", body)
        data = json.loads(text)["outputs"][0]["data"] if status == 200 else text
        seen[model.name] = (loaded, data)
    return seen


def test_E20_labels(reference, tmp_path: Path) -> None:
    write(tmp_path, MODELS)
    flags = ("--model-control-mode=explicit",)
    with reference.server(tmp_path, *flags) as server:
        theirs = answers(server.http_url)
    command = [sys.executable, "-m", "nbtriton", "serve", *flags]
    with launch(command, tmp_path, os.environ) as server:
        mine = answers(server.http_url)
    assert mine == theirs
    assert [mine[model.name][1] for model in MODELS[:5]] == [
        ["2.000000:1:b", "1.000000:0:a"],
        ["2.000000:1:b", "1.000000:0:a"],
        ["2.000000:1:y", "1.000000:0:x"],
        ["2.000000:1", "1.000000:0:x"],
        ["2.000000:1:y", "1.000000:0:x"],
    ]
