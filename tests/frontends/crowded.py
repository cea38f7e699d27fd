"""How long an honest client waits while one crowded request is read: few bytes as sent, millions of parts.

    python -m tests.frontends.crowded
    python -m tests.frontends.crowded inputs-grpc numbers-http --scale 0.1
    python -m tests.frontends.crowded --ports 8000 8001 --pid 4711

Each request is sent once. An honest client asks as in `tests.frontends.starving` until it is answered. A line
has the longest wait of the honest client, the most memory of the server meanwhile, and the answer. Exit status 1
if a wait is longer than 100 ms. `--ports` asks a server that runs already, with the model m of `starving`.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing as mp
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from nbtriton.extensions.grpc.requests import varint
from tests.frontends import http2_raw as h2
from tests.frontends import raw
from tests.frontends.raw import Client, post
from tests.frontends.starving import LIMIT_MS, latencies_ms, p99, serve_until

__all__ = ["MESSAGES", "TEXTS", "main", "send_message", "send_text"]

PATIENCE_S = 200.0


def field(number: int, content: bytes) -> bytes:
    """Return a field of a message: bytes with their length."""
    return bytes((number << 3 | 2,)) + varint(len(content)) + content


def tensor(datatype: str, shape: bytes, contents: bytes = b"") -> bytes:
    """Return an input of a message."""
    about = field(1, b"IN") + field(2, datatype.encode()) + field(3, shape)
    return field(5, about + (field(5, contents) if contents else b""))


def entries(count: int) -> bytes:
    return b"".join(field(4, field(1, b"k%d" % n) + b"\x12\x02\x10\x01") for n in range(count))


def data(values: bytes, shape: bytes = b"1,4", datatype: bytes = b"FP32") -> bytes:
    """Return a JSON text with one input."""
    one = b'{"name":"IN","shape":[%b],"datatype":"%b","data":[%b]}' % (shape, datatype, values)
    return b'{"inputs":[%b]}' % one


def listed(item: bytes, count: int) -> bytes:
    return (item + b",") * (count - 1) + item


def members(count: int) -> bytes:
    return b",".join(b'"k%d":1' % n for n in range(count))


FEW = data(b"1,2,3,4")
NAME = field(1, b"m")
RAW = tensor("FP32", b"\x01\x04"), field(7, bytes(16))
# Messages over gRPC and texts over HTTP, by their number of parts in millions.
MESSAGES: dict[str, Callable[[float], bytes]] = {
    "inputs": lambda m: NAME + b"\x2a\x00" * int(30e6 * m),
    "few inputs": lambda m: NAME + b"\x2a\x00" * int(2e6 * m),
    "outputs": lambda m: NAME + b"\x32\x00" * int(30e6 * m),
    "parameters": lambda m: NAME + entries(int(1e6 * m)) + b"".join(RAW),
    "names": lambda m: NAME + field(5, b"\x0a\x00" * int(30e6 * m)),
    "dimensions": lambda m: NAME + tensor("FP32", b"\x02" * int(30e6 * m)) + RAW[1],
    "BYTES": lambda m: NAME + tensor("BYTES", varint(int(30e6 * m)), b"\x42\x00" * int(30e6 * m)),
    "raw BYTES": lambda m: (
        NAME + tensor("BYTES", varint(int(15e6 * m))) + field(7, bytes(4 * int(15e6 * m)))
    ),
    "FP32": lambda m: (
        NAME + tensor("FP32", varint(int(8e6 * m)), field(6, bytes(4 * int(8e6 * m))))
    ),
    "INT32": lambda m: NAME + tensor("INT32", varint(4), field(2, b"\x01" * int(60e6 * m))),
    "unpacked": lambda m: NAME + tensor("FP32", varint(4), b"\x35\0\0\0\0" * int(12e6 * m)),
}
TEXTS: dict[str, Callable[[float], bytes]] = {
    "numbers": lambda m: data(listed(b"1.5", int(15e6 * m)), b"%d" % (15e6 * m)),
    "doubles": lambda m: data(listed(b"1.5", int(15e6 * m)), b"%d" % (15e6 * m), b"FP64"),
    "wrong number": lambda m: data(listed(b"1.5", int(15e6 * m)) + b",true", b"%d" % (15e6 * m)),
    "broken numbers": lambda m: data(listed(b"1.5", int(15e6 * m)))[:-4],
    "broken rows": lambda m: data(listed(b"[1,2]", int(10e6 * m)))[:-4],
    "not UTF-8": lambda m: b'{"a":[%b],"b":"\xff"}' % listed(b"1.5", int(15e6 * m)),
    "no inputs": lambda m: b'{"inputs":5,"a":[%b]}' % listed(b"1.5", int(15e6 * m)),
    "no object": lambda m: b"[%b" % listed(b"1.5", int(15e6 * m)),
    "rows": lambda m: data(listed(b"[1,2]", int(10e6 * m)), b"%d,2" % (10e6 * m)),
    "strings": lambda m: data(listed(b'""', int(20e6 * m)), b"%d" % (20e6 * m), b"BYTES"),
    "parameters": lambda m: b'{"parameters":{%b},%b' % (members(int(1e6 * m)), FEW[1:]),
    "keys": lambda m: b"{%b,%b" % (members(int(1e6 * m)), FEW[1:]),
    "objects": lambda m: b'{"inputs":[%b]}' % listed(b"{}", int(20e6 * m)),
    "inputs": lambda m: b'{"inputs":[%b]}' % listed(FEW[11:-2], int(0.9e6 * m)),
    "lists": lambda m: b'{"inputs":' + b"[" * int(30e6 * m),
    "dimensions": lambda m: data(b"1", listed(b"2", int(1e6 * m))),
}


def send_text(body: bytes, http_port: int, path: str = "/v2/models/m/infer") -> str:
    """Send a compressed request; return the answer's status and the beginning of its text."""
    with Client(http_port) as client:
        client.socket.settimeout(PATIENCE_S)
        client.send(post(path, gzip.compress(body), "Content-Encoding: gzip"))
        answer = client.receive()
    return f"{answer.status} {answer.body.decode()[:120]}"


def send_message(message: bytes, grpc_port: int) -> str:
    """Send a compressed message; return the answer's status and the beginning of its text."""
    packed = h2.prefixed(gzip.compress(message), 1)
    head = h2.fields(more=[(b"grpc-encoding", b"gzip")])
    frames = [h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head)]
    frames += [
        h2.frame(h2.DATA, 0, 1, packed[i : i + 16_000]) for i in range(0, len(packed), 16_000)
    ]
    with h2.Client(grpc_port) as client:
        client.socket.settimeout(PATIENCE_S)
        client.send(*frames, h2.frame(h2.DATA, h2.END_STREAM, 1))
        code, text = client.answer(1).status
    return f"{code} {text[:120]}"


REQUESTS: dict[str, tuple[Callable[[float], bytes], Callable[[bytes, tuple[int, int]], str]]] = {
    **{
        f"{name}-grpc": (make, lambda body, ports: send_message(body, ports[1]))
        for name, make in MESSAGES.items()
    },
    **{
        f"{name}-http": (make, lambda body, ports: send_text(body, ports[0]))
        for name, make in TEXTS.items()
    },
}


def send(pipe: Connection, name: str, scale: float, ports: tuple[int, int]) -> None:
    """Send one crowded request when told to, and say what was answered."""
    make, ask = REQUESTS[name]
    body = make(scale)
    pipe.send("ready")
    pipe.recv()
    start = time.perf_counter()
    try:
        answer = ask(body, ports)
    except (OSError, AssertionError) as error:
        answer = repr(error)[:80]
    pipe.send(f"{time.perf_counter() - start:.2f} s: {answer}")


def memory_mb(pid: int) -> int:
    """Return the most memory of a process since it was last asked."""
    status = Path(f"/proc/{pid}/status").read_text()
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    (most,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(most) >> 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.frontends.crowded", description=__doc__)
    parser.add_argument("requests", nargs="*", choices=[[], *REQUESTS], default=[])
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of parts")
    parser.add_argument("--ports", type=int, nargs=2, help="of a server that runs already")
    parser.add_argument("--pid", type=int, help="its process")
    options = parser.parse_args(argv)
    raw.WAIT_S = h2.WAIT_S = PATIENCE_S  # of the honest client
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    serving = context.Process(target=serve_until, args=(theirs,), daemon=True)
    if options.ports:
        ports, pid = tuple(options.ports), options.pid
    else:
        serving.start()
        ports, pid = ours.recv(), serving.pid
    bad = False
    print(f"{'':16} {'longest wait':>12} {'p99':>8} {'memory':>9}  answer")
    for name in options.requests or REQUESTS:
        here, there = context.Pipe()
        sending = context.Process(target=send, args=(there, name, options.scale, ports))
        sending.start()
        here.recv()
        latencies_ms(ports, lambda: True)
        memory_mb(pid)
        here.send("go")
        found = latencies_ms(ports, here.poll, 50)  # the memory of the request is freed meanwhile
        waits = [one for way in found.values() for one in way]
        bad = bad or max(waits) > LIMIT_MS
        print(
            f"{name:16} {max(waits):9.0f} ms {p99(waits):5.0f} ms {memory_mb(pid):6} MB  {here.recv()}",
            flush=True,
        )
        sending.join()
    if not options.ports:
        ours.send(None)
        serving.join(20)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
