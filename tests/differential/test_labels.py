"""The source of class labels: a model's own file, an ensemble's, or that of its last step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.differential.harness import Model, write
from tests.differential.servers import COMPLETE, ECHO, call, chain, launch_ours, noted

pytestmark = [pytest.mark.reference, pytest.mark.slow]

LABELS = 'label_filename: "labels.txt"'


def tensors(extra: str) -> str:
    return f"""
input {{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] {extra} }}
"""


def ensemble(member: str, extra: str = "") -> str:
    return chain(tensors(extra), member)


MODELS = (
    Model("labelled", 'backend: "python"' + tensors(LABELS), ECHO, files={"labels.txt": b"a\nb\n"}),
    Model("of_the_step", ensemble("labelled")),
    Model("own", ensemble("labelled", LABELS), files={"labels.txt": b"x\ny\n"}),
    Model("short", ensemble("labelled", LABELS), files={"labels.txt": b"x"}),
    Model("of_the_ensemble", ensemble("own")),
    Model("missing", ensemble("labelled", LABELS)),
)


def responses(url: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    body = {
        "inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "OUT", "parameters": {"classification": 2}}],
    }
    for model in MODELS:
        loaded = call(url, f"repository/models/{model.name}/load", b"{}")
        status, text = call(url, f"models/{model.name}/infer", json.dumps(body).encode())
        data = json.loads(text)["outputs"][0]["data"] if status == 200 else text
        seen[model.name] = (loaded, data)
    return seen


def test_E20_labels(reference, tmp_path: Path) -> None:
    write(tmp_path, MODELS)
    flags = ("--model-control-mode=explicit", COMPLETE)
    with reference.server(tmp_path, *flags) as server, noted("real", server):
        theirs = responses(server.http_url)
    with launch_ours(tmp_path, *flags) as server, noted("ours", server):
        mine = responses(server.http_url)
    assert mine == theirs
    assert [mine[model.name][1] for model in MODELS[:5]] == [
        ["2.000000:1:b", "1.000000:0:a"],
        ["2.000000:1:b", "1.000000:0:a"],
        ["2.000000:1:y", "1.000000:0:x"],
        ["2.000000:1", "1.000000:0:x"],
        ["2.000000:1:y", "1.000000:0:x"],
    ]
