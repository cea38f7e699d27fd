"""How long an honest client waits while another one attacks: p99 under 100 ms through each attack.

    python -m tests.frontends.starving
    python -m tests.frontends.starving resets settings --seconds 5

The server is a process of its own, and so is the attacker. The honest client asks over HTTP and gRPC, in
turn on a connection that it keeps and on a new one, every 5 ms: first while nothing else happens, then
through each attack. Exit status 1 if a p99 is not below the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing as mp
import resource
import socket
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

from tests.frontends import http2_raw as h2
from tests.frontends.raw import Client, post

__all__ = ["ATTACKS", "flood_of_resets", "flood_of_settings", "main"]

LIMIT_MS = 100.0
PAUSE_S = 0.005
# How long an attacker keeps the connections that it has opened.
HOLD_S = 0.5
CONFIG = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
TENSOR = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}
BODY = json.dumps({"inputs": [TENSOR]}).encode()


def message() -> bytes:
    """A request for inference over gRPC."""
    from tritonclient.grpc import service_pb2 as pb

    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[np.ones(4, "f4").tobytes()])
    request.inputs.add(name="IN", datatype="FP32", shape=[1, 4])
    return bytes(request.SerializeToString())


def call(stream: int, body: bytes) -> bytes:
    head = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, h2.fields())
    return head + h2.frame(h2.DATA, h2.END_STREAM, stream, h2.prefixed(body))


# -- attacks: each is repeated until the time has passed ------------------------------------------------


def flood_of_resets(_: int, grpc_port: int, calls: int = 20_000) -> None:
    """Begin calls and give each of them up."""
    body = message()
    reset = h2.number(8)
    with h2.Client(grpc_port) as client, contextlib.suppress(OSError):
        for first in range(1, 2 * calls, 200):
            streams = range(first, first + 200, 2)
            client.send(*(call(n, body) + h2.frame(h2.RST_STREAM, 0, n, reset) for n in streams))


def flood_of_settings(_: int, grpc_port: int, calls: int = 20_000, changes: int = 500) -> None:
    """Hold calls open, and change the window of them all again and again."""
    with h2.Client(grpc_port) as client, contextlib.suppress(OSError):
        head = h2.fields()
        for first in range(1, 2 * calls, 200):
            streams = range(first, first + 200, 2)
            client.send(*(h2.frame(h2.HEADERS, h2.END_HEADERS, n, head) for n in streams))
        for number in range(changes):
            client.send(h2.setting(4, 1000 + number % 2))


def flood_of_pings(_: int, grpc_port: int) -> None:
    ping = h2.frame(h2.PING, 0, 0, bytes(8)) * 10_000
    with h2.Client(grpc_port) as client, contextlib.suppress(OSError):
        client.send(ping)
        client.to_the_end()


def calls_without_pause(_: int, grpc_port: int) -> None:
    """Send calls as fast as they are taken, and read the answers."""
    body = message()
    with h2.Client(grpc_port) as client, contextlib.suppress(OSError, AssertionError):
        for first in range(1, 10_000, 1000):
            streams = range(first, first + 1000, 2)
            client.send(*(call(n, body) for n in streams))
            client.answer(streams[-1])


def silent_connections(http_port: int, grpc_port: int, count: int = 2_500) -> None:
    """Open more connections than the limit, and send nothing."""
    held = []
    with contextlib.suppress(OSError):
        for number in range(count):
            at = ("127.0.0.1", (http_port, grpc_port)[number % 2])
            held.append(socket.create_connection(at, 1.0))
    time.sleep(HOLD_S)
    for one in held:
        one.close()


def storm_of_connections(http_port: int, grpc_port: int) -> None:
    silent_connections(http_port, grpc_port, 10_000)


def half_requests(http_port: int, _: int, count: int = 1_500) -> None:
    """Connect, and say half of something."""
    held = []
    with contextlib.suppress(OSError):
        for _ in range(count):
            held.append(socket.create_connection(("127.0.0.1", http_port), 1.0))
            held[-1].sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Le")
    time.sleep(HOLD_S)
    for one in held:
        one.close()


def pipelined_requests(http_port: int, _: int) -> None:
    """Send more and more requests before an answer."""
    data = (LIVE + post("/v2/models/m/infer", BODY)) * 2000
    with Client(http_port) as client, contextlib.suppress(OSError):
        client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        client.is_over()


def offers_to_upgrade(http_port: int, _: int) -> None:
    fields = b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost"
    with Client(http_port) as client, contextlib.suppress(OSError):
        client.send(LIVE.replace(b"Host", fields) * 10_000)
        client.socket.shutdown(socket.SHUT_WR)
        client.is_over()


def bombs_over_http(http_port: int, _: int) -> None:
    """Send a megabyte that unpacks to a gigabyte."""
    with Client(http_port) as client, contextlib.suppress(OSError, AssertionError):
        client.send(post("/v2/models/m/infer", _bomb(), "Content-Encoding: gzip"))
        client.receive()


def bombs_over_grpc(_: int, grpc_port: int) -> None:
    packed = h2.prefixed(_bomb(), 1)
    pieces = [packed[i : i + 16_000] for i in range(0, len(packed), 16_000)]
    head = h2.fields(more=[(b"grpc-encoding", b"gzip")])
    with h2.Client(grpc_port) as client, contextlib.suppress(OSError, AssertionError):
        for stream in (1, 3, 5):
            data = [h2.frame(h2.DATA, 0, stream, piece) for piece in pieces]
            client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head), *data)
        for stream in (1, 3, 5):
            client.answer(stream)


def _bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    return b"".join([*(packer.compress(zeros) for _ in range(1 << 10)), packer.flush()])


ATTACKS: dict[str, Callable[[int, int], None]] = {
    "resets": flood_of_resets,
    "settings": flood_of_settings,
    "pings": flood_of_pings,
    "calls": calls_without_pause,
    "silent": silent_connections,
    "storm": storm_of_connections,
    "half": half_requests,
    "pipelined": pipelined_requests,
    "upgrades": offers_to_upgrade,
    "bombs-http": bombs_over_http,
    "bombs-grpc": bombs_over_grpc,
}
_PREPARED = {"bombs-http", "bombs-grpc"}


# -- processes ---------------------------------------------------------------------------------------


def serve_until(pipe: Connection) -> None:
    """Run the server that is attacked."""
    from nbtriton.runtime.engine import Server
    from nbtriton.serving.frontends import serve

    def same(IN: np.ndarray) -> np.ndarray:  # noqa: N803
        return IN

    with Server(gpus=()) as server:
        server.load(CONFIG, same, name="m")
        with serve(server, http_port=0, grpc_port=0, metrics_port=None) as endpoints:
            gc.collect()
            gc.freeze()  # as `nbtriton serve` does
            gc.set_threshold(50_000, 20, 50)
            pipe.send((endpoints.http_port, endpoints.grpc_port))
            pipe.recv()


def attack_until(name: str, ports: tuple[int, int], begun: Event, over: Event) -> None:
    global _bomb
    if name in _PREPARED:
        bomb = _bomb()
        _bomb = lambda: bomb  # type: ignore[assignment]
    begun.set()
    while not over.is_set():
        ATTACKS[name](*ports)


def latencies_ms(
    ports: tuple[int, int], is_over: Callable[[], bool], enough: int = 1
) -> dict[str, list[float]]:
    """Ask again and again, at least `enough` times each way; return how long each answer took."""
    found: dict[str, list[float]] = {}
    http_port, grpc_port = ports
    body = message()
    kept = {"http": Client(http_port), "grpc": h2.Client(grpc_port)}
    streams = iter(range(1, 1 << 30, 2))

    def http(client: Any) -> None:
        client.send(post("/v2/models/m/infer", BODY))
        assert client.receive().status == 200

    def grpc(client: Any, stream: int = 1) -> None:
        client.send(call(stream, body))
        assert client.answer(stream).status == (0, "")
        client.answers.clear()
        client.frames.clear()

    def new_http() -> None:
        with Client(http_port) as client:
            http(client)

    def new_grpc() -> None:
        with h2.Client(grpc_port) as client:
            grpc(client)

    ways: dict[str, Callable[[], None]] = {
        "http": lambda: http(kept["http"]),
        "grpc": lambda: grpc(kept["grpc"], next(streams)),
        "http, new": new_http,
        "grpc, new": new_grpc,
    }
    while not is_over() or len(found.get("http", ())) < enough:
        for name, ask in ways.items():
            start = time.perf_counter()
            ask()
            found.setdefault(name, []).append(1000 * (time.perf_counter() - start))
            time.sleep(PAUSE_S)
    for client in kept.values():
        client.socket.close()
    return found


def p99(numbers: Sequence[float]) -> float:
    return sorted(numbers)[int(0.99 * len(numbers))]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.frontends.starving", description=__doc__)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], default=[])
    parser.add_argument("--seconds", type=float, default=4.0, help="for each attack")
    options = parser.parse_args(argv)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    serving = context.Process(target=serve_until, args=(theirs,), daemon=True)
    serving.start()
    ports = ours.recv()
    bad = False
    print(
        f"{'p99 (most) in ms':18}",
        *(f"{w:>18}" for w in ("http", "grpc", "http, new", "grpc, new")),
    )
    for name in ["nothing", *(options.attacks or ATTACKS)]:
        over, begun = context.Event(), context.Event()
        attacking = None
        if name != "nothing":
            attacking = context.Process(target=attack_until, args=(name, ports, begun, over))
            attacking.start()
            begun.wait()
        until = time.perf_counter() + options.seconds
        found = latencies_ms(ports, lambda: time.perf_counter() >= until)  # noqa: B023
        over.set()
        if attacking is not None:
            attacking.join(5)
            attacking.kill()
        bad = bad or any(p99(numbers) >= LIMIT_MS for numbers in found.values())
        cells = (f"{p99(numbers):.1f} ({max(numbers):.1f})" for numbers in found.values())
        print(f"{name:18}", *(f"{cell:>18}" for cell in cells), flush=True)
    ours.send(None)
    serving.join(20)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
