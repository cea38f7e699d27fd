"""A model.py that cannot be loaded fails with the same words in both servers.

Only faults that tritonserver finds in its throw-away process (import, auto_complete_config): its
2.51 now and then ends altogether when a load fails after instances exist.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import nbtriton
from nbtriton.serving.clients.http import HttpClient
from tests.differential.harness import Model, write
from tests.differential.servers import ISOLATION, noted

pytestmark = [pytest.mark.reference, pytest.mark.slow]

PLAIN = 'backend: "python"'
WITH_IO = """
backend: "python" max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 4 ] }
"""


def completing(line: str) -> str:
    return f"""
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {line}
        return config
"""


def tensor(**fields: Any) -> str:
    return json.dumps({"name": "IN", "data_type": "TYPE_INT32", "dims": [4], **fields})


FAULTS = {
    "syntax": (PLAIN, "def broken(:\n    pass\n"),
    "indent": (PLAIN, "class TritonPythonModel:\nx = 1\n"),
    "module": (PLAIN, "import no_such_module\n"),
    "name": (PLAIN, "x = 1\ny = undefined + x\n"),
    "no_class": (PLAIN, "x = 1\n"),
    "raises": (PLAIN, completing("raise ValueError('not today')")),
    "returns": (PLAIN, completing("return None")),
    "smaller": (WITH_IO, completing("config.set_max_batch_size(4)")),
    "property": (PLAIN, completing(f"config.add_input({tensor(more=1)})")),
    "no_dims": (PLAIN, completing('config.add_input({"name": "IN", "data_type": "TYPE_FP32"})')),
    "no_name": (PLAIN, completing('config.add_output({"data_type": "TYPE_FP32", "dims": [4]})')),
    "datatype": (WITH_IO, completing(f"config.add_input({tensor(data_type='TYPE_FP32')})")),
    "dims": (WITH_IO, completing(f"config.add_input({tensor(dims=[5])})")),
    "policy": (PLAIN, completing("config.set_model_transaction_policy({'x': 1})")),
    "sequences": (
        PLAIN + " max_batch_size: 2 sequence_batching { }",
        completing("config.set_dynamic_batching()"),
    ),
}


def said(text: str) -> str:
    """Keep the sentence and the frames of the model itself."""
    text = re.sub(r"^load failed for model '\w+': version 1 is at UNAVAILABLE state: ", "", text)
    kept = []
    for line in text.removesuffix(";").splitlines():
        frame = re.match(r"^  (?:\S*/)?(\S+?|<frozen \S+>)(\(\d+\): .*)$", line)
        if frame is None:
            kept.append(line)
        elif frame.group(1) == "model.py":
            kept.append(f"  model.py{frame.group(2)}")
    return "\n".join(kept).strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    write(folder, [Model(name, config, source) for name, (config, source) in FAULTS.items()])
    return folder


@pytest.fixture(scope="module")
def reasons(reference, repository: Path) -> dict[str, str]:
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with reference.server(repository, *flags) as server, noted("real", server):
        index = HttpClient(server.http_url).index()
        return {entry["name"]: entry.get("reason", "") for entry in index}


@pytest.mark.parametrize("name", FAULTS)
def test_AC2_AC7_AC8_AC9_AC10_PB6_same_reason(
    name: str, repository: Path, reasons: dict[str, str]
) -> None:
    with nbtriton.Server(isolation=ISOLATION) as server:
        with pytest.raises(nbtriton.TritonError) as caught:
            server.load(FAULTS[name][0], repository / name / "1" / "model.py", name=name)
        assert server.models() == ()
    assert said(caught.value.message) == said(reasons[name])


# What `runtime` says, and the files of the model's directory.
RUNTIMES = {
    "own_library": ("libtriton_python.so", {}),
    "by_a_detour": ("../python/./libtriton_python.so", {}),
    "no_library": ("x", {}),
    "of_another": ("libtriton_pytorch.so", {}),
    "absolute": ("/etc/passwd", {}),
    "python_based": ("model.py", {}),
    "above": ("..", {}),
    "version_directory": (".", {}),
    "directory": ("lib", {"lib/mine.so": b""}),
    "elsewhere": ("../own_library/config.pbtxt", {}),
}


def test_runtimes(reference, tmp_path: Path) -> None:
    models = [
        Model(name, f'{WITH_IO} runtime: "{runtime}"', completing("pass"), files=files)
        for name, (runtime, files) in RUNTIMES.items()
    ]
    write(tmp_path, models)
    backends = str(reference.directory / "backends")
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with reference.server(tmp_path, *flags) as server, noted("real", server):
        index = HttpClient(server.http_url).index()
        theirs = {entry["name"]: entry.get("reason", "") for entry in index}
    with nbtriton.Server(
        backend_config={"": {"backend-directory": backends}}, isolation=ISOLATION
    ) as mine:
        index = mine.load_repository(tmp_path).index()
    assert {entry["name"]: entry.get("reason", "") for entry in index} == theirs
    assert [name for name, reason in theirs.items() if not reason] == ["by_a_detour", "own_library"]
