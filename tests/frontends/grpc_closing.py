"""An endpoint that closes under load: every call must end.

    python -m tests.frontends.grpc_closing                     200 rounds
    python -m tests.frontends.grpc_closing --rounds 5 --seed 7

The client is another process, and no gRPC library but sockets: what it does not see was not sent. A
connection that is closed ends its calls. A close that drains answers every request that its model has
run; gRPC itself refuses the calls that it reads later, which have an end of their own.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tests.frontends.http2_raw import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INFER,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STREAM,
    WINDOW_UPDATE,
    Frame,
    fields,
    frame,
    number,
    prefixed,
    split,
)
from tests.seeds import free_seed

__all__ = ["close_under_load"]

CONNECTIONS = 4
IN_FLIGHT = 32
TIMEOUT_S = 30
_LARGEST = (1 << 31) - 1


class Connection:
    """One connection that keeps calls in flight until its server closes it."""

    def __init__(self, port: int, message: bytes, streaming: bool) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._message = prefixed(message)
        self._buffer = b""
        self._credit = 65_535
        self._next = 1
        self._open: dict[int, bool] = {}  # whether something was answered
        self._bidirectional = 0
        self.last = _LARGEST
        self.answered = self.failed = self.reset = 0
        self.is_closed = False
        preface = PREFACE + frame(SETTINGS) + frame(WINDOW_UPDATE, 0, 0, number(1 << 30))
        calls = self._call(STREAM, 0) if streaming else b""
        self._bidirectional = 1 if streaming else 0
        self._socket.sendall(preface + calls + b"".join(self._more()))

    def _call(self, method: bytes, flags: int) -> bytes:
        stream, self._next = self._next, self._next + 2
        self._open[stream] = False
        self._credit -= len(self._message)
        head = frame(HEADERS, END_HEADERS, stream, fields({b":path": method}))
        return head + self._data(stream, flags)

    def _data(self, stream: int, flags: int) -> bytes:
        return frame(DATA, flags, stream, self._message)

    def _more(self) -> Iterator[bytes]:
        """Begin calls up to `IN_FLIGHT`, if the server accepts more."""
        while self.last == _LARGEST and len(self._open) < IN_FLIGHT:
            if self._credit < len(self._message):
                return
            yield self._call(INFER, END_STREAM)

    def run_until(self, loaded: threading.Semaphore) -> None:
        """Send calls until the server closes the connection."""
        try:
            while data := self._socket.recv(1 << 16):
                frames, self._buffer = split(self._buffer + data)
                replies = list(self._read(frames, loaded))
                self._socket.sendall(b"".join([*replies, *self._more()]))
            self.is_closed = True
        except TimeoutError:
            pass
        except OSError:  # what was on its way as it hung up
            self.is_closed = True

    def _read(self, frames: Sequence[Frame], loaded: threading.Semaphore) -> Iterator[bytes]:
        for kind, flags, stream, payload in frames:
            if kind == PING and not flags & ACK:
                yield frame(PING, ACK, 0, payload)
            elif kind == SETTINGS and not flags & ACK:
                yield frame(SETTINGS, ACK, 0, b"")
            elif kind == WINDOW_UPDATE and stream == 0:
                self._credit += int.from_bytes(payload, "big")
            elif kind == GOAWAY:
                self.last = min(self.last, int.from_bytes(payload[:4], "big"))
                if self.last == _LARGEST:  # a warning: the true last one follows
                    self.last -= 1
            elif kind == DATA:
                self._open[stream] = True
                loaded.release()
                if stream == self._bidirectional and self._credit >= len(self._message):
                    self._credit -= len(self._message)
                    yield self._data(stream, 0)
            elif kind == RST_STREAM:
                self._open.pop(stream, None)
                self.reset += 1
            elif kind == HEADERS and flags & END_STREAM:
                if self._open.pop(stream, False):
                    self.answered += 1
                else:
                    self.failed += 1

    def report(self) -> dict[str, Any]:
        accepted = [stream for stream in self._open if stream <= self.last]
        return {
            "answered": self.answered,
            "failed": self.failed,
            "reset": self.reset,
            "cut": len(accepted),
            "refused": len(self._open) - len(accepted),
            "left_open": not self.is_closed,
        }


def client() -> None:
    """Read a line a round from stdin; say when the server is loaded, and how everything ended."""
    for line in sys.stdin:
        order = json.loads(line)
        loaded = threading.Semaphore(0)
        connections = [
            Connection(order["port"], bytes.fromhex(order["message"]), order["streaming"])
            for _ in range(CONNECTIONS)
        ]
        threads = [threading.Thread(target=c.run_until, args=(loaded,)) for c in connections]
        for thread in threads:
            thread.start()
        for _ in range(order["after"]):
            loaded.acquire(timeout=TIMEOUT_S)
        print("loaded", flush=True)
        for thread in threads:
            thread.join()
        print(json.dumps([connection.report() for connection in connections]), flush=True)


MODEL = """
name: "echo" max_batch_size: 16
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching { }
"""


def close_under_load(rounds: int, dice: random.Random, *, verbose: bool = False) -> None:
    """Open and close an endpoint that often; raises AssertionError if a call is left."""
    from nbtriton.backends.python import install_pb_utils
    from nbtriton.runtime.engine import Server
    from nbtriton.serving.frontends import serve
    from tests.frontends.grpc_support import infer

    install_pb_utils()

    class Echo:
        executed: ClassVar[Counter[str]] = Counter()

        def execute(self, requests: Any) -> Any:
            import triton_python_backend_utils as pb_utils

            Echo.executed.update(request.request_id() for request in requests)
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 1)]
                )
                for request in requests
            ]

    command = [sys.executable, "-m", "tests.frontends.grpc_closing", "--client"]
    with (
        Server(gpus=()) as server,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):  # fmt: skip
        assert other.stdin is not None
        assert other.stdout is not None
        server.load(MODEL, Echo)
        for number in range(1, rounds + 1):
            drains = dice.random() < 0.5
            # What the round before has cut off may still be executed: each has its own identifier.
            request_id = str(number)
            message = infer("echo", request_id=request_id).SerializeToString().hex()
            endpoints = serve(server, http_port=None, metrics_port=None, grpc_port=0)
            order = {"port": endpoints.grpc_port, "message": message, "streaming": not drains,
                     "after": dice.randint(1, 500)}  # fmt: skip
            other.stdin.write(json.dumps(order) + "\n")
            other.stdin.flush()
            assert other.stdout.readline() == "loaded\n"
            began_s = time.monotonic()
            closer = threading.Thread(
                target=endpoints.close, kwargs={"drain_s": TIMEOUT_S if drains else 0.0}
            )
            closer.start()
            closer.join(2 * TIMEOUT_S)
            took_ms = (time.monotonic() - began_s) * 1e3
            assert not closer.is_alive(), "close() does not return"
            found = json.loads(other.stdout.readline())
            if verbose:
                total = {key: sum(one[key] for one in found) for key in found[0]}
                print(f"round {number}/{rounds}  drains {drains!s:<5}  {took_ms:6.0f} ms  {total}", flush=True)  # fmt: skip
            assert not any(one["left_open"] for one in found), ("a connection is left", found)
            if drains:
                answered = sum(one["answered"] for one in found)
                executed = Echo.executed[request_id]
                assert answered == executed, (f"{executed} requests were executed", found)
                assert not any(one["cut"] for one in found), ("calls are left", found)
        other.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=free_seed())
    parser.add_argument("--client", action="store_true", help="be the other process")
    arguments = parser.parse_args()
    if arguments.client:
        client()
        return 0
    print(f"seed {arguments.seed}")
    close_under_load(arguments.rounds, random.Random(arguments.seed), verbose=True)
    print("every call had an end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
