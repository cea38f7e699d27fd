"""Bodies and header fields that nobody would send: an answer each, and never our own fault.

20,000 inputs by default; ``NBTRITON_FUZZ`` sets another number, such as a million.
"""

from __future__ import annotations

import json
import os
import random
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nbtriton.engine import Server
from nbtriton.frontends.exchange import Exchange, Head, Reply
from nbtriton.frontends.handlers import Handlers
from nbtriton.frontends.service import Limits, NoControl, Service
from tests.frontends.cases import CASES, Case
from tests.frontends.raw import Client

INPUTS = int(os.environ.get("NBTRITON_FUZZ", "20000"))
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
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, 0.5, 1e308, float("nan"), float("inf"), 1 << 31, 1 << 40, 1 << 63,
    1 << 64, 1 << 200, -(1 << 63), "", "x", "IN", "\0", "\udcff", "FP32", "BYTES", "BF16", "FP16", [], {},
    [[]], [1], [1, 4], [4], [0], [-1], [1 << 33, 1 << 33], [0, 1 << 62, 8], [1] * 70, "a" * 200,
    {"binary_data_size": 4}, {"shared_memory_region": "r"}, {"classification": 1 << 40}, [None] * 4,
]  # fmt: skip


class Collected(Exchange):
    """An exchange whose answer is kept."""

    __slots__ = ("ended", "replies")

    def respond(self, reply: Reply) -> None:
        self.replies.append((reply.status, b"".join(reply.parts)))
        self.ended.append(True)

    def begin(self, status: int, content_type: bytes) -> None:
        self.replies.append((status, b""))

    def chunk(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        self.ended.append(True)

    def is_gone(self) -> bool:
        return False

    def work(self, task: Any) -> None:
        task()


def mutated(case: Case, dice: random.Random) -> tuple[bytes, dict[bytes, bytes]]:
    """A request somewhat like a real one."""
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
                document = changed(document, dice)
            text = json.dumps(document).encode("utf-8", "surrogatepass")
    if kind == 0 or dice.random() < 0.1:
        raw = bytearray(text)
        for _ in range(dice.randint(1, 4)):
            at = dice.randint(0, len(raw))
            raw[at : at + dice.randint(0, 3)] = dice.randbytes(dice.randint(0, 3))
        text = bytes(raw)
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


def changed(value: Any, dice: random.Random) -> Any:
    """Change one place of a document."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        if dice.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.7:
        at = dice.randrange(len(value))
        return [*value[:at], changed(value[at], dice), *value[at + 1 :]]
    return dice.choice(ODD)


@pytest.fixture
def handlers(server: Server) -> Iterator[Handlers]:
    service = Service(server, NoControl(server), limits=Limits(body_bytes=1 << 20))
    yield Handlers(service)
    service.shared_memory.close()


@pytest.mark.timeout(3600)
def test_every_body_has_an_answer(handlers: Handlers) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    # Without models that answer later than the handler returns: each input is done when it returns.
    cases = [case for case in CASES if "register" not in case.path]
    waiting: list[Collected] = []
    for number in range(INPUTS):
        case = dice.choice(cases)
        body, headers = mutated(case, dice)
        exchange = Collected(Head(case.method, case.path.partition("?")[0], headers), body)
        exchange.replies = []
        exchange.ended = []
        handlers.handle([exchange])
        waiting.append(exchange)
        if len(waiting) == 500 or number == INPUTS - 1:
            check(waiting)
            waiting = []


def check(exchanges: list[Collected]) -> None:
    moment = threading.Event()
    for exchange in exchanges:
        for _ in range(3000):
            if exchange.ended:
                break
            moment.wait(0.01)
        assert exchange.ended, (exchange.head.path, exchange.body)
        assert len(exchange.replies) == 1, (exchange.head.path, exchange.body)
        ((status, body),) = exchange.replies
        assert status in (200, 400, 404, 405, 500, 501, 503)
        if status == 500:
            error = json.loads(body)["error"]
            assert error.startswith(THEIR_500), (
                exchange.head.path,
                exchange.body,
                exchange.head.headers,
                error,
            )


@pytest.mark.timeout(3600)
def test_bytes_on_the_wire(port: int) -> None:
    """Whole requests with bytes changed: the server answers or hangs up, and goes on."""
    dice = random.Random(random.SystemRandom().getrandbits(32))
    for _ in range(max(200, INPUTS // 50)):
        case = dice.choice(CASES)
        lines = [
            f"{case.method} {case.path} HTTP/1.1",
            "Host: x",
            f"Content-Length: {len(case.body)}",
        ]
        data = bytearray("\r\n".join(lines).encode() + b"\r\n\r\n" + case.body)
        for _ in range(dice.randint(1, 5)):
            at = dice.randrange(len(data))
            data[at : at + dice.randint(0, 2)] = dice.randbytes(dice.randint(0, 2))
        with Client(port) as client:
            client.send(bytes(data))
            client.socket.shutdown(1)
            assert client.is_over()
    with Client(port) as client:
        client.send(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert client.receive().status == 200
