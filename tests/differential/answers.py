"""What was answered, as plain data, and which requests shared an execution or came together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Answer", "Outcome", "batches_of", "groups_of", "without_seen"]

# Answers that are sent at once are at most so far apart when they arrive.
TOGETHER_S = 0.15


@dataclass
class Answer:
    """What a client sees of one request; of a stream, its responses in ``responses``."""

    outputs: dict[str, tuple[str, list[int], list[Any]]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    status: str = "OK"
    message: str = ""
    responses: list[Answer] = field(default_factory=list)
    took_s: float = field(default=0.0, compare=False)
    at_s: float = field(default=0.0, compare=False)


@dataclass
class Outcome:
    """Everything that the two servers must agree on."""

    answers: list[Answer]
    batches: list[list[int]]
    statistics: dict[str, Any]
    # Answers that come together are one group: their order on the wire is undefined.
    order: list[list[int]] = field(default_factory=list)


def _executions(answers: Sequence[Answer]) -> Iterator[tuple[str, int, int, int]]:
    for request, answer in enumerate(answers):
        if "SEEN" in answer.outputs:
            instance, execution, position = answer.outputs["SEEN"][2][0].decode().split()
            yield instance, int(execution), int(position), request


def batches_of(answers: Sequence[Answer]) -> list[list[int]]:
    """Return which requests (by place in the traffic) each execution held, in order.

    Which of several idle instances takes a batch is unspecified, so executions are listed by the
    first request in them.
    """
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for instance, execution, position, request in _executions(answers):
        found.setdefault((instance, execution), []).append((position, request))
    ordered = sorted(found.items(), key=lambda item: item[0][1])
    lists = [[request for _, request in sorted(members)] for _, members in ordered]
    several = len({instance for instance, _ in found}) > 1
    return sorted(lists) if several else lists


def groups_of(answers: Sequence[Answer]) -> list[list[int]]:
    """Return the answers by place in the traffic, those that came together in one group."""
    groups: list[list[int]] = []
    last = float("-inf")
    for number in sorted(range(len(answers)), key=lambda n: answers[n].at_s):
        if answers[number].at_s - last > TOGETHER_S:
            groups.append([])
        groups[-1].append(number)
        last = answers[number].at_s
    return [sorted(group) for group in groups]


def without_seen(answer: Answer) -> Answer:
    outputs = {name: value for name, value in answer.outputs.items() if name != "SEEN"}
    return replace(answer, outputs=outputs)
