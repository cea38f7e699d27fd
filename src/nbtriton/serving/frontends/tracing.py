"""Sampling of traces and the trace file: Triton's trace settings."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nbtriton.common.checks import NAME, Kind, check, whole
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine import Activity, SpanContext, TensorActivity, Trace, TraceSample

_log = logging.getLogger("nbtriton.trace")

TRACE_LEVELS = ("TIMESTAMPS", "TENSORS")
# Arrival of the first and last byte, for a request that is not traced.
NOT_SEEN = (0, 0)
_NUMBER = re.compile(r"\s*([+-]?\d+)")
_INT32 = range(-(1 << 31), 1 << 31)
_RANGES = {
    "trace_rate": "[ 0, 4294967295 ]",
    "trace_count": "[ -1, 2147483647 ]",
    "log_frequency": "[ 0, 4294967295 ]",
}
# Datatypes without text in Triton's file.
_UNWRITTEN = ("FP16", "BF16")


def parse_number(name: str, text: str) -> int:
    """Read a number of the trace settings as C++'s ``stoi`` does.

    Parameters
    ----------
    name : str
        ``"trace_rate"``, ``"trace_count"`` or ``"log_frequency"``.
    text : str
        Text after the digits is ignored.

    Raises
    ------
    InvalidArgumentError
        The text does not begin with a number, or the number exceeds 32 bits.
    """
    found = _NUMBER.match(text)
    if found is None:
        raise InvalidArgumentError(f"Unable to parse '{name}', got: {text}")
    digits = found[1]
    # Python refuses to read thousands of digits; eleven are too many already.
    value = int(digits) if len(digits.lstrip("+-0")) <= 10 else 1 << 40
    if value not in _INT32:
        raise InvalidArgumentError(
            f"Unable to parse '{name}', value is out of range {_RANGES[name]}, got: {text}"
        )
    return value if name == "trace_count" else value % (1 << 32)


@dataclass(frozen=True, slots=True)
class TraceValues:
    """Triton's trace settings.

    Parameters
    ----------
    level : frozenset of str
        ``"TIMESTAMPS"``, ``"TENSORS"`` or both; empty for off.
    rate : int
        One in `rate` requests is traced.
    count : int
        Requests still to be traced; -1 for no limit.
    log_frequency : int
        Traces per file ``FILE.0``, ``FILE.1``, …; 0 for one file at the end.

    Examples
    --------
    >>> TraceValues(level=frozenset({"TIMESTAMPS"}), rate=1).count
    -1
    """

    level: frozenset[str] = frozenset()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


class Spans(Protocol):
    """What receives the traces in place of a file: an entry of ``nbtriton.tracers``, called with `OpenTelemetry`."""

    def settings(self) -> dict[str, str]:
        """Return the settings as Triton reports them."""

    def parent(self, traceparent: str, tracestate: str) -> SpanContext | None:
        """Return the client's span from its header fields; None without a valid one."""

    def export(self, sample: TraceSample, remote: SpanContext | None) -> None:
        """Take a completed trace; `remote` is the client's span."""

    def close(self) -> None:
        """Send what is queued."""


class Tracing:
    """General and per-model trace settings, and the traces taken by them.

    Parameters
    ----------
    file : str
        The trace file; clients cannot change it, and without one tracing stays off.
    values : TraceValues, optional
        Initial settings; a general setting that is cleared returns to its initial value.
    spans : Spans, optional
        Receives the traces in place of a file.

    Attributes
    ----------
    on : bool
        False while no model is traced: the only check on an untraced request.
    """

    def __init__(
        self, file: str = "", values: TraceValues | None = None, spans: Spans | None = None
    ) -> None:
        self.on = False
        self.spans = spans
        self._lock = threading.Lock()
        self._file = _TraceFile(file)
        self._start = values or TraceValues()
        check_values(self._start, file, spans=spans is not None)
        # Set by clients, and in force.
        self._given: dict[str, dict[str, Any]] = {"": {}}
        self._sampling = {"": _Sampling(self._start, self._file, spans)}
        self._look()

    def get(self, model: str = "") -> dict[str, Any]:
        """Return the settings as Triton reports them: all values are strings.

        ``trace_count`` is the number of requests still to be traced.
        """
        with self._lock:
            found = self._of(model).values
        settings = {
            "trace_level": [level for level in TRACE_LEVELS if level in found.level] or ["OFF"],
            "trace_rate": str(found.rate),
            "trace_count": str(found.count),
        }
        if self.spans is not None:
            return {**settings, "trace_mode": "opentelemetry", **self.spans.settings()}
        return {
            **settings,
            "log_frequency": str(found.log_frequency),
            "trace_file": self._file.path,
            "trace_mode": "triton",
        }

    def update(self, model: str, changes: Mapping[str, Any]) -> None:
        """Change settings; traces in progress keep theirs.

        Parameters
        ----------
        model : str
            Empty for the general settings.
        changes : mapping
            Any of ``level`` (frozenset of str), ``rate``, ``count``, ``log_frequency`` (int);
            None clears a setting: then the general setting applies, or the initial one.

        Raises
        ------
        InvalidArgumentError
            The resulting settings are invalid; nothing has changed.
        """
        with self._lock:
            given = self._still_given(model)
            for name, value in changes.items():
                if value is None:
                    given.pop(name, None)
                else:
                    given[name] = value
            general = self._start if not model else self._sampling[""].values
            values = {model: replace(general, **given)}
            if not model:  # models inherit the general settings
                for other in self._given:
                    if other:
                        values[other] = replace(values[""], **self._still_given(other))
            for each in values.values():
                check_values(each, self._file.path, spans=self.spans is not None)
            self._given[model] = given
            ended = [self._sampling.pop(name) for name in values if name in self._sampling]
            for name, each in values.items():
                self._sampling[name] = _Sampling(each, self._file, self.spans)
            if model and not given:  # the model has no own setting left
                ended.append(self._sampling.pop(model))
                del self._given[model]
            self._look()
        for old in ended:
            old.retire()

    def parent(
        self, traceparent: str | bytes | None, tracestate: str | bytes | None
    ) -> SpanContext | None:
        """Return the client's span from its header fields; None without OpenTelemetry."""
        if self.spans is None or not traceparent:
            return None
        return self.spans.parent(_latin(traceparent), _latin(tracestate or ""))

    def sample(self, model: str, parent: SpanContext | None = None) -> Trace | None:
        """Return a trace if the request is sampled, else None.

        The trace is complete when the request has ended and `TraceSample.release` was called, once the
        response is sent.

        Parameters
        ----------
        model : str
        parent : SpanContext, optional
            The client's span; a request with one is sampled at any rate and count.
        """
        with self._lock:
            sampling = self._of(model)
            sample = sampling.next_sample(parent)
        if sample is None:
            return None
        sample.acquire()
        return sample.begin()

    def close(self) -> None:
        """Write the remaining traces."""
        with self._lock:
            self.on = False
            ended = list(self._sampling.values())
        for sampling in ended:
            sampling.retire(closing=True)
        self._file.close()
        if self.spans is not None:
            self.spans.close()

    def _of(self, model: str) -> _Sampling:
        return self._sampling.get(model) or self._sampling[""]

    def _still_given(self, model: str) -> dict[str, Any]:
        """Return the settings by clients; the count is of the requests still to be traced."""
        given = dict(self._given.get(model, {}))
        if "count" in given:
            given["count"] = self._of(model).values.count
        return given

    def _look(self) -> None:
        self.on = any(each.active for each in self._sampling.values())


def _latin(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("latin-1")


def check_values(values: TraceValues, file: str, *, spans: bool = False) -> None:
    """Refuse a level that has no file to write to; spans need no file.

    Raises
    ------
    InvalidArgumentError
        With Triton's text.
    """
    if not values.level:
        return
    reason = None
    if values.rate == 0:
        reason = "sample rate must be non-zero"
    elif not file and not spans:
        reason = "trace file name is not given"
    elif values.count == 0:
        reason = ""  # Triton gives none
    if reason is not None:
        raise InvalidArgumentError(f"Attempting to set invalid trace setting :{reason}")


class _Sampling:
    """Settings in force, with the traces that are not yet in a file."""

    def __init__(self, values: TraceValues, file: _TraceFile, spans: Spans | None) -> None:
        self.values = values
        self._file = file
        self._spans = spans
        self._lock = threading.Lock()
        self._seen = self._taken = self._complete = 0
        self._texts: list[str] = []
        self._retired = False

    @property
    def active(self) -> bool:
        values = self.values
        if self._spans is not None:  # a client's span may sample the next request
            return bool(values.level)
        return bool(values.level) and values.rate > 0 and values.count != 0

    def next_sample(self, parent: SpanContext | None) -> TraceSample | None:
        """Count a request; return its sample if it is traced. Called by one thread at a time."""
        if not self.active:
            return None
        if self._spans is not None:
            if not self._counted() and parent is None:
                return None
            span = SpanContext.new() if parent is None else parent.child()
            return TraceSample(self.values.level, partial(self._spans.export, remote=parent), span)
        if not self._counted():
            return None
        self._taken += 1
        return TraceSample(self.values.level, self._keep)

    def _counted(self) -> bool:
        """Count a request; True if rate and count select it."""
        values = self.values
        if values.rate == 0 or values.count == 0:
            return False
        self._seen += 1
        if self._seen % values.rate:
            return False
        if values.count > 0:
            self.values = replace(values, count=values.count - 1)
        return True

    def retire(self, *, closing: bool = False) -> None:
        """End sampling by these settings; if the file closes, what has ended does not wait for the rest."""
        with self._lock:
            self._retired = True
        self._write(closing=closing and not self.values.log_frequency)

    def _keep(self, sample: TraceSample) -> None:
        text = ",".join(_written(sample))
        with self._lock:
            self._complete += 1
            if text:  # empty: refused before it was a request
                self._texts.append(text)
        self._write()

    def _write(self, *, closing: bool = False) -> None:
        values = self.values
        with self._lock:
            complete = closing or self._complete == self._taken
            full = 0 < values.log_frequency <= len(self._texts)
            counted = values.count == 0 and complete
            ended = self._retired and complete
            if not self._texts or not (full or counted or ended):
                return
            texts, self._texts = self._texts, []
        self._file.write(texts, numbered=full or counted or values.log_frequency > 0)


class _TraceFile:
    """``FILE``, and ``FILE.0``, ``FILE.1``, …: JSON lists."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._number = 0
        self._begun = False
        self._closed = False

    def write(self, texts: Sequence[str], *, numbered: bool) -> None:
        """Write traces to the next numbered file, or append them to the file without a number."""
        text = ",".join(texts)
        try:
            with self._lock:
                if numbered:
                    Path(f"{self.path}.{self._number}").write_text(f"[{text}]", "utf-8")
                    self._number += 1
                    return
                if self._closed:  # traces that end after the endpoints are not in their file
                    return
                with Path(self.path).open("a" if self._begun else "w", encoding="utf-8") as file:
                    file.write(("," if self._begun else "[") + text)
                self._begun = True
        except OSError as error:
            _log.error("failed creating trace file: %s", error)

    def close(self) -> None:
        """End the list."""
        with self._lock:
            begun, self._closed = self._begun and not self._closed, True
        if begun:
            try:
                with Path(self.path).open("a", encoding="utf-8") as file:
                    file.write("]")
            except OSError as error:
                _log.error("failed creating trace file: %s", error)


def _written(sample: TraceSample) -> Iterable[str]:
    """Yield the entries of a sample's traces, in Triton's form."""
    for trace in sample.traces:
        if not trace.model:
            continue
        entry = partial(_entry, trace.id)
        yield from (entry(timestamps=[each._asdict()]) for each in trace.before)
        about: dict[str, Any] = {"model_name": trace.model, "model_version": trace.version}
        if trace.request_id:
            about["request_id"] = trace.request_id
        if trace.parent_id:
            about["parent_id"] = trace.parent_id
        yield entry(**about)
        for activity in trace.activities:
            if isinstance(activity, Activity):
                yield entry(timestamps=[activity._asdict()])
            else:
                yield entry(activity=activity.name, tensor=_tensor(activity))
        yield from (entry(timestamps=[each._asdict()]) for each in trace.after)


def _entry(number: int, **content: Any) -> str:
    return json.dumps({"id": number, **content}, separators=(",", ":"))


def _tensor(activity: TensorActivity) -> dict[str, str]:
    data = "" if activity.datatype in _UNWRITTEN else ",".join(_texts(activity))
    return {
        "name": activity.tensor,
        "data": data,
        "shape": ",".join(map(str, activity.shape)),
        "dtype": activity.datatype,
    }


def _texts(activity: TensorActivity) -> Iterable[str]:
    """Yield the elements as C++ prints them."""
    array: Array = np.asarray(activity.array).reshape(-1)
    if activity.datatype == "BYTES":
        return (f'"{bytes(value).decode(errors="replace")}"' for value in array)
    if array.dtype.kind == "f":
        return (f"{value:g}" for value in array.tolist())
    return (str(int(value)) for value in array.tolist())


# Batch settings, named as in the flags and in OTEL_….
SPAN_NUMBERS = ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")
_TEXTS = Kind(
    lambda value: (
        isinstance(value, Mapping)
        and all(NAME.accepts(key) and isinstance(text, str) for key, text in value.items())
    ),
    "texts by name",
)
_KINDS: Mapping[str, Kind] = {
    "url": Kind(NAME.accepts, "an address"),
    "resource": _TEXTS,
    **dict.fromkeys(SPAN_NUMBERS, whole(1)),
}


@dataclass(frozen=True, slots=True)
class OpenTelemetry:
    """Triton's ``--trace-config opentelemetry,…``.

    Parameters
    ----------
    url : str
        A collector's address for OTLP over HTTP.
    resource : mapping of str to str
        Attributes of the server, such as ``service.name``.
    bsp_max_queue_size : int
        Spans that may wait to be sent; further spans are lost.
    bsp_schedule_delay : int
        Milliseconds between two batches.
    bsp_max_export_batch_size : int
        Limit of spans in a batch; at most the queue's size.

    Raises
    ------
    InvalidArgumentError
        A value is of the wrong kind.

    Examples
    --------
    >>> OpenTelemetry(resource={"service.name": "notebook"}).url
    'http://localhost:4318/v1/traces'
    """

    url: str = "http://localhost:4318/v1/traces"
    resource: Mapping[str, str] = field(default_factory=dict)
    bsp_max_queue_size: int = 2048
    bsp_schedule_delay: int = 5000
    bsp_max_export_batch_size: int = 512

    def __post_init__(self) -> None:
        check({name: getattr(self, name) for name in _KINDS}, _KINDS)
