"""Rows 7 to 10: three sequences with integer and string ids, over streams and one by one."""

from __future__ import annotations

import asyncio
import itertools
import queue
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http

from tests.examples.site import Site

VALUES = (11, 7, 5, 3, 2, 0, 1)


@dataclass(frozen=True, slots=True)
class Sequence:
    """Values of one sequence, and what the model makes of them."""

    model: str
    id: int | str
    values: tuple[int, ...]
    expected: tuple[int, ...]

    def requests(self, module: ModuleType) -> Iterator[dict[str, Any]]:
        """Give the arguments of a client's ``infer`` for each value."""
        for number, value in enumerate(self.values, 1):
            tensor = module.InferInput("INPUT", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32))
            yield {
                "model_name": self.model,
                "inputs": [tensor],
                "outputs": [module.InferRequestedOutput("OUTPUT")],
                "request_id": f"{self.id}_{number}",
                "sequence_id": self.id,
                "sequence_start": number == 1,
                "sequence_end": number == len(self.values),
            }


def direct() -> list[Sequence]:
    """Sequences for the direct strategy: the model adds 1 to the first value."""
    made = []
    for name, first, sign in ((1000, 0, 1), (1001, 100, -1), (str(uuid.uuid4()), 20, -1)):
        values = (first, *(sign * value for value in VALUES))
        made.append(Sequence("simple_sequence", name, values, (first + 1, *values[1:])))
    return made


def oldest() -> list[Sequence]:
    """Sequences for the oldest strategy: the last value gets the correlation id added.

    That with a string id is for a model that adds up.
    """
    made = []
    for name, first, sign in ((1000, 0, 1), (1001, 100, -1)):
        values = (first, *(sign * value for value in VALUES))
        expected = (first + 1, *values[1:-1], values[-1] + name)
        made.append(Sequence("simple_dyna_sequence", name, values, expected))
    values = (20, *(-value for value in VALUES))
    sums = tuple(itertools.accumulate(values))
    expected = (*sums[:-1], sums[-1] + 1002)
    made.append(Sequence("simple_string_dyna_sequence", "1002", values, expected))
    return made


def grpc_stream(site: Site, sequences: Callable[[], list[Sequence]]) -> None:
    """All three at once on one stream; responses are matched by their request ids."""
    sent = sequences()
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.InferenceServerClient(site.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), stream_timeout=60)
        for arguments in itertools.chain.from_iterable(each.requests(grpc) for each in sent):
            client.async_stream_infer(**arguments)
        _check(sent, (answers.get(timeout=60) for each in sent for _ in each.values))


def grpc_aio_stream(site: Site, sequences: Callable[[], list[Sequence]]) -> None:
    """As `grpc_stream`, with asyncio: the stream ends with its requests."""
    sent = sequences()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for arguments in itertools.chain.from_iterable(each.requests(grpc_aio) for each in sent):
            yield arguments

    async def ask() -> list[tuple[Any, Any]]:
        async with grpc_aio.InferenceServerClient(site.grpc) as client:
            stream = client.stream_infer(requests(), stream_timeout=60)
            return [answer async for answer in stream]

    _check(sent, asyncio.run(ask()))


def grpc_sync(site: Site, sequences: Callable[[], list[Sequence]]) -> None:
    """One request after the other, with the sequence in gRPC parameters."""
    with grpc.InferenceServerClient(site.grpc) as client:
        _one_by_one(client, grpc, sequences())


def http_sync(site: Site, sequences: Callable[[], list[Sequence]]) -> None:
    """One request after the other, with the sequence in HTTP parameters."""
    with http.InferenceServerClient(site.http) as client:
        _one_by_one(client, http, sequences())


def _one_by_one(client: Any, module: ModuleType, sent: list[Sequence]) -> None:
    for sequence in sent:
        found = [
            int(client.infer(**arguments).as_numpy("OUTPUT")[0, 0])
            for arguments in sequence.requests(module)
        ]
        assert found == list(sequence.expected)


def _check(sent: list[Sequence], answers: Iterable[tuple[Any, Any]]) -> None:
    found: dict[str, list[int]] = {}
    numbers: dict[str, list[int]] = {}
    for result, error in answers:
        assert error is None, error
        name, _, number = result.get_response().id.rpartition("_")
        found.setdefault(name, []).append(int(result.as_numpy("OUTPUT")[0, 0]))
        numbers.setdefault(name, []).append(int(number))
    for sequence in sent:
        assert found[str(sequence.id)] == list(sequence.expected)
        assert numbers[str(sequence.id)] == [*range(1, len(sequence.values) + 1)]
    assert len(found) == len(sent)
