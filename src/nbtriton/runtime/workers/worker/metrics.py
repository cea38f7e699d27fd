"""A model's own metrics: the values are in the engine's process, shared by all instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.backends.python.api.metrics import Family, MetricKind, Sample

if TYPE_CHECKING:
    from nbtriton.runtime.workers.worker.core.worker import Worker

__all__ = ["RemoteFamily"]


class RemoteFamily(Family):
    """A family, by its number in the engine's process."""

    def __init__(self, worker: Worker, name: str, description: str, kind: MetricKind) -> None:
        number, found = worker.ask("family", (name, description, int(kind)))
        super().__init__(name, description, MetricKind(found))
        self._worker = worker
        self._number = number

    def sample(self, labels: tuple[tuple[str, str], ...], bounds: tuple[float, ...]) -> Sample:
        """Return the value with these labels."""
        number = self._worker.ask("sample", (self._number, labels, bounds))
        return _RemoteSample(self._worker, number)

    def __del__(self) -> None:
        # Not a message: a finalizer may run anywhere, also while one is being sent.
        self._worker.dropped_metrics[0].append(self._number)


class _RemoteSample(Sample):
    def __init__(self, worker: Worker, number: int) -> None:
        super().__init__(())
        self._worker = worker
        self._number = number

    def read(self) -> float:
        return float(self._worker.ask("value", (self._number,)))

    def add(self, value: float) -> None:
        self._worker.note("metric", (self._number, "add", float(value)))

    def assign(self, value: float) -> None:
        self._worker.note("metric", (self._number, "assign", float(value)))

    def observe(self, value: float) -> None:
        self._worker.note("metric", (self._number, "observe", float(value)))

    def __del__(self) -> None:
        self._worker.dropped_metrics[1].append(self._number)
