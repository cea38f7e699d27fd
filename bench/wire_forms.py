"""A picture's three ways to a server: as JPEG, as FP32 in the request, in shared memory (``python -m bench.wire_forms``).

Each request is prepared as a client prepares it for a new picture: the tensor is encoded, or written into the pool's
memory. A model decodes the JPEG; the others read every hundredth value. All cases are measured in turns of three
requests, one at a time; times are medians, processor time is that of the server's processes.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.figures import Missing
from bench.models import READ_ONLY, Model, python_model, write
from bench.processes import family
from bench.session import Session
from nbtriton import SharedMemoryPool
from nbtriton.extensions.verify.reference import RunningServer
from nbtriton.serving.clients.base import Client
from nbtriton.serving.clients.grpc import GrpcClient
from nbtriton.serving.clients.http import HttpClient

__all__ = ["Case", "main", "measure"]

# Requests of a case in each round: on a busy machine a longer turn meets another machine than the next one.
BURST = 3
# Edges of square pictures of 4 kB, 600 kB and 16 MB as FP32.
EDGES = (18, 224, 1155)
MEAN = "out = x.reshape(1, -1)[:, ::100].mean(1, keepdims=True, dtype=np.float32)"
DECODE = """
            import io
            from PIL import Image
            picture = np.asarray(Image.open(io.BytesIO(x[0, 0])), np.float32)
            out = picture.reshape(1, -1)[:, ::100].mean(1, keepdims=True) / np.float32(255)"""
MODELS = (
    python_model("jpeg", DECODE, dims="1", out_dims="1", datatype="STRING"),
    python_model("plain", MEAN, dims="-1", out_dims="1"),
    python_model("reading", MEAN, dims="-1", out_dims="1", extra=READ_ONLY),
)
FORMS = {
    "JPEG": "jpeg",
    "FP32": "plain",
    "shared memory": "plain",
    "shared memory, READ_ONLY_INPUTS": "reading",
}


@dataclass
class Case:
    """One form of one size to one server by one protocol; `times_us` and `server_us` grow with each round."""

    server: str
    protocol: str
    edge: int
    form: str
    send: Callable[[], int]  # prepares and sends one request; returns its bytes on the wire
    pid: int  # of the server
    wire_bytes: int = 0
    times_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Send a few requests."""
        before, own = cpu_s(self.pid), time.process_time()
        for _ in range(BURST):
            began = time.perf_counter()
            self.wire_bytes = self.send()
            self.times_us.append(1e6 * (time.perf_counter() - began))
        self.client_us.append(1e6 * (time.process_time() - own) / BURST)
        self.server_us.append(1e6 * (cpu_s(self.pid) - before) / BURST)


def cpu_s(pid: int) -> float:
    """Return the processor time of a server's threads to the nanosecond; `bench.processes.cpu_s` counts ticks of 10 ms."""
    paths = (
        path for each in family(pid) for path in Path(f"/proc/{each}/task").glob("*/schedstat")
    )
    found = 0
    for path in paths:
        with suppress(OSError):  # ended meanwhile
            found += int(path.read_text().split()[0])
    return found / 1e9


def picture(edge: int) -> np.ndarray[Any, Any]:
    """Return a picture with edges, gradients and some noise, as uint8 [edge, edge, 3]."""
    at = np.linspace(0, 6, edge)
    waves = np.sin(at[:, None] * at[None, :])[..., None] * [90, 60, 30] + 128
    noise = np.random.default_rng(0).normal(0, 4, waves.shape)
    found: np.ndarray[Any, Any] = np.clip(waves + noise, 0, 255).astype(np.uint8)
    return found


def sender(client: Client[Any], pool: SharedMemoryPool, form: str, edge: int) -> Callable[[], int]:
    """Return the function that prepares and sends one request."""
    pixels = picture(edge)
    model = FORMS[form]
    planes = (pixels.transpose(2, 0, 1).reshape(1, -1) / 255).astype(np.float32)
    if form == "JPEG":
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        value: Any = np.array([[file.getvalue()]], object)
    else:
        value = planes
    block = pool.put(planes) if "shared" in form else None

    def send() -> int:
        given = value if block is None else block.write(value).tensor
        request = client.encode(model, {"IN": given})
        answer = client.decode(client.send(request))
        (mean,) = answer.outputs["OUT"].reshape(-1)
        assert 0.3 < mean < 0.7, mean
        return size_of(request)

    return send


def size_of(request: Any) -> int:
    """Return the bytes of an encoded request: a message of gRPC, or the body over HTTP."""
    return len(request if isinstance(request, bytes) else request.body)


def measure(servers: dict[str, RunningServer], rounds: int) -> list[Case]:
    """Measure all cases in turns of a few requests, the servers beside each other."""
    with ExitStack() as stack:
        pool = stack.enter_context(SharedMemoryPool("forms", bytes=1 << 28))
        cases = []
        for name, server in servers.items():
            clients: tuple[Client[Any], ...] = (
                HttpClient(server.http_url),
                GrpcClient(server.grpc_url),
            )
            pid = server.process.pid
            for client in clients:
                stack.enter_context(client)
                pool.register(client)
                cases += [
                    Case(name, client.protocol, edge, form, sender(client, pool, form, edge), pid)
                    for edge in EDGES
                    for form in FORMS
                ]
        cases.sort(key=lambda case: (case.protocol, case.edge, case.form))
        for case in cases:
            case.send()
        for _ in range(rounds):
            for case in cases:
                case.run()
        pool.close()
    return cases


def table(cases: Sequence[Case]) -> str:
    """Return the table in Markdown: a row for a form, the servers beside each other."""
    names = list(dict.fromkeys(case.server for case in cases))
    heads = [f"{name}: {what}" for what in ("p50", "processor") for name in names]
    lines = [
        "| tensor | protocol | form | bytes | client's processor | " + " | ".join(heads) + " |",
        "|---|---|---|--:|--:|" + "--:|" * len(heads),
    ]
    rows: dict[tuple[str, int, str], dict[str, Case]] = {}
    for case in cases:
        rows.setdefault((case.protocol, case.edge, case.form), {})[case.server] = case
    order = [*FORMS]
    for (protocol, edge, form), found in sorted(
        rows.items(), key=lambda row: (row[0][1], row[0][0], order.index(row[0][2]))
    ):
        each = [found[name] for name in names]
        cells = [f"{statistics.median(case.times_us) / 1000:.2f} ms" for case in each]
        cells += [f"{statistics.median(case.server_us) / 1000:.2f} ms" for case in each]
        client = statistics.median(each[0].client_us) / 1000
        lines.append(
            f"| {12 * edge * edge:,} | {protocol} | {form} | {each[0].wire_bytes:,} | {client:.2f} ms | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.wire_forms", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help=f"of {BURST} requests a case (40)")
    options = parser.parse_args(argv)
    with ExitStack() as stack:
        session = Session(stack)
        servers = {"nbtriton": session.served(*MODELS)}
        try:
            servers["tritonserver"] = with_pillow(session, MODELS)
        except Missing as error:
            print(f"nbtriton alone: {error}", file=sys.stderr)
        print(table(measure(servers, options.rounds)))
    return 0


def with_pillow(session: Session, models: Sequence[Model]) -> RunningServer:
    """Return a tritonserver whose models import this environment's packages."""
    folder = session.folder()
    write(models, folder)
    python = session.reference.shared_python(session.folder() / "python")
    if python is None:
        raise Missing("the reference's Python is another version, so that it has no Pillow")
    server: RunningServer = session.stack.enter_context(
        session.reference.server(folder, python=python)
    )
    return server


if __name__ == "__main__":
    sys.exit(main())
