"""Tests of a model: whether a row's result depends on anything but the row.

They run on a copy of the model under another name, in batches of chosen rows. They cannot know whether a
dependence is intended: a model that normalises over its batch on purpose is reported, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.config import ModelConfig, is_ensemble, output_specs
from nbtriton.engine import InferenceRequest, Submission
from nbtriton.errors import TritonError
from nbtriton.explain.settings_rules import Finding
from nbtriton.repository.samples import sample_inputs
from nbtriton.tensors import to_numpy

if TYPE_CHECKING:
    from nbtriton.engine import Server

__all__ = ["TESTS", "TOLERANCE", "model_findings"]

TOLERANCE = 1e-3
"""Largest relative difference, by the largest number of an output; 1e-2 for FP16 and BF16."""
_HALF_TOLERANCE = 1e-2

TESTS = {
    "runs": "it answers generated inputs, also at its max_batch_size",
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

_Arrays = Mapping[str, np.ndarray[Any, Any]]
_SUFFIX = "__doctor"
# Rows that differ from each other, and rounds with two concurrent instances.
_ROWS = 4
_ROUNDS = 40
_MOST_ROWS = 64
_WAIT_S = 60.0


def model_findings(
    server: Server, name: str, inputs: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Test a loaded model; return the failed tests of `TESTS`.

    Parameters
    ----------
    server : Server
    name : str
    inputs : mapping of str to array_like, optional
        Valid rows for the model, the batch dimension first; generated ones by default.
    """
    config = server.config(name)
    if is_ensemble(config):
        return [_skipped(name, "an ensemble has no code of its own: test the models of its steps")]
    if config.HasField("sequence_batching"):
        return [
            _skipped(name, "what a sequence model answers depends on its sequence, as it should")
        ]
    if config.model_transaction_policy.decoupled:
        return [_skipped(name, "the responses of a decoupled model are not rows")]
    with _copied(server, name, config) as copy:
        return _Tester(server, copy, name, config, inputs).run()


def _skipped(name: str, why: str) -> Finding:
    return Finding("hint", name, "tests of the model", f"not run: {why}")


@contextmanager
def _copied(server: Server, name: str, config: ModelConfig) -> Iterator[str]:
    """Load a copy of the model with one instance, which batches all simultaneous requests."""
    copy = ModelConfig()
    copy.CopyFrom(config)
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
        server.unload(copy.name, timeout_s=_WAIT_S)
        inspection.forget(copy.name)


def _set_instances(config: ModelConfig, count: int) -> None:
    for group in config.instance_group[1:]:
        config.instance_group.remove(group)
    for group in config.instance_group:
        group.count = count
        del group.gpus[1:]


class _Tester:
    """The tests of one model in order; later ones use the results of earlier ones."""

    def __init__(
        self,
        server: Server,
        copy: str,
        name: str,
        config: ModelConfig,
        inputs: Mapping[str, Any] | None,
    ) -> None:
        self._server = server
        self._copy = copy
        self._name = name
        self._config = config
        self._batches = config.max_batch_size > 0
        self._count = min(_ROWS, config.max_batch_size) if self._batches else _ROWS
        self._rows = self._split(inputs)
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        """Run all tests whose preconditions earlier tests have shown."""
        try:
            alone = [self._one(row) for row in self._rows]
            again = [self._one(row) for row in self._rows]
        except TritonError as error:
            self._found(
                "runs", f"it fails on generated inputs: {error.message.splitlines()[0]}",
                "give inputs that it understands: nt.doctor(server, name, test=True, inputs={…})",
            )  # fmt: skip
            return self._findings
        if not self._same_shapes(alone):
            return self._findings
        if not all(self._equal(a, b) for a, b in zip(alone, again, strict=True)):
            self._found(
                "repeatable", "the same request twice gave different answers",
                "it draws random numbers, or keeps state between requests; where the state is meant, "
                "use sequence batching",
            )  # fmt: skip
            return self._findings
        if self._batches and self._count > 1:
            with self._failing("runs", "it fails on a batch of several rows"):
                self._test_rows(alone)
            with self._failing("alignment", "it fails on a batch of several requests"):
                self._test_requests(alone)
            self._test_largest()
        with self._failing("threads", "it fails while two instances run at once"):
            self._test_threads(alone)
        return self._findings

    # -- tests ---------------------------------------------------------------------------------------

    def _test_rows(self, alone: Sequence[_Arrays]) -> None:
        """Test requests of several rows."""
        first, second, third = (self._rows[index % self._count] for index in (0, 1, 2))
        pair = self._of_rows(first, second)
        if pair is None:
            return
        if self._sees(pair[0], first, third) or self._sees(pair[0], first, _larger(second)):
            self._found(
                "neighbours", "a row's result changes with the other rows of its batch",
                "reduce over the axes behind the batch dimension only (axis=1 and on, not axis=0 or all)",
            )  # fmt: skip
            return
        swapped = self._of_rows(second, first)
        padded = self._of_rows(first, {key: _zeros(value) for key, value in first.items()})
        if swapped is None or padded is None:
            return
        if not self._equal(pair[0], swapped[1]) or not self._equal(pair[1], swapped[0]):
            if self._equal(pair[0], swapped[0]) and self._equal(pair[1], swapped[1]):
                self._found(
                    "alignment", "the rows of the output are not those of the input",
                    "keep the order of the rows",
                )  # fmt: skip
            else:
                self._found(
                    "order", "a row's result changes with its place in the batch",
                    "nothing may depend on the index of a row",
                )  # fmt: skip
            return
        if not self._equal(pair[0], padded[0]):
            self._found(
                "padding", "a row's result changes when the row behind it is all zeros",
                "nothing may depend on the values of other rows",
            )  # fmt: skip
            return
        for count in range(2, self._count + 1):
            several = self._of_rows(*self._rows[:count])
            if several is None:
                return
            if not all(self._equal(a, b) for a, b in zip(several, alone, strict=False)):
                self._found(
                    "batch size", f"a row's result is another one in a batch of {count} rows than alone",
                    "nothing may depend on the number of rows",
                )  # fmt: skip
                return

    def _sees(self, expected: _Arrays, row: _Arrays, other: _Arrays) -> bool:
        """Return True if another row in a batch changes a row's result; a refused batch does not."""
        try:
            rows = self._of_rows(row, other)
        except TritonError:
            return False
        return rows is not None and not self._equal(expected, rows[0])

    def _test_requests(self, alone: Sequence[_Arrays]) -> None:
        """Test a batch of several requests: each has to get its own response."""
        results = self._together(self._rows[: self._count])
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
        most = self._config.max_batch_size
        if most <= self._count or most > _MOST_ROWS:
            return
        with self._failing("runs", f"it fails on a batch of its max_batch_size, {most} rows"):
            self._of_rows(*(self._rows[index % self._count] for index in range(most)))

    def _test_threads(self, alone: Sequence[_Arrays]) -> None:
        config = self._server.config(self._copy)
        _set_instances(config, 2)
        config.ClearField("dynamic_batching")
        self._server.load(config, self._server.engine.inspection.source(self._name))
        interval = sys.getswitchinterval()
        # The shortest thread switch interval, so that rare races are seen soon.
        sys.setswitchinterval(1e-6)
        try:
            for turn in range(_ROUNDS):
                picked = [(turn + index) % len(self._rows) for index in range(_ROWS)]
                results = self._together([self._rows[index] for index in picked])
                if not all(
                    self._equal(own, alone[index])
                    for own, index in zip(results, picked, strict=True)
                ):
                    self._found(
                        "threads", "two instances that ran at once gave wrong answers",
                        "keep what changes in self, not in globals, class attributes or a shared "
                        'buffer; or parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }',
                    )  # fmt: skip
                    return
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
            return [sample_inputs(self._config, seed=seed) for seed in range(_ROWS)]
        whole = sample_inputs(self._config, size=_ROWS, seed=1)
        return [{k: v[index : index + 1] for k, v in whole.items()} for index in range(self._count)]

    def _one(self, inputs: _Arrays) -> _Arrays:
        found = self._server.infer(self._copy, inputs)
        return {key: to_numpy(value) for key, value in found.items()}

    def _of_rows(self, *rows: _Arrays) -> list[_Arrays] | None:
        """Send rows as one request; return the rows of its response, None if their number differs."""
        found = self._one({key: np.concatenate([row[key] for row in rows]) for key in rows[0]})
        for key, value in found.items():
            if value.shape[:1] != (len(rows),):
                self._found(
                    "shape", f"output '{key}' has the shape {list(value.shape)} for {len(rows)} rows",
                    "the first dimension of every output is the batch's",
                )  # fmt: skip
                return None
        return [{k: v[index : index + 1] for k, v in found.items()} for index in range(len(rows))]

    def _together(self, requests: Sequence[_Arrays]) -> list[_Arrays]:
        """Send requests simultaneously; return their responses.

        Raises
        ------
        TritonError
            The first error of a response.
        """
        answers: list[Response | None] = [None] * len(requests)
        done = threading.Semaphore(0)

        def receive(index: int) -> Any:
            def on_response(_: InferenceRequest, response: Response, final: bool) -> None:
                answers[index] = response
                if final:
                    done.release()

            return on_response

        calls = [
            Submission(self._copy, -1, inputs, RequestOptions(), receive(at))
            for at, inputs in enumerate(requests)
        ]
        for accepted in self._server.engine.dispatcher.submit_many(calls):
            if isinstance(accepted, TritonError):
                raise accepted
        for _ in calls:
            if not done.acquire(timeout=_WAIT_S):
                raise TritonError(f"no answer within {_WAIT_S:g} s")
        found: list[_Arrays] = []
        for answer in answers:
            assert answer is not None
            if answer.error is not None:
                raise answer.error
            found.append({key: to_numpy(value) for key, value in answer.outputs.items()})
        return found

    # -- judgement -----------------------------------------------------------------------------------

    def _same_shapes(self, alone: Sequence[_Arrays]) -> bool:
        specs = output_specs(self._config)
        for key, value in alone[0].items():
            dims = list(specs[key].dims) if key in specs else []
            shape = list(value.shape)
            wanted = [1, *dims] if self._batches else dims
            if len(shape) != len(wanted) or any(
                w not in (-1, s) for w, s in zip(wanted, shape, strict=True)
            ):
                self._found(
                    "shape", f"output '{key}' has the shape {shape}, and its configuration says {wanted}",
                    "Triton passes it on as it is; clients rely on what is declared",
                )  # fmt: skip
                return False
        return True

    def _equal(self, one: _Arrays, other: _Arrays) -> bool:
        return set(one) == set(other) and all(
            _close(value, other[key]) for key, value in one.items()
        )

    @contextmanager
    def _failing(self, test: str, text: str) -> Iterator[None]:
        try:
            yield
        except TritonError as error:
            self._found(test, f"{text}: {error.message.splitlines()[0]}", TESTS[test])

    def _found(self, test: str, text: str, fix: str) -> None:
        self._findings.append(Finding("error", self._name, test, text, TESTS[test], fix))


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
