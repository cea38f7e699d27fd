"""Random ensembles of models that write in place, pass on, keep and send again, beside a reference.

The reference copies each tensor that it passes on, so nothing is shared. Callers
write to everything that they have, too, once they have their answers.
"""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from tests.engine.support import ensemble_text

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

torch = pytest.importorskip("torch")

ROWS, WIDTH = 2, 4
# What a model does: ``act(memory, a, b)`` may write to its arguments and keep them in `memory`. All
# of it means the same to numpy and to torch.
ACTS: dict[str, Callable[[dict[str, Any], Any, Any], Any]] = {}
READING = ("add", "first", "part")
FORGETFUL = (*READING, "write", "write_and_add")


def act(function: Callable[[dict[str, Any], Any, Any], Any]) -> Callable[..., Any]:
    ACTS[function.__name__] = function
    return function


@act
def add(memory, a, b):
    return a + 2 * b


@act
def first(memory, a, b):
    return a


@act
def part(memory, a, b):
    return b[:]


@act
def write(memory, a, b):
    a += 1
    b *= 2
    return a


@act
def write_and_add(memory, a, b):
    a -= 3
    b += 5
    return a + b


@act
def answer_with_the_last_input(memory, a, b):
    last, memory["last"] = memory.get("last"), a
    return a * 0 if last is None else last


@act
def write_to_the_last_input(memory, a, b):
    last, memory["last"] = memory.get("last"), b
    if last is not None:
        last += 100
    return b


@act
def sum_up_in_one_buffer(memory, a, b):
    if "sum" not in memory:
        memory["sum"] = a * 0
    memory["sum"] += a
    return memory["sum"]


@act
def send_an_input_twice(memory, a, b):
    memory.setdefault("kept", b)
    a += memory["kept"]
    return memory["kept"]


# -- the same act, as models of four kinds -----------------------------------------------------------


def as_model(name: str, to: Callable[[Any], Any]) -> type:
    class TritonPythonModel:
        def initialize(self, args):
            self.memory: dict[str, Any] = {}

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            a, b = (to(pb_utils.get_input_tensor_by_name(request, n)) for n in "AB")
            out = ACTS[name](self.memory, a, b)
            if isinstance(out, np.ndarray):
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)])
            return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", out)])

    return TritonPythonModel


def as_function(name: str) -> Any:
    memory: dict[str, Any] = {}

    def f(A, B):
        return {"OUT": ACTS[name](memory, A, B)}

    return f


def as_torch_function(name: str) -> Any:
    memory: dict[str, Any] = {}

    def f(A: torch.Tensor, B: torch.Tensor):
        return {"OUT": ACTS[name](memory, A, B)}

    return f


class Module(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.memory: dict[str, Any] = {}

    def forward(self, A, B):
        return ACTS[self.name](self.memory, A, B)


KINDS: dict[str, Callable[[str], Any]] = {
    "model": lambda name: as_model(name, lambda tensor: tensor.as_numpy()),
    "dlpack": lambda name: as_model(name, torch.from_dlpack),
    "function": as_function,
    "torch function": as_torch_function,
    "module": Module,
}


@dataclass(frozen=True)
class Step:
    act: str
    kind: str
    inputs: tuple[int, int]  # tensors by number: 0 and 1 are the caller's, then one a step
    read_only: bool


@dataclass
class Reference:
    """The response of the ensemble if everything is copied."""

    steps: list[Step]
    memories: list[dict[str, Any]] = field(default_factory=list)

    def infer(self, x: np.ndarray, y: np.ndarray) -> list[list[list[float]]]:
        self.memories = self.memories or [{} for _ in self.steps]
        tensors = [x.copy(), y.copy()]
        for step, memory in zip(self.steps, self.memories, strict=True):
            a, b = (tensors[number].copy() for number in step.inputs)
            tensors.append(ACTS[step.act](memory, a, b).copy())
        return [tensor.tolist() for tensor in tensors[2:]]


@st.composite
def graphs(draw: st.DrawFn, acts: Sequence[str] = tuple(ACTS)) -> list[Step]:
    steps = []
    for at in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(sorted(acts)))
        tensors = st.integers(0, at + 1)
        steps.append(
            Step(
                name,
                draw(st.sampled_from(sorted(KINDS))),
                (draw(tensors), draw(tensors)),
                name in READING and draw(st.booleans()),
            )
        )
    return steps


def load(server: Server, steps: list[Step], outputs: set[int], extra: str = "") -> None:
    tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: {} }}'
    for at, step in enumerate(steps):
        text = " ".join(
            (
                f'backend: "{"pytorch" if step.kind == "module" else "python"}" max_batch_size: 8',
                *("input " + tensor.format(name, WIDTH) for name in "AB"),
                "output " + tensor.format("OUT", WIDTH),
                'parameters { key: "READ_ONLY_INPUTS" value { string_value: "yes" } }'
                if step.read_only
                else "",
                extra,
            )
        )
        server.load(text, KINDS[step.kind](step.act), name=f"m{at}")
    used = {number for step in steps for number in step.inputs}
    parts = [
        (
            f"m{at}",
            {n: f"T{i}" for n, i in zip("AB", step.inputs, strict=True)},
            {"OUT": f"T{at + 2}"},
        )
        for at, step in enumerate(steps)
    ]
    text = ensemble_text(
        *parts,
        inputs={f"T{number}": "FP32[4]" for number in sorted(used & {0, 1})},
        outputs={f"T{number}": "FP32[4]" for number in sorted(outputs)},
    )
    server.load(text, name="e")


@pytest.mark.medium
@settings(max_examples=20)
@given(
    graphs(),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["numpy", "torch"]), st.booleans()), min_size=2, max_size=4),
)
def test_writes_are_seen_by_no_other_reader(
    steps: list[Step], everything: bool, calls: list[tuple[str, bool]]
):
    used = {number for step in steps for number in step.inputs}
    made = range(2, len(steps) + 2)
    outputs = {number for number in made if everything or number not in used}
    reference = Reference(steps)
    with Server(gpus=()) as server:
        load(server, steps, outputs)
        for at, (kind, waits) in enumerate(calls):
            given = [np.full((ROWS, WIDTH), 10.0 * at + n, np.float32) for n in (1, 2)]
            expected = reference.infer(*given)
            sent: dict[str, Any] = {f"T{n}": given[n] for n in (0, 1) if n in used}
            if kind == "torch":
                sent = {name: torch.from_numpy(array) for name, array in sent.items()}
            if waits:
                found = server.infer("e", sent)
            else:
                future = server.submit("e", sent)
                for n in (0, 1):
                    given[n] += 1000  # it is the caller's again
                found = future.result()
                for n in (0, 1):
                    given[n] -= 1000
            for number in outputs:
                assert found[f"T{number}"].tolist() == expected[number - 2], (
                    f"T{number} of call {at}"
                )
            for n, array in enumerate(given):
                assert array.tolist() == [[10.0 * at + n + 1] * WIDTH] * ROWS
                array[:] = -7
            for number in outputs:
                found[f"T{number}"][:] = -9


@settings(max_examples=10)
@given(
    graphs(FORGETFUL),
    st.lists(
        st.tuples(st.sampled_from(["numpy", "torch"]), st.integers(1, 3)), min_size=2, max_size=8
    ),
)
def test_writes_are_seen_by_no_other_request_of_the_batch(
    steps: list[Step], calls: list[tuple[str, int]]
):
    outputs = set(range(2, len(steps) + 2))
    used = {number for step in steps for number in step.inputs} & {0, 1}
    with Server(gpus=()) as server:
        load(server, steps, outputs, "dynamic_batching { max_queue_delay_microseconds: 2000 }")
        expected, futures = [], []
        for at, (kind, rows) in enumerate(calls):
            given = [np.full((rows, WIDTH), 10.0 * at + n, np.float32) for n in (1, 2)]
            expected.append(Reference(steps).infer(*given))
            sent: dict[str, Any] = {f"T{n}": given[n] for n in used}
            if kind == "torch":
                sent = {name: torch.from_numpy(array) for name, array in sent.items()}
            futures.append(server.submit("e", sent))
            for array in given:
                array[:] = -7
        for at, future in enumerate(futures):
            found = future.result()
            for number in outputs:
                assert found[f"T{number}"].tolist() == expected[at][number - 2], f"call {at}"
                found[f"T{number}"][:] = -9
