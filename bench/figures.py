"""Figures: two sides measured in turn, their ratio, and its targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bench.session import Session

__all__ = [
    "Better", "Figure", "Measure", "Missing", "Result", "Sides", "Target", "Wrong", "alternate",
    "ratio_at_least", "ratio_at_most", "show", "spread", "together", "value_at_most",
]  # fmt: skip

Measure = Callable[[], float]
# "flat": both should be equal, and the ratio is the first divided by the second.
Better = Literal["lower", "higher", "flat"]


class Missing(Exception):  # noqa: N818  not an error: not available here
    """A side cannot be measured on this machine, with the reason."""


class Wrong(Exception):  # noqa: N818  a finding of the bench, not a fault of its code
    """The measured side behaves wrongly, with a description."""


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a ratio, or of nbtriton's own value."""

    of: Literal["ratio", "value"]
    at_least: float | None = None
    at_most: float | None = None
    # An aim is shown with the targets, but missing it is not a failure.
    aim: bool = False

    def met(self, ratio: float | None, value: float) -> bool | None:
        """Whether it is met; None without a second side."""
        found = ratio if self.of == "ratio" else value
        if found is None:
            return None
        enough = self.at_least is None or found >= self.at_least
        return enough and (self.at_most is None or found <= self.at_most)

    def text(self, unit: str) -> str:
        """Return the target as short text, such as ``>= 8x`` or ``aim <= 20 us``."""
        sign, bound = (">=", self.at_least) if self.at_most is None else ("<=", self.at_most)
        text = f"{sign} {bound:g}{'x' if self.of == 'ratio' else ' ' + unit}"
        return f"aim {text}" if self.aim else text


def ratio_at_least(bound: float) -> Target:
    """Return the target that nbtriton is at least ``bound`` times better."""
    return Target("ratio", at_least=bound)


def ratio_at_most(bound: float) -> Target:
    """Return the target that the first side is at most ``bound`` times the second."""
    return Target("ratio", at_most=bound)


def value_at_most(bound: float, *, aim: bool = False) -> Target:
    """Return a target of nbtriton's value, in the figure's unit."""
    return Target("value", at_most=bound, aim=aim)


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides, ready to be measured: each call is one round of one side."""

    ours: Measure
    # None without a second side here; the note has the reason.
    theirs: Measure | None
    note: str = ""


def together(measure: Callable[[], tuple[float, float]], note: str = "") -> Sides:
    """Return sides that are measured together in each round, in turns of a few calls.

    The speed of a shared machine varies for seconds at a time: two loops of a second each gave ratios of
    0.87 to 1.1 for a ratio of 0.97.
    """
    found: dict[int, float] = {}

    def side(index: int) -> Measure:
        def value() -> float:
            if index not in found:
                found.update(enumerate(measure()))
            return found.pop(index)

        return value

    return Sides(side(0), side(1), note)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the tables.

    Parameters
    ----------
    name : str
        ``BENCH.NAME``, such as ``kernel.one``; the history's key.
    title : str
        Description of the measurement.
    unit : str
        Unit of both sides' values.
    better : {"lower", "higher", "flat"}
        Kind of ratio: the factor by which nbtriton is better, or for ``"flat"`` the first divided by
        the second.
    against : str
        Name of the second side.
    targets : tuple of Target
    sides : callable
        Context manager that prepares both sides.
    first : str
        Name of the first side.
    """

    name: str
    title: str
    unit: str
    better: Better
    against: str
    targets: tuple[Target, ...]
    sides: Callable[[Session], AbstractContextManager[Sides]] = field(repr=False)
    first: str = "nbtriton"

    def ratio(self, ours: float, theirs: float) -> float:
        """Return the factor by which the first is better, or for ``"flat"`` larger."""
        return theirs / ours if self.better == "lower" else ours / theirs


@dataclass(frozen=True, slots=True)
class Result:
    """Results of a figure's rounds; `theirs` is empty without a second side."""

    figure: Figure
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    # Reason why a side is missing, or its wrong behaviour.
    note: str = ""
    wrong: bool = False

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ratios of the rounds.

        On a busy machine a value that is the difference of two measurements may be negative; it counts in
        the median, but has no ratio.
        """
        pairs = zip(self.ours, self.theirs, strict=bool(self.theirs))
        return tuple(self.figure.ratio(a, b) for a, b in pairs if min(a, b) > 0)

    @property
    def value(self) -> float | None:
        """Median of the first side."""
        return statistics.median(self.ours) if self.ours else None

    @property
    def other(self) -> float | None:
        """Median of the second side."""
        return statistics.median(self.theirs) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def met(self) -> bool | None:
        """Whether all targets except aims are met; None if there is none or none can be measured."""
        if self.wrong:
            return False
        targets = [target for target in self.figure.targets if not target.aim]
        if self.value is None or not targets:
            return None
        verdicts = [target.met(self.ratio, self.value) for target in targets]
        if False in verdicts:
            return False
        return None if None in verdicts else True


def alternate(figure: Figure, sides: Sides, rounds: int, say: Callable[[str], None]) -> Result:
    """Measure both sides in turn, in an order that alternates from round to round.

    A round without the second side counts only if there is no other; up to half as many rounds are added to
    replace such rounds.
    """
    pairs: list[tuple[float, float]] = []
    alone: list[float] = []
    note = sides.note
    number = lost = 0
    while number < rounds + min(lost, rounds // 2):
        found: dict[Measure, float] = {}
        turns = [side for side in (sides.ours, sides.theirs) if side is not None]
        try:
            for measure in turns if number % 2 == 0 else reversed(turns):
                found[measure] = measure()
        except Wrong as error:
            return Result(figure, note=str(error), wrong=True)
        except Missing as error:
            note = str(error)
            lost += 1
            if sides.ours not in found:
                found[sides.ours] = sides.ours()
        ours, theirs = found[sides.ours], found.get(sides.theirs) if sides.theirs else None
        if theirs is None:
            alone.append(ours)
        else:
            pairs.append((ours, theirs))
        number += 1
        beside = "" if theirs is None else f"  {figure.against} {show(theirs)}"
        say(
            f"{figure.name:<26} round {number}/{rounds + min(lost, rounds // 2)}  "
            f"{figure.first} {show(ours)}{beside} {figure.unit}"
        )
    if not pairs:
        return Result(figure, tuple(alone), note=note)
    return Result(figure, tuple(a for a, _ in pairs), tuple(b for _, b in pairs), note=note)


def show(value: float | None) -> str:
    """Write a number with three significant digits."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread(values: Sequence[float], unit: str = "") -> str:
    """Write the median and, for several values, the lowest and the highest."""
    if not values:
        return ""
    middle = show(statistics.median(values)) + unit
    if len(values) == 1:
        return middle
    return f"{middle} ({show(min(values))} to {show(max(values))})"
