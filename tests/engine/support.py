"""Models and waits shared by the engine's tests.

Nothing here sleeps: a model that has to be busy stands at a `Gate` until the test opens it, and
every wait ends after `WAIT_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "WAIT_S",
    "Gate",
    "echo",
    "ensemble_text",
    "failing",
    "fields",
    "gated",
    "ones",
    "order_of",
    "row",
    "streaming",
    "waited",
]

# Long enough for a loaded machine, short enough that a hang is a failed test and not a dead run.
WAIT_S = 30.0


class Gate:
    """A gate at which executions wait until the test opens it; records their batches."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.batches: list[list[str]] = []  # request ids of every execution that came in
        self.threads: list[int] = []
        self._entered = threading.Semaphore(0)
        self._changed = threading.Condition()
        self._is_open = is_open
        self._passes = 0

    def stand(self, request_ids: list[str]) -> None:
        with self._changed:
            self.batches.append(request_ids)
            self.threads.append(threading.get_ident())
            number = len(self.batches)
            self._entered.release()
            passes = self._changed.wait_for(lambda: self._is_open or number <= self._passes, WAIT_S)
        assert passes, "the test never opened the gate"

    def wait_entered(self, count: int = 1) -> None:
        """Wait until `count` more executions are at the gate."""
        for _ in range(count):
            assert self._entered.acquire(timeout=WAIT_S), "no execution came to the gate"

    def let(self, count: int = 1) -> None:
        """Let this many executions pass, in the order in which they came."""
        with self._changed:
            self._passes += count
            self._changed.notify_all()

    def open(self) -> None:
        """Let all later executions pass."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def shut(self) -> None:
        """Let no more executions pass, after those that have passed already."""
        self._is_open = False


def waited(event: threading.Event) -> None:
    assert event.wait(WAIT_S), "what the test waits for never happened"


def row(*values: float, width: int = 4) -> np.ndarray:
    """One request's FP32 input: as many rows as values, each value repeated."""
    return np.repeat(np.array(values, np.float32)[:, None], width, axis=1)


def ones(size: int = 1) -> np.ndarray:
    return row(*[1.0] * size)


def order_of(futures: dict[str, Any]) -> Callable[[], list[str]]:
    """Call before the futures can be answered; the returned function waits for all, and returns the order.

    Their results may be ready a moment before their callbacks are called.
    """
    order: list[str] = []
    answered = threading.Semaphore(0)

    def note(name: str) -> None:
        order.append(name)
        answered.release()

    def wait() -> list[str]:
        for _ in futures:
            assert answered.acquire(timeout=WAIT_S), "a future was not answered"
        return order

    for request_id, future in futures.items():
        future.add_done_callback(lambda _, name=request_id: note(name))
    return wait


def fields(statistics: dict[str, Any], name: str, version: int = 1) -> dict[str, Any]:
    """One model's statistics: its counts by name, and its executions per batch size."""
    (found,) = (
        entry
        for entry in statistics["model_stats"]
        if entry["name"] == name and entry["version"] == str(version)
    )
    return {
        "inference_count": found["inference_count"],
        "execution_count": found["execution_count"],
        **{key: value["count"] for key, value in found["inference_stats"].items()},
        "batches": {
            entry["batch_size"]: entry["compute_infer"]["count"] for entry in found["batch_stats"]
        },
    }


# -- configurations ----------------------------------------------------------------------------------

FP32_IN_OUT = """
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


def echo(extra: str = "", *, max_batch_size: int = 8, backend: str = "python") -> str:
    """Configuration of IN -> OUT, both FP32[4]."""
    return f'backend: "{backend}" max_batch_size: {max_batch_size} {FP32_IN_OUT} {extra}'


def ensemble_text(
    *steps: tuple[str, dict[str, str], dict[str, str]],
    inputs: dict[str, str],
    outputs: dict[str, str],
    max_batch_size: int = 8,
    optional: tuple[str, ...] = (),
) -> str:
    """Configuration of an ensemble; steps are (model, input_map, output_map)."""

    def tensors(kind: str, named: dict[str, str]) -> str:
        return "".join(
            f'{kind} {{ name: "{name}" data_type: TYPE_{what.partition("[")[0]} '
            f"dims: [{what.partition('[')[2]} "
            + ("optional: true " if name in optional else "")
            + "}\n"
            for name, what in named.items()
        )

    def pairs(kind: str, named: dict[str, str]) -> str:
        return "".join(
            f'{kind} {{ key: "{key}" value: "{value}" }} ' for key, value in named.items()
        )

    text = "".join(
        f'step {{ model_name: "{model}" model_version: -1 '
        f"{pairs('input_map', into)} {pairs('output_map', out)} }}\n"
        for model, into, out in steps
    )
    return (
        f'platform: "ensemble" max_batch_size: {max_batch_size}\n'
        f"{tensors('input', inputs)}{tensors('output', outputs)}"
        f"ensemble_scheduling {{ {text} }}"
    )


# -- models ------------------------------------------------------------------------------------------


def gated(gate: Gate, change: Callable[[np.ndarray], np.ndarray] = lambda value: value) -> type:
    """A model that waits at a gate and answers OUT = change(IN)."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([request.request_id() for request in requests])
            return [
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor(
                            "OUT", change(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())
                        )
                    ]
                )
                for r in requests
            ]

    return TritonPythonModel


def streaming() -> type:
    """A decoupled model: IN's first value is its number of responses, then the bare final flag."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                sender = request.get_response_sender()
                for index in range(int(value.flat[0])):
                    sender.send(
                        pb_utils.InferenceResponse(
                            [pb_utils.Tensor("OUT", np.full_like(value, index))]
                        )
                    )
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return TritonPythonModel


def failing() -> type:
    """A model that fails in the way of the first value of its first request."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            values = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
            how = int(values[0].flat[0])
            good = [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", v)]) for v in values]
            if how == 1:
                raise ValueError("kaboom")
            if how == 2:
                return []
            if how == 3:
                return tuple(good)
            if how == 4:
                return [5] * len(good)
            if how == 5:
                wide = [pb_utils.Tensor("OUT", v.astype(np.float64)) for v in values]
                return [pb_utils.InferenceResponse([tensor]) for tensor in wide]
            return [
                pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("not today", pb_utils.TritonError.UNAVAILABLE)
                )
                if int(value.flat[0]) == 6
                else answer
                for value, answer in zip(values, good, strict=True)
            ]

    return TritonPythonModel
