"""The short form of `python -m tests.frontends.crowded`: answers and memory, not time."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Iterator

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

from tests.frontends.crowded import MESSAGES, TEXTS, memory_mb, send_message, send_text
from tests.frontends.starving import serve_until

pytestmark = pytest.mark.slow  # starts a server, and sends it 60 MB

# By the name of the request: its size, the beginning of the answer, and megabytes of memory for it. A
# message of 60 MB is there three times: as unpacked, as a copy, and without its contents.
FIELDS = "3 the message has more than 65536 fields"
STRINGS = "a BYTES tensor has more than 4194304 elements"
GRPC = {
    "inputs": (1.0, FIELDS, 300),
    "few inputs": (1.0, FIELDS, 50),
    "outputs": (0.1, FIELDS, 50),
    "parameters": (0.1, FIELDS, 50),
    "names": (0.1, FIELDS, 50),
    "dimensions": (0.1, FIELDS, 50),
    "BYTES": (0.15, f"3 {STRINGS}", 300),
    "raw BYTES": (0.3, f"3 {STRINGS}", 300),
    "FP32": (1.0, "3 [request id: <id_unknown>] inference request batch-size must be <= 8", 300),
    "INT32": (0.2, "3 [request id: <id_unknown>] inference input 'IN' data-type", 300),
    "unpacked": (0.1, FIELDS, 50),
}
MEMBERS = "more than 65536 members of objects"
HTTP = {
    "numbers": (0.1, "[request id: <id_unknown>] inference request batch-size must be <= 8", 300),
    "doubles": (0.1, "[request id: <id_unknown>] inference request batch-size must be <= 8", 300),
    "wrong number": (0.1, "Unable to parse 'data': ", 300),
    "broken numbers": (0.1, "Missing a comma or ']' after an array element", 300),
    "broken rows": (0.1, "Missing a comma or ']' after an array element", 300),
    "not UTF-8": (0.1, "the JSON of a long request must be UTF-8", 300),
    "no inputs": (0.1, "attempt to access JSON non-array as array", 300),
    "no object": (0.1, "more than 1048576 elements", 300),
    "rows": (0.15, "more than 1048576 lists", 300),
    "strings": (1.0, "more than 4194304 strings", 300),
    "parameters": (0.1, MEMBERS, 100),
    "keys": (0.1, MEMBERS, 100),
    "objects": (0.1, "more than 65536 objects", 300),
    "inputs": (0.1, MEMBERS, 100),
    "lists": (0.1, "more than 1048576 lists", 300),
    "dimensions": (1.0, "input byte size mismatch", 300),
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, tuple[int, int]]]:
    """The server's process and its ports."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    serving = context.Process(target=serve_until, args=(theirs,), daemon=True)
    serving.start()
    assert serving.pid is not None
    yield serving.pid, ours.recv()
    ours.send(None)
    serving.join(60)


def test_every_request_of_the_command_is_here() -> None:
    assert (GRPC.keys(), HTTP.keys()) == (MESSAGES.keys(), TEXTS.keys())


@pytest.mark.parametrize("name", GRPC)
def test_a_crowded_message(server: tuple[int, tuple[int, int]], name: str) -> None:
    scale, expected, most_mb = GRPC[name]
    before = memory_mb(server[0])
    before = memory_mb(server[0])
    assert send_message(MESSAGES[name](scale), server[1][1]).startswith(expected)
    assert memory_mb(server[0]) - before < most_mb


@pytest.mark.parametrize("name", HTTP)
def test_a_crowded_text(server: tuple[int, tuple[int, int]], name: str) -> None:
    scale, expected, most_mb = HTTP[name]
    before = memory_mb(server[0])
    before = memory_mb(server[0])
    assert expected in send_text(TEXTS[name](scale), server[1][0])
    assert memory_mb(server[0]) - before < most_mb
