"""Tests of a model: whether a row's result depends on anything but the row.

They run on a copy of the model under another name, in batches of chosen rows, for a limited time. They cannot know
whether a dependence is intended: a model that normalises over its batch on purpose is reported, too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass
from typing import Any, NoReturn

import numpy as np

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.common.errors import TritonError
from nbtriton.extensions.doctor.settings_rules import Finding
from nbtriton.model.config import ModelConfig, copy_config, is_ensemble, output_specs
from nbtriton.model.tensors import numpy_dtype, to_numpy
from nbtriton.runtime.engine import InferenceRequest, Server, Submission
from nbtriton.runtime.interrupts import wait_in_slices
from nbtriton.serving.repository.samples import sample_inputs

TOLERANCE = 1e-3
"""Largest relative difference, by the largest number of an output; 1e-2 for FP16 and BF16."""
_HALF_TOLERANCE = 1e-2
# Datatypes that NumPy has no number for.
_UNCHECKED = ("BF16", "BYTES")

TESTS = {
    "runs": "it answers generated inputs, also at its max_batch_size",
    "calls": "no model that it calls waits for it",
    "outputs": "a response has each declared output, of its declared datatype",
    "repeatable": "the same request gives the same answer",
    "shape": "outputs have the declared shapes, and as many rows as the inputs",
    "alignment": "each request of a batch gets the answer to its own inputs",
    "neighbours": "a row's result does not depend on the other rows",
    "padding": "a row's result does not depend on rows of zeros behind it",
    "order": "a row's result does not depend on its place in the batch",
    "batch size": "a row's result does not depend on how many rows there are",
    "threads": "two instances that run at once do not disturb each other",
}
"""The tests in their order, with the question of each."""

_FIXES = {
    "runs": "execute gets up to max_batch_size rows, in one request or in several: handle any number of them",
    "alignment": "execute gets several requests at once: return a response to each, in their order",
    "threads": "keep what changes in self, not in globals, class attributes or a shared buffer; or parameters "
    '{ key: "INSTANCE_ISOLATION" value { string_value: "process" } }',
}
"""What helps where a test ends with an error."""

_Arrays = Mapping[str, np.ndarray[Any, Any]]
_SUFFIX = "__doctor"
# Rows that differ from each other, and rounds with two concurrent instances.
_ROWS = 4
_ROUNDS = 40
# A request of max_batch_size rows is left out where its inputs have more bytes.
_MOST_BYTES = 1 << 28
# Requests of all tests, some of them several at once.
_SENDS = 2 * _ROWS + 2 * _ROWS + 3 + _ROUNDS
LIMIT_S = 30.0
"""Longest time of the tests of a model, in seconds."""
# Longest wait for the end of the copy: longer than the engine takes to see a deadlock.
_UNLOAD_S = 5.0


# Gets the number of the requests that were sent, of all of them about, and the test that is run.
OnTest = Callable[[int, int, str], None]


class _OutOfTimeError(Exception):
    """The time for the tests has passed."""


class _FoundError(Exception):
    """A test has found something, after which its rest says nothing."""


def model_findings(
    server: Server,
    name: str,
    inputs: Mapping[str, Any] | None = None,
    *,
    limit_s: float = LIMIT_S,
    on_test: OnTest = lambda *_: None,
) -> list[Finding]:
    """Test a loaded model; return the failed tests of `TESTS`.

    Parameters
    ----------
    server : Server
    name : str
    inputs : mapping of str to array_like, optional
        Valid rows for the model, the batch dimension first; generated ones by default.
    limit_s : float
        The tests end after this time, also where a request is not answered.
    on_test : callable, optional
        Called before each request: how many were sent, of about how many, and the test.
    """
    config = server.config(name)
    if why := untested(config):
        return [_skipped(name, why)]
    with _copied(server, name, config) as copy:
        tester = _Tester(server, copy, name, config, inputs, limit_s, on_test)
        return tester.run()


def untested(config: ModelConfig) -> str:
    """Return why a model is not tested; empty where it is."""
    if is_ensemble(config):
        return "an ensemble has no code of its own: test the models of its steps"
    if config.HasField("sequence_batching"):
        return "what a sequence model answers depends on its sequence, as it should"
    return ""


def _skipped(name: str, why: str) -> Finding:
    return Finding("hint", name, "tests of the model", f"not run: {why}")


@contextmanager
def _copied(server: Server, name: str, config: ModelConfig) -> Iterator[str]:
    """Load a copy of the model with one instance, which batches all simultaneous requests."""
    copy = copy_config(config)
    copy.name = f"{name}{_SUFFIX}"
    copy.ClearField("dynamic_batching")
    copy.ClearField("response_cache")
    if copy.max_batch_size > 1:
        copy.dynamic_batching.SetInParent()
    _set_instances(copy, 1)
    inspection = server.engine.inspection
    server.load(copy, inspection.source(name))
    try:
        yield copy.name
    finally:
        server.unload(copy.name, timeout_s=_UNLOAD_S)
        inspection.forget(copy.name)


def _set_instances(config: ModelConfig, count: int) -> None:
    for group in config.instance_group[1:]:
        config.instance_group.remove(group)
    for group in config.instance_group:
        group.count = count
        del group.gpus[1:]


@dataclass
class _Tester:
    """The tests of one model in order; later ones use the results of earlier ones."""

    server: Server
    copy: str
    name: str
    config: ModelConfig
    inputs: InitVar[Mapping[str, Any] | None]
    limit_s: float
    on_test: OnTest

    def __post_init__(self, inputs: Mapping[str, Any] | None) -> None:
        self._until_s = time.monotonic() + self.limit_s
        self._began_ns = time.monotonic_ns()
        self._test = "runs"
        self._sent = 0
        self._batches = self.config.max_batch_size > 0
        self._count = min(_ROWS, self.config.max_batch_size) if self._batches else _ROWS
        self._rows = self._split(inputs)
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        """Run all tests whose preconditions earlier tests have shown, within the time."""
        with suppress(_FoundError):
            try:
                self._run()
            except _OutOfTimeError:
                self._check_calls()
                text = (
                    f"ended after {self.limit_s:g} s in '{self._test}', with {self._sent} of some {_SENDS} requests "
                    "sent"
                )
                cause = (
                    "a request takes long, or is never answered; the tests that follow were not run"
                )
                fix = f"nt.doctor(server, name, test=True, duration_s={2 * self.limit_s:g}), or a faster model"
                self._findings.append(
                    Finding("warning", self.name, "tests of the model", text, cause, fix)
                )
        return self._findings

    def _run(self) -> None:
        try:
            if self.config.model_transaction_policy.decoupled:
                self._test_streams()
                return
            alone = [self._one(self._rows[0])]
            self._check_calls()
            alone += [self._one(row) for row in self._rows[1:]]
            again = [self._one(row) for row in self._rows]
        except TritonError as error:
            fix = "give inputs that it understands: nt.doctor(server, name, test=True, inputs={…})"
            if "decoupled mode" in error.message:
                fix = (
                    "send responses by request.get_response_sender(), and return None from execute"
                )
            text = f"it fails on generated inputs: {error.message.splitlines()[0]}"
            self._found("runs", text, fix)
        self._check_declared(alone)
        self._test = "repeatable"
        if not all(self._equal(a, b) for a, b in zip(alone, again, strict=True)):
            self._found(
                "repeatable", "the same request twice gave different answers",
                "it draws random numbers, or keeps state between requests; where the state is meant, "
                "use sequence batching",
            )  # fmt: skip
        if self._batches and self._count > 1:
            with self._failing("runs", "it fails on a batch of several rows"):
                self._test_rows(alone)
            with self._failing("alignment", "it fails on a batch of several requests"):
                self._test_requests(alone)
            self._test_largest()
        with self._failing("threads", "it fails while two instances run at once"):
            self._test_threads(alone)

    # -- tests ---------------------------------------------------------------------------------------

    def _check_calls(self) -> None:
        """Report a call that the engine refused, as it would have waited forever."""
        for model in (self.name, self.copy):
            for request in self.server.requests(model):
                if request.arrival_ns >= self._began_ns and request.error.startswith("deadlock: "):
                    self._found(
                        "calls", request.error,
                        "call another model, or give it an instance more than can wait at once",
                    )  # fmt: skip

    def _test_streams(self) -> None:
        """Test a decoupled model: each response by itself, as any number of them is right."""
        first = [self._together([row])[0] for row in self._rows]
        for responses in first:
            self._check_declared(responses)
        self._test = "repeatable"
        again = [self._together([row])[0] for row in self._rows]
        for one, other in zip(first, again, strict=True):
            same = len(one) == len(other) and all(map(self._equal, one, other))
            if not same:
                self._found(
                    "repeatable", "the same request twice gave different responses",
                    "it draws random numbers, or keeps state between requests",
                )  # fmt: skip

    def _test_rows(self, alone: Sequence[_Arrays]) -> None:
        """Test requests of several rows."""
        first, second, third = (self._rows[index % self._count] for index in (0, 1, 2))
        pair = self._of_rows(first, second)
        if self._sees(pair[0], first, third) or self._sees(pair[0], first, _larger(second)):
            self._found(
                "neighbours", "a row's result changes with the other rows of its batch",
                "reduce over the axes behind the batch dimension only (axis=1 and on, not axis=0 or all)",
            )  # fmt: skip
        swapped = self._of_rows(second, first)
        padded = self._of_rows(first, {key: _zeros(value) for key, value in first.items()})
        if not self._equal(pair[0], swapped[1]) or not self._equal(pair[1], swapped[0]):
            if self._equal(pair[0], swapped[0]) and self._equal(pair[1], swapped[1]):
                self._found(
                    "alignment", "the rows of the output are not those of the input",
                    "keep the order of the rows",
                )  # fmt: skip
            self._found(
                "order", "a row's result changes with its place in the batch",
                "nothing may depend on the index of a row",
            )  # fmt: skip
        if not self._equal(pair[0], padded[0]):
            self._found(
                "padding", "a row's result changes when the row behind it is all zeros",
                "nothing may depend on the values of other rows",
            )  # fmt: skip
        for count in range(2, self._count + 1):
            several = self._of_rows(*self._rows[:count])
            if not all(self._equal(a, b) for a, b in zip(several, alone, strict=False)):
                self._found(
                    "batch size", f"a row's result is another one in a batch of {count} rows than alone",
                    "nothing may depend on the number of rows",
                )  # fmt: skip

    def _sees(self, expected: _Arrays, row: _Arrays, other: _Arrays) -> bool:
        """Return True if another row in a batch changes a row's result; a refused batch does not."""
        try:
            rows = self._of_rows(row, other)
        except TritonError:
            return False
        return not self._equal(expected, rows[0])

    def _test_requests(self, alone: Sequence[_Arrays]) -> None:
        """Test a batch of several requests: each has to get its own response."""
        results = self._answers(self._rows[: self._count])
        for index, (own, expected) in enumerate(zip(results, alone, strict=False)):
            if self._equal(own, expected):
                continue
            swapped = any(self._equal(own, other) for other in alone)
            if swapped or not self._findings:
                which = (
                    "got the answer to another one" if swapped else "got another answer than alone"
                )
                self._found(
                    "alignment", f"request {index + 1} of {self._count} in one batch {which}",
                    "return one response per request, in the order of the requests",
                )  # fmt: skip
            return

    def _test_largest(self) -> None:
        most = self.config.max_batch_size
        if most <= self._count:
            return
        if most * sum(value.nbytes for value in self._rows[0].values()) > _MOST_BYTES:
            self._findings.append(
                _skipped(self.name, f"a batch of its max_batch_size, {most} rows, is too large")
            )
            return
        with self._failing("runs", f"it fails on a batch of its max_batch_size, {most} rows"):
            self._of_rows(*(self._rows[index % self._count] for index in range(most)))

    def _test_threads(self, alone: Sequence[_Arrays]) -> None:
        config = self.server.config(self.copy)
        _set_instances(config, 2)
        config.ClearField("dynamic_batching")
        self.server.load(config, self.server.engine.inspection.source(self.name))
        interval = sys.getswitchinterval()
        # The shortest thread switch interval, so that rare races are seen soon.
        sys.setswitchinterval(1e-6)
        try:
            for turn in range(_ROUNDS):
                picked = [(turn + index) % len(self._rows) for index in range(_ROWS)]
                results = self._answers([self._rows[index] for index in picked])
                pairs = zip(results, picked, strict=True)
                if not all(self._equal(own, alone[index]) for own, index in pairs):
                    self._found(
                        "threads", "two instances that ran at once gave wrong answers", _FIXES["threads"]
                    )  # fmt: skip
        finally:
            sys.setswitchinterval(interval)

    # -- requests ------------------------------------------------------------------------------------

    def _split(self, inputs: Mapping[str, Any] | None) -> list[_Arrays]:
        """Return requests of one row each, all of one shape."""
        if inputs is not None:
            arrays = {key: np.asarray(value) for key, value in inputs.items()}
            if not self._batches:
                return [arrays] * _ROWS
            count = min(len(value) for value in arrays.values())
            rows = [{k: v[index : index + 1] for k, v in arrays.items()} for index in range(count)]
            return [rows[index % count] for index in range(self._count)]
        if not self._batches:
            return [sample_inputs(self.config, seed=seed) for seed in range(_ROWS)]
        whole = sample_inputs(self.config, size=_ROWS, seed=1)
        return [{k: v[index : index + 1] for k, v in whole.items()} for index in range(self._count)]

    def _one(self, inputs: _Arrays) -> _Arrays:
        return self._answers([inputs])[0]

    def _of_rows(self, *rows: _Arrays) -> list[_Arrays]:
        """Send rows as one request; return the rows of its response."""
        found = self._one({key: np.concatenate([row[key] for row in rows]) for key in rows[0]})
        for key, value in found.items():
            if value.shape[:1] != (len(rows),):
                self._found(
                    "shape", f"output '{key}' has the shape {list(value.shape)} for {len(rows)} rows",
                    "the first dimension of every output is the batch's",
                )  # fmt: skip
        return [{k: v[index : index + 1] for k, v in found.items()} for index in range(len(rows))]

    def _answers(self, requests: Sequence[_Arrays]) -> list[_Arrays]:
        """Send requests simultaneously; return the response to each."""
        return [responses[0] for responses in self._together(requests)]

    def _together(self, requests: Sequence[_Arrays]) -> list[list[_Arrays]]:
        """Send requests simultaneously; return the responses to each.

        Raises
        ------
        TritonError
            The first error of a response.
        _OutOfTimeError
            No answer within the time of the tests.
        """
        self.on_test(self._sent, _SENDS, self._test)
        self._sent += 1
        answers: list[list[Response]] = [[] for _ in requests]
        done = threading.Semaphore(0)

        def receive(index: int) -> Any:
            def on_response(_: InferenceRequest, response: Response, final: bool) -> None:
                # The last one of a stream may be empty.
                if response.outputs or response.error is not None or not (final and answers[index]):
                    answers[index].append(response)
                if final:
                    done.release()

            return on_response

        calls = [
            Submission(self.copy, -1, inputs, RequestOptions(), receive(at))
            for at, inputs in enumerate(requests)
        ]
        sent = []
        for accepted in self.server.engine.dispatcher.submit_many(calls):
            if isinstance(accepted, TritonError):
                raise accepted
            sent.append(accepted)
        for _ in calls:
            left_s = self._until_s - time.monotonic()
            if not wait_in_slices(lambda seconds: done.acquire(timeout=seconds), max(0.0, left_s)):
                for each in sent:
                    each.cancel()
                raise _OutOfTimeError
        for response in (one for responses in answers for one in responses):
            if response.error is not None:
                raise response.error
        return [
            [{key: to_numpy(value) for key, value in one.outputs.items()} for one in responses]
            for responses in answers
        ]

    # -- judgement -----------------------------------------------------------------------------------

    def _check_declared(self, responses: Sequence[_Arrays]) -> None:
        """Report the first output that is not there, or not of its datatype or shape."""
        specs = output_specs(self.config)
        decoupled = self.config.model_transaction_policy.decoupled
        for response in responses:
            missing = [key for key in specs if key not in response]
            if missing and not (decoupled and not response):  # an empty response ends a stream
                self._found(
                    "outputs", f"output '{missing[0]}' is declared, and missing in a response, which has "
                    f"{', '.join(map(repr, response)) or 'none that is declared'}",
                    f'pb_utils.Tensor("{missing[0]}", …): the names are those of the configuration',
                )  # fmt: skip
            for key, value in response.items():
                spec = specs[key]
                datatype = spec.datatype
                if datatype not in _UNCHECKED and value.dtype != numpy_dtype(datatype):
                    self._found(
                        "outputs", f"output '{key}' is {value.dtype}, and its configuration says {datatype}",
                        f"return it as numpy.{numpy_dtype(datatype)}, or declare what it is",
                    )  # fmt: skip
                shape, dims = list(value.shape), list(spec.dims)
                wanted = [-1 if decoupled else 1, *dims] if self._batches else dims
                if len(shape) != len(wanted) or any(
                    w not in (-1, s) for w, s in zip(wanted, shape, strict=True)
                ):
                    self._found(
                        "shape", f"output '{key}' has the shape {shape}, and its configuration says {wanted}",
                        "Triton passes it on as it is; clients rely on what is declared",
                    )  # fmt: skip

    def _equal(self, one: _Arrays, other: _Arrays) -> bool:
        return set(one) == set(other) and all(
            _close(value, other[key]) for key, value in one.items()
        )

    @contextmanager
    def _failing(self, test: str, text: str) -> Iterator[None]:
        self._test = test
        with suppress(_FoundError):
            try:
                yield
            except TritonError as error:
                self._found(test, f"{text}: {error.message.splitlines()[0]}", _FIXES[test])

    def _found(self, test: str, text: str, fix: str) -> NoReturn:
        self._findings.append(Finding("error", self.name, test, text, TESTS[test], fix))
        raise _FoundError


def _larger(row: _Arrays) -> _Arrays:
    """Return a row that outweighs others: floats ten times as large."""
    return {key: value * 10 if value.dtype.kind == "f" else value for key, value in row.items()}


def _zeros(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if value.dtype == object:
        return np.full(value.shape, b"", object)
    return np.zeros_like(value)


def _close(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind not in "fc":
        return bool(np.array_equal(one, other))
    tolerance = _HALF_TOLERANCE if one.dtype.itemsize <= 2 else TOLERANCE
    one, other = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        scale = float(np.nanmax(np.abs(other[np.isfinite(other)]), initial=0.0))
    return bool(np.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True))
