"""Row 23, and the decoupled examples of the python backend: many responses to one request."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

from tests.examples.site import Site

COUNTS = (4, 2, 0, 1)


def custom_repeat(site: Site) -> None:
    """Ten responses, sent while the model waits and after it has."""
    _repeat(site, np.arange(100, 110, dtype=np.int32), delay_ms=5, wait_ms=20)


def repeat(site: Site) -> None:
    _repeat(site, np.array(COUNTS, np.int32), delay_ms=2, wait_ms=5)


def square(site: Site) -> None:
    """Each request gets as many responses as its value, so one gets none."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.InferenceServerClient(site.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, count in enumerate(COUNTS):
            tensor = grpc.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(np.array([count], np.int32))
            client.async_stream_infer("square_int32", [tensor], request_id=str(number))
        found: dict[str, list[int]] = {}
        for _ in range(sum(COUNTS)):
            result, error = answers.get(timeout=60)
            assert error is None, error
            output = result.as_numpy("OUT").tolist()
            found.setdefault(result.get_response().id, []).extend(output)
    assert answers.empty()
    assert found == {str(n): [count] * count for n, count in enumerate(COUNTS) if count}


def _repeat(site: Site, values: np.ndarray, *, delay_ms: int, wait_ms: int) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    inputs = [
        grpc.InferInput("IN", values.shape, "INT32"),
        grpc.InferInput("DELAY", values.shape, "UINT32"),
        grpc.InferInput("WAIT", [1], "UINT32"),
    ]
    inputs[0].set_data_from_numpy(values)
    inputs[1].set_data_from_numpy(np.full(values.shape, delay_ms, np.uint32))
    inputs[2].set_data_from_numpy(np.array([wait_ms], np.uint32))
    outputs = [grpc.InferRequestedOutput(name) for name in ("OUT", "IDX")]
    with grpc.InferenceServerClient(site.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("repeat_int32", inputs, outputs=outputs, request_id="0")
        for index, value in enumerate(values.tolist()):
            result, error = answers.get(timeout=60)
            assert error is None, error
            assert result.get_response().id == "0"
            assert result.as_numpy("OUT").tolist() == [value]
            assert result.as_numpy("IDX").tolist() == [index]
    assert answers.empty()
