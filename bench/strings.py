"""5,000 strings as binary tensor data over HTTP: time of decoding, and cost per request."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns

import numpy as np
from tritonclient.utils import (  # type: ignore[import-untyped]
    deserialize_bytes_tensor,
    serialize_byte_tensor,
)

from bench.figures import Figure, Measure, Missing, Sides, Wrong, value_at_most
from bench.models import python_model
from bench.session import Session
from nbtriton.model.tensors import deserialize_bytes

__all__ = ["FIGURES"]

COUNT = 5000
STRINGS = np.array([f"the text of row {n:05}".encode() for n in range(COUNT)], object)
RAW: bytes = serialize_byte_tensor(STRINGS).item()
REPEATS = 100
COUNTS = "out = np.full((1, 1), x.size, np.float32)"
MODELS = (
    python_model("strings", COUNTS, dims="-1", out_dims="1", datatype="STRING"),
    python_model("plain", COUNTS, dims="-1", out_dims="1", datatype="UINT8"),
)


def median_us(call: Measure) -> float:
    times = []
    for _ in range(REPEATS):
        begin = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - begin)
    return median(times) / 1000


@contextmanager
def decoded(_session: Session) -> Iterator[Sides]:
    if deserialize_bytes(RAW).tolist() != STRINGS.tolist():
        raise Wrong("the strings are not those that were sent")
    yield Sides(
        lambda: median_us(lambda: len(deserialize_bytes(RAW))),
        lambda: median_us(lambda: len(deserialize_bytes_tensor(RAW))),
    )


class Asked:
    """One connection, and two requests of the same size: 5,000 strings, and plain bytes."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._requests = {
            "strings": self._body("BYTES", COUNT),
            "plain": self._body("UINT8", len(RAW)),
        }

    def strings_us(self) -> float:
        """Cost of the strings beyond plain bytes of the same size."""
        return self._p50_us("strings") - self._p50_us("plain")

    def _p50_us(self, model: str) -> float:
        head, body = self._requests[model]
        length = {"Inference-Header-Content-Length": str(head)}
        expected = float(COUNT if model == "strings" else len(RAW))

        def once() -> float:
            self._connection.request("POST", f"/v2/models/{model}/infer", body, length)
            reply = self._connection.getresponse()
            answer = reply.read()
            if reply.status != 200:
                raise Wrong(f"'{model}' answered {reply.status}: {answer[:200]!r}")
            return float(json.loads(answer)["outputs"][0]["data"][0])

        if once() != expected:
            raise Wrong(f"'{model}' did not get what was sent")
        return median_us(once)

    @staticmethod
    def _body(datatype: str, elements: int) -> tuple[int, bytes]:
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": "IN", "datatype": datatype, "shape": [1, elements],
                        "parameters": {"binary_data_size": len(RAW)},
                    }
                ]
            }
        ).encode()  # fmt: skip
        return len(head), head + RAW


@contextmanager
def over_http(session: Session) -> Iterator[Sides]:
    ours = Asked(session.served(*MODELS).http_port)
    try:
        theirs = Asked(session.real(*MODELS).http_port)
    except Missing as error:
        yield Sides(ours.strings_us, None, str(error))
    else:
        yield Sides(ours.strings_us, theirs.strings_us)


FIGURES = (
    Figure(
        "strings.decode", f"{COUNT:,} strings decoded from their binary form",
        "us", "lower", "tritonclient's decoder (python backend)", (value_at_most(400),), decoded,
    ),
    Figure(
        "strings.http", f"{COUNT:,} strings to a python model over HTTP, beyond plain bytes, p50",
        "us", "lower", "tritonserver", (value_at_most(400),), over_http,
    ),
)  # fmt: skip
