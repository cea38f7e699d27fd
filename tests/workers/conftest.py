"""One server for the tests of a file: workers cost start time."""

# ruff: noqa: N803 - tensors have Triton's names

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from nbtriton.runtime.workers.core import connection
from tests.until import PATIENCE_S

MODELS = Path(__file__).parent / "models"
CONFIG = """
name: "{name}" backend: "python" max_batch_size: 0
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] optional: true }}
input {{ name: "WORDS" data_type: TYPE_STRING dims: [ -1 ] optional: true }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "{isolation}" }} }}
"""
TARGET = """
backend: "python" max_batch_size: 0
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group {{ kind: KIND_CPU count: 2 }}
{more}
"""
WORDS = np.array([b"a", b"", "ä".encode()], object)
ARRAY = np.arange(3, dtype=np.float32)


def add_targets(server: Server) -> None:
    """Load what the probe calls: ordinary, failing and decoupled models in threads."""

    def target(IN):
        return {"OUT": IN + 1}

    def failing(IN):
        raise ValueError("no")

    def stream(IN):
        for times in range(3):
            yield {"OUT": IN * times}

    for function in (target, failing, stream):
        more = "model_transaction_policy { decoupled: true }" if function is stream else ""
        server.load(TARGET.format(more=more), model=function, name=function.__name__)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    install_pb_utils()
    with Server(gpus=()) as running:
        add_targets(running)
        for name, isolation in (("here", "thread"), ("apart", "process")):
            running.load(
                CONFIG.format(name=name, isolation=isolation),
                model=MODELS / "probe" / "1" / "model.py",
            )
        yield running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is slow to hear of an interrupt is not taken for code that goes on."""
    monkeypatch.setattr(connection, "_LONGEST_PATIENCE_S", PATIENCE_S)


Ask = Callable[..., Any]


@pytest.fixture
def ask(server: Server) -> Ask:
    """Run a program of the probe; return what it says, or its array where it gives one."""

    def ask(model: str, program: str, **inputs: Any) -> Any:
        result = server.infer(
            model, inputs or {"IN": ARRAY}, parameters={"program": program, "n": 1}
        )
        return result["OUT"] if "OUT" in result else json.loads(result["TEXT"][0])

    return ask


@pytest.fixture
def both(ask: Ask) -> Callable[..., tuple[Any, Any]]:
    """Run a program in a thread and in a process."""

    def both(program: str, **inputs: Any) -> tuple[Any, Any]:
        return ask("here", program, **inputs), ask("apart", program, **inputs)

    return both
