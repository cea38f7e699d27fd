"""Mutated frames for the gRPC endpoint: no crash, no hang, no leak.

    python -m tests.frontends.http2_fuzz                       20,000 conversations
    python -m tests.frontends.http2_fuzz --conversations 500 --seed 7

A conversation of valid frames is changed frame by frame and byte by byte, sent in pieces of any size
and ended in any of the ways in which clients end. A connection beside it, which is left alone, has to
be answered throughout.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nbtriton.extensions.grpc.calls import Call
from nbtriton.extensions.grpc.connection import GrpcConnection
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import serve
from tests.frontends.fuzzing import load_models, scratched
from tests.frontends.grpc_support import infer, tensor
from tests.frontends.http2_raw import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INFER,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    STREAM,
    WINDOW_UPDATE,
    Client,
    fields,
    frame,
    number,
    prefixed,
    setting,
)
from tests.seeds import free_seed

__all__ = ["fuzz_frames"]

WAIT_S = 60.0
# An instance may still execute a request of a client that has disconnected: a call and its connection for each model.
KEPT = 12
BODIES = tuple(
    prefixed(message.SerializeToString())
    for message in (
        infer("one"),
        infer("one", request_id="a"),
        infer("nope"),
        infer("stream", [tensor(datatype="INT32", shape=[1])], [b"\x03\0\0\0"]),
        infer("flexible", [tensor(datatype="INT32", shape=[20_000])], [bytes(80_000)]),
    )
)
_SETTINGS = ((1, 0), (1, 4096), (4, 0), (4, 100), (4, 1 << 20), (5, 16_384), (5, 1 << 20), (6, 100))


def conversation(dice: random.Random) -> list[bytes]:
    """Return frames of a client that does everything right."""
    frames = [frame(SETTINGS)]
    for stream in range(1, 2 * dice.randint(1, 8), 2):
        frames += _call(stream, dice)
        kind = dice.random()
        if kind < 0.1:
            frames.append(setting(*dice.choice(_SETTINGS)))
        elif kind < 0.2:
            at = dice.choice((0, stream))
            frames.append(frame(WINDOW_UPDATE, 0, at, number(dice.choice((1, 1000, 1 << 20)))))
        elif kind < 0.3:
            frames.append(frame(RST_STREAM, 0, stream, number(8)))
        elif kind < 0.4:
            frames.append(frame(PING, dice.choice((0, ACK)), 0, b"........"))
    return frames


def _call(stream: int, dice: random.Random) -> Iterator[bytes]:
    block = fields(
        {b":path": dice.choice((INFER, STREAM, b"/inference.GRPCInferenceService/ServerLive"))},
        [(b"grpc-timeout", b"%d%s" % (dice.randint(0, 9), dice.choice((b"m", b"S"))))] * (dice.random() < 0.2),
    )  # fmt: skip
    cut = dice.randint(0, len(block)) if dice.random() < 0.2 else len(block)
    yield frame(HEADERS, 0 if cut < len(block) else END_HEADERS, stream, block[:cut])
    if cut < len(block):
        yield frame(CONTINUATION, END_HEADERS, stream, block[cut:])
    body = b"".join(dice.choices(BODIES, k=dice.choice((1, 1, 1, 3))))
    while len(body) > 200 and dice.random() < 0.5:
        size = dice.randint(1, len(body) - 1)
        yield frame(DATA, 0, stream, body[:size])
        body = body[size:]
    if dice.random() < 0.2:
        yield frame(DATA, PADDED | END_STREAM, stream, b"\x04" + body + bytes(4))
    else:
        yield frame(DATA, END_STREAM, stream, body)


def changed(frames: Sequence[bytes], dice: random.Random) -> bytes:
    """Return what is sent in the end."""
    found = list(frames)
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        at = dice.randrange(len(found))
        kind = dice.random()
        if kind < 0.15:
            found.insert(at, dice.choice(found))
        elif kind < 0.3 and len(found) > 1:
            del found[at]
        elif kind < 0.6:  # length, kind, flags or stream
            one = bytearray(found[at] or bytes(9))
            one[dice.randrange(min(9, len(one)))] = dice.choice(
                (0, 1, 2, 4, 8, 255, dice.randrange(256))
            )
            found[at] = bytes(one)
        elif kind < 0.75:
            found.insert(at, frame(dice.randrange(11), dice.randrange(256), dice.choice((0, 1, 3, 9)), dice.randbytes(dice.choice((0, 1, 4, 8, 30)))))  # fmt: skip
        else:
            found[at] = scratched(found[at], dice, 1, 3)
    data = PREFACE + b"".join(found)
    return data[: dice.randint(0, len(data))] if dice.random() < 0.1 else data


def _converse(port: int, data: bytes, dice: random.Random) -> None:
    """Send it, end in some way, and wait for the server to hang up."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        try:
            while data:
                size = dice.choice((1, 9, 100, 5000, len(data)))
                client.sendall(data[:size])
                data = data[size:]
            if dice.random() < 0.1:  # as a process that dies
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
        except ConnectionError:  # the server has had enough
            pass


class _ErrorLog(logging.Handler):
    """Collects errors that are logged: a client must not cause any."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def _error_log() -> Iterator[_ErrorLog]:
    errors = _ErrorLog()
    loggers = [logging.getLogger(name) for name in ("asyncio", "nbtriton")]
    for logger in loggers:
        logger.addHandler(errors)
    try:
        yield errors
    finally:
        for logger in loggers:
            logger.removeHandler(errors)


def fuzz_frames(server: Server, count: int, seed: int, *, every: int = 1000) -> None:
    """Have that many conversations; raises AssertionError at the first fault."""
    print(f"seed {seed}, {count:,} conversations", flush=True)
    dice = random.Random(seed)
    before = _alive()
    began_s = time.monotonic()
    with _error_log() as errors:
        with (
            serve(server, http_port=None, metrics_port=None, grpc_port=0) as endpoints,
            Client(endpoints.grpc_port or 0) as beside,
        ):
            for done in range(1, count + 1):
                data = changed(conversation(dice), dice)
                try:
                    _converse(endpoints.grpc_port or 0, data, dice)
                except TimeoutError:
                    raise AssertionError(("the server does not hang up", data)) from None
                assert not errors.records, (errors.records[0].getMessage(), data)
                stream = 2 * done - 1
                beside.send(
                    frame(HEADERS, END_HEADERS, stream, fields()),
                    frame(DATA, END_STREAM, stream, BODIES[0]),
                    frame(WINDOW_UPDATE, 0, 0, number(1000)),
                )
                assert beside.answer(stream).status == (0, ""), data
                if not done % every:
                    print(f"{done:>8,}, {done / (time.monotonic() - began_s):,.0f} a second", flush=True)  # fmt: skip
        assert not errors.records, errors.records[0].getMessage()
    kept = _alive() - before
    assert sum(kept.values()) <= KEPT, ("connections or calls are kept", kept)


def _alive() -> Counter[str]:
    gc.collect()
    kinds = map(type, gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if issubclass(kind, GrpcConnection | Call))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--conversations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=free_seed())
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(gpus=()) as server:
        load_models(server, Path(folder))
        fuzz_frames(server, arguments.conversations, arguments.seed)
    print("no crash, no hang, nothing kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
