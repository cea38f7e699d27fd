"""`pb_utils.MetricFamily`: a model's own metrics, kept per server while their objects exist."""

from __future__ import annotations

import bisect
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from nbtriton.backends.base import ServerHandle
from nbtriton.backends.forking import per_process
from nbtriton.backends.python.api.pybind import (
    BoundEnum,
    TritonModelException,
    as_text,
    incompatible,
)
from nbtriton.backends.python.running import current, with_instance


class MetricKind(BoundEnum):
    """Triton's kinds of metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


@dataclass(eq=False)
class Sample:
    """The shared value of all `Metric` objects with the same family and labels."""

    labels: tuple[tuple[str, str], ...]
    bounds: tuple[float, ...] = ()
    value: float = 0.0
    count: int = 0
    total: float = 0.0
    buckets: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> float:
        """Return the value of a counter or a gauge."""
        return self.value

    def add(self, value: float) -> None:
        """Add to a counter or a gauge."""
        with self.lock:
            self.value += value

    def assign(self, value: float) -> None:
        """Set a gauge."""
        with self.lock:
            self.value = value

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        with self.lock:
            self.count += 1
            self.total += value
            self.buckets[bisect.bisect_left(self.bounds, value)] += 1


@dataclass(eq=False)
class Family:
    """The shared part of all `MetricFamily` objects of one name."""

    name: str
    description: str
    kind: MetricKind
    samples: WeakValueDictionary[tuple[tuple[str, str], ...], Sample] = field(
        default_factory=WeakValueDictionary
    )

    def sample(self, labels: tuple[tuple[str, str], ...], bounds: tuple[float, ...]) -> Sample:
        """Return the value with these labels: an existing one, or a new one."""
        with _lock():
            sample = self.samples.get(labels)
            if sample is None:
                sample = Sample(labels, bounds, buckets=[0] * (len(bounds) + 1))
                self.samples[labels] = sample
            return sample


# As in prometheus-cpp, which Triton uses.
_METRIC_NAME: Final = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_lock = per_process(threading.Lock)
_Families: TypeAlias = "WeakValueDictionary[str, Family]"
_by_server: WeakKeyDictionary[ServerHandle, _Families] = WeakKeyDictionary()
_without_server: _Families = WeakValueDictionary()


def families_of(server: ServerHandle | None) -> list[Family]:
    """Return the existing metric families of a server's models, by name."""
    with _lock():
        return sorted(_families(server).values(), key=lambda family: family.name)


def family_of(server: ServerHandle | None, name: str, description: str, kind: MetricKind) -> Family:
    """Return the family of this name on a server: an existing one, or a new one."""
    remote = getattr(server, "family_of", None)
    if remote is not None:  # the server is in another process
        found: Family = remote(name, description, kind)
        return found
    with _lock():
        families = _families(server)
        family = families.get(name)
        if family is None:
            family = families[name] = Family(name, description, kind)
        return family


class MetricFamily:
    """Metrics of one name, distinguished by labels.

    Parameters
    ----------
    name, description : str
        A second family of the same name and kind is the same family; the first description stays.
    kind : MetricFamily.COUNTER, .GAUGE or .HISTOGRAM
    """

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(kind, MetricKind):
            raise incompatible("", "kind: MetricFamily.COUNTER, .GAUGE or .HISTOGRAM", kind)
        running = current()
        if not _METRIC_NAME.fullmatch(as_text(name)):
            raise _failed("Error when creating MetricFamily", "Invalid metric name")
        server = None if running is None else running.server
        family = family_of(server, as_text(name), as_text(description), kind)
        if family.kind != kind:
            raise _failed(
                "Error when creating MetricFamily", "Family name already exists with different type"
            )
        self._family = family

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Return the metric with these labels.

        Parameters
        ----------
        labels : dict of str to str
        buckets : sequence of float
            Ascending upper bounds; for histograms, which need them.
        """
        return Metric(self._family, {} if labels is None else labels, buckets, self)


class Metric:
    """One value, or one histogram; usable while its `MetricFamily` exists."""

    def __init__(
        self,
        family: Family,
        labels: Mapping[str, str],
        buckets: Sequence[float] | None,
        owner: MetricFamily | None = None,
    ) -> None:
        self._family = family
        self._owner = None if owner is None else ref(owner)
        bounds: tuple[float, ...] = ()
        if not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if family.kind is MetricKind.HISTOGRAM:
            if buckets is None:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            if not isinstance(buckets, list):
                raise TritonModelException("Failed to create metric. Buckets must be a list.")
            bounds = tuple(float(bound) for bound in buckets)
            if list(bounds) != sorted(set(bounds)):
                raise _failed(
                    "Error when creating Metric", "Bucket Boundaries must be strictly sorted"
                )
        elif buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if not all(_LABEL_NAME.fullmatch(str(name)) for name in labels):
            raise _failed("Error when creating Metric", "Invalid label name")
        key = tuple(sorted((str(name), str(value)) for name, value in labels.items()))
        self._sample = family.sample(key, bounds)

    def increment(self, value: float) -> None:
        """Add to a counter (0 or more) or to a gauge."""
        self._check("increment")
        kind = self._family.kind
        if kind is MetricKind.HISTOGRAM:
            raise self._unsupported("increment metric", "Increment")
        if kind is MetricKind.COUNTER and value < 0:
            raise _failed(
                "Failed to increment metric value",
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by "
                "non-negative values.",
            )
        self._sample.add(value)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._check("set")
        if self._family.kind is not MetricKind.GAUGE:
            raise self._unsupported("set metric", "Set")
        self._sample.assign(float(value))

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        self._check("observe")
        if self._family.kind is not MetricKind.HISTOGRAM:
            raise self._unsupported("observe metric", "Observe")
        self._sample.observe(value)

    def value(self) -> float:
        """Return the value of a counter or a gauge."""
        self._check("get")
        if self._family.kind is MetricKind.HISTOGRAM:
            raise self._unsupported("get metric", "Value")
        return self._sample.read()

    def _check(self, what: str) -> None:
        if self._owner is not None and self._owner() is None:
            raise TritonModelException(
                f"Failed to {what} metric value: Invalid metric operation as the corresponding "
                "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER "
                "its corresponding 'Metric' objects have been deleted."
            )

    def _unsupported(self, what: str, method: str) -> TritonModelException:
        kind = f"TRITONSERVER_METRIC_KIND_{self._family.kind.name}"
        return _failed(f"Failed to {what} value", f"{kind} does not support {method}")


def _failed(what: str, reason: str) -> TritonModelException:
    return TritonModelException(f"{what}: {with_instance(reason)}")


def _families(server: ServerHandle | None) -> _Families:
    if server is None:
        return _without_server
    return _by_server.setdefault(server, WeakValueDictionary())
