"""The square backend: as many responses as ``IN`` says, each with that number."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    ModelContext,
    Response,
)
from nbtriton.backends.demonstration.answering import Answering
from nbtriton.backends.demonstration.signature import check_datatypes, check_names, check_one
from nbtriton.config import ModelConfig
from nbtriton.errors import InvalidArgumentError, UnknownError
from nbtriton.tensors import shape_of, to_numpy

__all__ = ["SquareBackend"]

_log = logging.getLogger("nbtriton.square")


class SquareBackend(Backend):
    """Answers a request for N with N responses ``OUT`` = N.

    Parameters of the configuration, whole numbers: ``CUSTOM_INFER_DELAY_NS`` and
    ``CUSTOM_OUTPUT_DELAY_NS`` before each response, ``CUSTOM_CANCEL_DELAY_NS`` before a cancelled
    request ends; ``CUSTOM_EMPTY_COUNT`` responses at the end that are left out, and
    ``CUSTOM_FAIL_COUNT`` before them that are errors.
    """

    name: ClassVar[str] = "square"
    needs_source: ClassVar[bool] = False

    @classmethod
    def accepts(cls, source: object) -> bool:  # noqa: ARG003 - nothing tells that it is meant
        """Return False: it is chosen by name."""
        return False

    def check(self, context: ModelContext) -> None:
        """Check the input and the output."""
        check_names(context.config, ("IN",), ("OUT",))
        check_one(context.config, "IN", "OUT")
        check_datatypes(context.config, IN="INT32", OUT="INT32")

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance."""
        return _Instance(context.name, _Behaviour.of(context.model.config))


@dataclass(frozen=True, slots=True)
class _Behaviour:
    infer_delay_s: float
    output_delay_s: float
    cancel_delay_s: float
    fail_count: int
    empty_count: int

    @classmethod
    def of(cls, config: ModelConfig) -> _Behaviour:
        return cls(
            _count(config, "CUSTOM_INFER_DELAY_NS") / 1e9,
            _count(config, "CUSTOM_OUTPUT_DELAY_NS") / 1e9,
            _count(config, "CUSTOM_CANCEL_DELAY_NS") / 1e9,
            _count(config, "CUSTOM_FAIL_COUNT"),
            _count(config, "CUSTOM_EMPTY_COUNT"),
        )


class _Instance(BackendInstance):
    def __init__(self, name: str, behaviour: _Behaviour) -> None:
        self._answering = Answering(name)
        self._behaviour = behaviour

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> None:
        timer.inputs_ready()
        for request in requests:
            self._answering.start(request, partial(_answer, request, self._behaviour))

    def finalize(self) -> None:
        self._answering.join()


def _answer(request: BackendRequest, behaviour: _Behaviour) -> None:
    given = request.inputs["IN"]
    shape = shape_of(given)
    if len(shape) == 2 and shape[0] != 1:
        raise InvalidArgumentError(
            "unexpected shape for IN input", hint="one request asks for one number: batch size 1"
        )
    number = int(to_numpy(given).reshape(-1)[0])
    if number < 0:  # Triton takes it for a count of some 10**19
        raise InvalidArgumentError(f"IN is {number}, expected 0 or more: a number of responses")
    empty = number - behaviour.empty_count
    failing = empty - behaviour.fail_count
    for index in range(number):
        if request.is_cancelled():
            time.sleep(behaviour.cancel_delay_s)
            return
        time.sleep(behaviour.infer_delay_s)
        if index >= empty:
            continue
        time.sleep(behaviour.output_delay_s)
        if index >= failing:
            request.send(Response(error=UnknownError("simulated failure")), final=False)
        else:
            request.send(Response({"OUT": np.full(shape, number, np.int32)}), final=False)


def _count(config: ModelConfig, key: str) -> int:
    """Return a parameter, 0 for one that is no number: Triton goes on without it, too."""
    if key not in config.parameters:
        return 0
    text = config.parameters[key].string_value
    if not (text.isascii() and text.isdigit()):
        _log.warning("model '%s': %s string_value is not a number: '%s'", config.name, key, text)
        return 0
    return int(text)
