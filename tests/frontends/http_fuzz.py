"""Random bodies and header fields: each request has an answer, and no error is ours.

    python -m tests.frontends.http_fuzz                       a million inputs
    python -m tests.frontends.http_fuzz --inputs 20000 --seed 7

The requests of the error table are changed: their documents member by member, their bytes, what
their header fields say. Most go to the handlers directly; one in
twenty is written to the port, with bytes of its head changed too.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import threading
from typing import Any

from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Limits, serve
from nbtriton.serving.frontends.http1.connection import RequestResponseCycle
from nbtriton.serving.frontends.http1.handlers import Handlers
from nbtriton.serving.frontends.http1.response import HttpResponse, RequestHead
from nbtriton.serving.frontends.service import NoControl, Service
from tests.frontends.cases import CASES, Case
from tests.frontends.fuzzing import Tally, main, scratched
from tests.frontends.raw import Client

__all__ = ["fuzz_endpoint", "fuzz_handlers", "mutated"]

TIMEOUT_S = 60
TOGETHER = 500
STATUSES = (200, 400, 404, 405, 500, 501, 503)
# Triton answers 500 where a text is no JSON or of another kind; anything else would be ours.
THEIR_500 = (
    "failed to parse the request JSON buffer: ",
    "attempt to access ",
    "attempt to get members ",
    "Unable to parse '",
    "Unable to set '",
    "Unable to parse JSON bytes array: ",
    "Unable to open shared memory region: ",
    "failed to get request params.",
    "Expected JSON object for keyword: ",
    "Converting keyword: ",
    "Shape does not match",
    "unexpected error on creating Triton parameter",
    "shared memory size specified with the request",
    "not today",
)
_ODD: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, 0.5, 1e308, float("nan"), float("inf"), 1 << 31, 1 << 40, 1 << 63,
    1 << 64, 1 << 200, -(1 << 63), "", "x", "IN", "\0", "\udcff", "FP32", "BYTES", "BF16", "FP16", [], {},
    [[]], [1], [1, 4], [4], [0], [-1], [1 << 33, 1 << 33], [0, 1 << 62, 8], [1] * 70, "a" * 200,
    {"binary_data_size": 4}, {"shared_memory_region": "r"}, {"classification": 1 << 40}, [None] * 4,
]  # fmt: skip


# -- what is sent ------------------------------------------------------------------------------------


def mutated(case: Case, dice: random.Random) -> tuple[bytes, dict[bytes, bytes]]:
    """Return body and header fields of a request somewhat like a real one."""
    headers = {k.lower().encode(): v.encode() for k, v in case.headers.items()}
    given = headers.get(b"inference-header-content-length", b"")
    length = int(given) if given.isdigit() else None
    text, blob = (case.body[:length], case.body[length:]) if length else (case.body, b"")
    kind = dice.randrange(4)
    if kind:
        try:
            document = json.loads(text)
        except ValueError:
            kind = 0
        else:
            for _ in range(dice.randint(1, 3)):
                document = _changed(document, dice)
            text = json.dumps(document).encode("utf-8", "surrogatepass")
    if kind == 0 or dice.random() < 0.1:
        text = scratched(text, dice, dice.randint(1, 4), 3)
    if blob and dice.random() < 0.5:
        blob = dice.choice([blob[:-1], blob + b"\0", struct.pack("<I", dice.getrandbits(32)) + blob[4:]])  # fmt: skip
    if length is not None:
        headers[b"inference-header-content-length"] = str(
            len(text) if dice.random() < 0.8 else dice.randint(-2, len(text) + 20)
        ).encode()
    if dice.random() < 0.05:
        headers[b"inference-header-content-length"] = dice.randbytes(dice.randint(0, 6))
    if dice.random() < 0.05:
        headers[b"content-encoding"] = dice.choice([b"gzip", b"deflate", b"identity", b"x", b""])
    if dice.random() < 0.1:
        headers[b"accept-encoding"] = dice.choice(
            [b"gzip", b"deflate;q=9,*", b";q=,;", b"gzip;q=-1"]
        )
    return text + blob, headers


def _changed(value: Any, dice: random.Random) -> Any:
    """Change one place of a document."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        if dice.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.7:
        at = dice.randrange(len(value))
        return [*value[:at], _changed(value[at], dice), *value[at + 1 :]]
    return dice.choice(_ODD)


# -- the handlers ------------------------------------------------------------------------------------


class Collected(RequestResponseCycle):
    """A cycle that keeps its response."""

    __slots__ = ("ended", "replies")

    def __init__(self, head: RequestHead, body: bytes) -> None:
        super().__init__(None, head, body)  # type: ignore[arg-type]
        self.replies: list[tuple[int, bytes]] = []
        self.ended = threading.Event()

    def respond(self, response: HttpResponse) -> None:
        self.replies.append((response.status, b"".join(response.parts)))
        self.ended.set()

    def begin(self, status: int, content_type: bytes) -> None:
        self.replies.append((status, b""))

    def chunk(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        self.ended.set()

    def work(self, task: Any, *, loads: bool = False) -> None:
        task()

    def status(self) -> str:
        """Wait for the answer, and return its status; an error of ours is a failure."""
        sent = (self.head.method, self.head.path, self.head.headers, self.body)
        assert self.ended.wait(TIMEOUT_S), ("no answer", sent)
        assert len(self.replies) == 1, ("several answers", sent)
        ((status, body),) = self.replies
        assert status in STATUSES, (status, sent)
        if status == 500:
            # Bytes that are no UTF-8 come back as they were sent, as from Triton (KS25).
            error = json.loads(body.decode(errors="surrogateescape"))["error"]
            assert error.startswith(THEIR_500), (error, sent)
        return str(status)


def fuzz_handlers(server: Server, count: int, dice: random.Random, tally: Tally) -> None:
    """Send inputs to the handlers."""
    service = Service(server, NoControl(server), limits=Limits(body_bytes=1 << 20))
    handlers = Handlers(service)
    try:
        while count > 0:
            batch = min(TOGETHER, count)
            count -= batch
            cycles = []
            while len(cycles) < batch:
                # Some of those that come together have a head in common, as on a connection.
                case = dice.choice(CASES)
                body, headers = mutated(case, dice)
                head = RequestHead(case.method, case.path.partition("?")[0], headers)
                bodies = [body, *(mutated(case, dice)[0] for _ in range(dice.choice((0, 0, 0, 3))))]
                together = [Collected(head, body) for body in bodies[: batch - len(cycles)]]
                handlers.handle(together)
                cycles += together
            tally.count([cycle.status() for cycle in cycles])
    finally:
        service.shared_memory.close()
        service.log.close()  # a changed log setting outlives the test else


# -- the endpoint ------------------------------------------------------------------------------------


def fuzz_endpoint(server: Server, count: int, dice: random.Random, tally: Tally) -> None:
    """Write requests with bytes changed to the port: it answers or closes the connection, and goes on."""
    with serve(server, http_port=0, metrics_port=None, grpc_port=None) as endpoints:
        assert endpoints.http_port is not None
        for _ in range(count):
            with Client(endpoints.http_port) as client:
                client.send(_request(dice))
                client.socket.shutdown(1)
                assert client.is_over()
            tally.count(["over"])
        with Client(endpoints.http_port) as client:
            client.send(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
            assert client.receive().status == 200


def _request(dice: random.Random) -> bytes:
    case = dice.choice(CASES)
    body, headers = mutated(case, dice) if dice.random() < 0.5 else (case.body, {})
    lines = [
        f"{case.method} {case.path} HTTP/1.1".encode(),
        b"Host: x",
        b"Content-Length: %d" % len(body),
        *(name + b": " + value for name, value in headers.items()),
    ]
    data = b"\r\n".join(lines) + b"\r\n\r\n" + body
    return scratched(data, dice, dice.randint(1, 5), 2)


if __name__ == "__main__":
    sys.exit(main((__doc__ or "").splitlines()[0], fuzz_handlers, fuzz_endpoint))
