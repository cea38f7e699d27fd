"""Time of a request by stage: ``python -m bench.stages``.

In the kernel a sampler gives each part's share (`bench.sampling`) of the median time of a request; a step
and a call are the difference of two such measurements. Over HTTP and gRPC the stages are differences
between a server with a constant response, an empty call, and the real call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from bench import bls, ensemble, history
from bench.figures import Missing, show
from bench.machine import machine
from bench.models import NOOP, Model
from bench.sampling import sampled
from bench.session import Session
from bench.wire import Request

__all__ = ["main"]

X = {"IN": np.ones((1, 16), np.float32)}
Parts = dict[str, float]
# Sends the same bytes, of about an inference's size, in response to every request.
ANSWERS_BLINDLY = """
import asyncio, sys
body = b"x" * int(sys.argv[1])
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body

class Blind(asyncio.Protocol):
    def connection_made(self, transport):
        self.write = transport.write
    def data_received(self, data):
        self.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Blind, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

try:
    import uvloop
except ImportError:
    uvloop = asyncio
uvloop.run(main())
"""


def median_us(call: Callable[[], object], seconds: float) -> float:
    """Return the median time of a call, in microseconds."""
    times = []
    end = perf_counter_ns() + round(seconds * 1e9)
    while (begin := perf_counter_ns()) < end:
        call()
        times.append(perf_counter_ns() - begin)
    return median(times) / 1000


def in_kernel(session: Session, models: tuple[Model, ...], name: str, seconds: float) -> Parts:
    """Return the microseconds of each stage of one request."""
    server = session.ours(*models)
    total = median_us(lambda: server.infer(name, X), seconds)
    shares = sampled(lambda: server.infer(name, X), 2 * seconds)
    return {stage: share * total for stage, share in shares.items()}


def difference(more: Parts, less: Parts, count: int) -> Parts:
    """Return the time that each of `count` further steps adds to each stage."""
    stages = dict.fromkeys((*more, *less))
    return {stage: (more.get(stage, 0) - less.get(stage, 0)) / count for stage in stages}


def of_single(session: Session, seconds: float) -> Parts:
    """Return the stages of one request to a no-op python model."""
    return in_kernel(session, (NOOP,), "noop", seconds)


def of_step(session: Session, seconds: float) -> Parts:
    """Return the stages of each further step of an ensemble."""
    few, many = (
        in_kernel(session, ensemble.MODELS, f"steps_{steps}", seconds)
        for steps in (ensemble.FEW, ensemble.MANY)
    )
    return difference(many, few, ensemble.MANY - ensemble.FEW)


def of_call(session: Session, seconds: float) -> Parts:
    """Return the stages of each further call from model to model."""
    few, many = (
        in_kernel(session, bls.MODELS, f"calls_{calls}", seconds) for calls in (bls.FEW, bls.MANY)
    )
    return difference(many, few, bls.MANY - bls.FEW)


def of_http(session: Session, seconds: float) -> Parts:
    """Return the stages of one request at a time over HTTP with binary tensors."""
    port = session.served(NOOP).http_port
    with blind(len(infer_request(port).once())) as nothing:
        floor = infer_request(nothing).load(1, seconds).p50_us
    empty = Request(port, "/v2/health/live", method="GET").load(1, seconds).p50_us
    whole = infer_request(port).load(1, seconds).p50_us
    kernel = median_us(lambda: session.ours(NOOP).infer("noop", X), seconds)
    return {
        "sockets, two event loops, the client": floor,
        "HTTP: head parsed, routed, answered": empty - floor,
        "the inference itself, as in the kernel": kernel,
        "the infer head, tensors, the answer, hand-over": whole - empty - kernel,
    }


def of_grpc(session: Session, seconds: float) -> Parts:
    """Return the stages of one call at a time over gRPC with grpcio's client."""
    try:
        import grpc
    except ImportError as error:
        raise Missing("no gRPC here: grpcio is not installed") from error
    service = "/inference.GRPCInferenceService"
    address = f"127.0.0.1:{session.served(NOOP).grpc_port}"
    with grpc.insecure_channel(address) as channel:
        # Without serializers, so that the client's protobuf is not measured.
        live, infer = (channel.unary_unary(f"{service}/{m}") for m in ("ServerLive", "ModelInfer"))
        message = grpc_request()
        empty = median_us(lambda: live(b""), seconds)
        whole = median_us(lambda: infer(message), seconds)
    kernel = median_us(lambda: session.ours(NOOP).infer("noop", X), seconds)
    return {
        "an empty call: HTTP/2, sockets, grpcio's client": empty,
        "the inference itself, as in the kernel": kernel,
        "messages read and written, frames with tensors": whole - empty - kernel,
    }


def infer_request(port: int) -> Request:
    """Return an inference request with binary tensors."""
    raw = X["IN"].tobytes()
    binary = {"binary_data": True}
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "IN", "shape": [1, 16], "datatype": "FP32",
                    "parameters": {"binary_data_size": len(raw)},
                }
            ],
            "outputs": [{"name": "OUT", "parameters": binary}],
        }
    ).encode()  # fmt: skip
    length = {"Inference-Header-Content-Length": str(len(head))}
    return Request(port, "/v2/models/noop/infer", head + raw, length)


def grpc_request() -> bytes:
    """Return the serialized ModelInferRequest with raw contents."""
    from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]

    message = service_pb2.ModelInferRequest(
        model_name="noop", raw_input_contents=[X["IN"].tobytes()]
    )
    message.inputs.add(name="IN", datatype="FP32", shape=[1, 16])
    serialized: bytes = message.SerializeToString()
    return serialized


@contextmanager
def blind(size: int) -> Iterator[int]:
    """Run a server with a constant response; yield its port."""
    command = [sys.executable, "-c", ANSWERS_BLINDLY, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


TABLES: Mapping[str, tuple[str, Callable[[Session, float], Parts]]] = {
    "stages.single": ("one request in the kernel, no-op python model", of_single),
    "stages.step": ("each further step of an ensemble", of_step),
    "stages.call": ("each call from model to model (BLS)", of_call),
    "stages.http": ("one request at a time over HTTP, binary tensors", of_http),
    "stages.grpc": ("one call at a time over gRPC", of_grpc),
}


def text_of(title: str, parts: Parts) -> str:
    """Return a table of stages."""
    total = sum(parts.values())
    rows = [f"\n{title}: {show(total)} us"]
    rows += [f"  {stage:<62}{show(us):>8} us{us / total:>6.0%}" for stage, us in parts.items()]
    return "\n".join(rows)


def medians(rounds: list[Parts]) -> Parts:
    """Return each stage's median over the rounds, the largest first."""
    stages = dict.fromkeys(stage for parts in rounds for stage in parts)
    found = {stage: median(parts.get(stage, 0.0) for parts in rounds) for stage in stages}
    return dict(sorted(found.items(), key=lambda part: -part[1]))


def main() -> int:
    """Measure and print the stages, and add a line for each table to the history."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement (1)")
    parser.add_argument("--no-history", action="store_true", help="leave the history as it is")
    arguments = parser.parse_args()
    where = machine()
    lines: list[Mapping[str, Any]] = []
    with ExitStack() as stack:
        session = Session(stack)
        for name, (title, measure) in TABLES.items():
            try:
                parts = medians(
                    [measure(session, arguments.seconds) for _ in range(arguments.rounds)]
                )
            except Missing as error:
                print(f"\n{title}: {error}")
                continue
            print(text_of(title, parts), flush=True)
            lines.append(
                {
                    "figure": history.named(name, where),
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                    **{key: where[key] for key in ("commit", "cpu", "cores", "python")},
                    "load": where["load_average"],
                    "rounds": arguments.rounds,
                    "short": False,
                    "unit": "us",
                    "ours": round(sum(parts.values()), 2),
                    "ratio": None,
                    "parts": {stage: round(us, 2) for stage, us in parts.items()},
                }
            )
    if not arguments.no_history:
        history.append(Path(history.HISTORY), lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
