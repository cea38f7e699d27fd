"""What a figure of the scheduler shows, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbtriton.drawing.scene import Shape
from nbtriton.drawing.timeline import Mark


@dataclass(frozen=True, slots=True)
class FigureModel:
    """One model: its instances; an ensemble has none. ``slots`` of each instance hold sequences."""

    name: str
    instances: tuple[str, ...]
    slots: int = 0
    ensemble: bool = False


@dataclass(frozen=True, slots=True)
class FigureRequest:
    """One request to one model; times in milliseconds since the begin.

    Attributes
    ----------
    label : str
        Short: it stands in a token.
    lane : int
        The instance that ran it, -1 for none.
    left_ms : float
        When its batch left; of one that never ran, when it was answered.
    slot, slot_ms : int, float
        The slot of its sequence on that instance, and since when; -1 without one.
    arrive, leave, end : int
        The moments from which it waits, from which it runs, and from which it is gone.
    client : int
        Its number among the clients' arrivals, -1 for a step of an ensemble.
    """

    label: str
    model: int
    lane: int
    arrival_ms: float
    left_ms: float
    answered_ms: float
    title: str
    failed: bool = False
    slot: int = -1
    slot_ms: float = 0.0
    arrive: int = 0
    leave: int = 0
    end: int = 0
    client: int = -1


@dataclass(frozen=True, slots=True)
class FigureBatch:
    """One batch on one instance, from the moment ``leave`` until the moment ``end``."""

    model: int
    lane: int
    begin_ms: float
    end_ms: float
    rows: int
    labels: tuple[str, ...]
    mark: Mark
    leave: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class FigureMoment:
    """A time at which something happens, in words."""

    at_ms: float
    words: str


@dataclass(frozen=True, slots=True)
class FigurePicture:
    """All that a figure shows. Without batches only what comes is drawn, not what becomes of it."""

    title: str
    finding: str
    models: tuple[FigureModel, ...]
    requests: tuple[FigureRequest, ...]
    batches: tuple[FigureBatch, ...]
    moments: tuple[FigureMoment, ...]
    span_ms: float
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A picture that moves.

    Attributes
    ----------
    scene : Shape
        Tokens are groups with ``data-token``, reasons with ``data-from`` and ``data-until``.
    places : list
        For each token ``[moment, x, y, state]`` where that changes; state 0 is gone, 1 waits, 2 runs.
    plot : tuple of float
        Left end and width of the time axis, and the top and bottom of what it covers.
    """

    scene: Shape
    places: list[list[list[float]]] = field(default_factory=list)
    plot: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
