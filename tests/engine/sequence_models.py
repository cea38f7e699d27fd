"""Models of sequences that the engine's tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.engine.support import Gate

__all__ = ["PATIENT", "accumulator", "config", "control", "looking", "passing", "pieces"]

# A sequence stays for an hour; by default it ends after a second, which a busy machine may take between two requests.
PATIENT = "max_sequence_idle_microseconds: 3600000000"


def control(name: str, kind: str, values: str) -> str:
    return (
        f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'
    )


def config(
    batching: str, *, max_batch_size: int = 4, datatype: str = "FP32", rest: str = ""
) -> str:
    """Configuration of IN -> OUT, one value each, with this ``sequence_batching``.

    It is `PATIENT` unless it says how long a sequence may be idle.
    """
    if "max_sequence_idle" not in batching:
        batching = f"{PATIENT} {batching}"
    return (
        f'backend: "python" max_batch_size: {max_batch_size} '
        f'input {{ name: "IN" data_type: TYPE_{datatype} dims: 1 }} '
        f'output {{ name: "OUT" data_type: TYPE_{datatype} dims: 1 }} '
        f"sequence_batching {{ {batching} }} {rest}"
    )


def pieces(batching: str, **options: Any) -> str:
    """As `config`, with three values that come back as one tensor of any length."""
    return config(batching, **options).replace("dims: 1 }", "dims: -1 }")


def looking(gate: Gate, seen: list[list[dict[str, Any]]]) -> type:
    """A model that records its rows in order, and answers OUT = IN."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            seen.append(
                [
                    {
                        **{tensor.name(): tensor.as_numpy().copy() for tensor in r.inputs()},
                        "flags": r.flags(),
                        "id": r.correlation_id(),
                    }
                    for r in requests
                ]
            )
            gate.stand([request.request_id() for request in requests])
            for request in requests:  # a write into its inputs harms no other model
                for tensor in request.inputs():
                    value = tensor.as_numpy()
                    if tensor.name() != "IN" and value.dtype != object:
                        value[...] = 1
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]
                )
                for r in requests
            ]

    return TritonPythonModel


def accumulator() -> type:
    """Adds IN up in its implicit state SUM; what is below 0 fails in the way that it says."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                value, total = (
                    pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                    for name in ("IN", "SUM_IN")
                )
                how = float(value.flat[0])
                if how == -1:
                    raise ValueError("kaboom")
                if how == -2:
                    responses.append(
                        pb_utils.InferenceResponse(error=pb_utils.TritonError("not today"))
                    )
                    continue
                if how == -3:  # writes into its input, and no state
                    total[...] = 99
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]))
                    continue
                total = total + value
                responses.append(
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", total), pb_utils.Tensor("SUM_OUT", total)]
                    )
                )
            return responses

    return TritonPythonModel


def passing(change: Callable[[Any], Any] | None = None) -> type:
    """An iterative model: OUT are the flags of its passes; IN is their number.

    ``change`` may make something else of an answer, given the pass's number.
    """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.flags: dict[int | str, list[int]] = {}

        def execute(self, requests):
            responses = []
            for request in requests:
                wanted = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
                flags = self.flags.setdefault(request.correlation_id(), [])
                flags.append(request.flags())
                answer = None
                if len(flags) < wanted:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                else:
                    answer = pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", np.array([flags], np.float32))]
                    )
                responses.append(answer if change is None else change(answer))
            return responses

    return TritonPythonModel
