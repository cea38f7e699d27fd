"""What a figure is: two things measured in turn, their ratio, and what was promised of it."""

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
# "flat" means that neither should differ: the ratio is plainly the first by the second.
Better = Literal["lower", "higher", "flat"]


class Missing(Exception):  # noqa: N818  nothing is wrong: it is not to be had here
    """One of the two cannot be measured on this machine; the text says why."""


class Wrong(Exception):  # noqa: N818  a finding of the bench, not a fault of its code
    """What was measured does not do what the figure is about; the text says what it did."""


@dataclass(frozen=True, slots=True)
class Target:
    """What was promised of a ratio, or of nbtriton's own value."""

    of: Literal["ratio", "value"]
    at_least: float | None = None
    at_most: float | None = None
    # An aim is shown beside the targets; missing it fails nothing.
    aim: bool = False

    def met(self, ratio: float | None, value: float) -> bool | None:
        """Whether it was kept; None where there was nothing to compare with."""
        found = ratio if self.of == "ratio" else value
        if found is None:
            return None
        enough = self.at_least is None or found >= self.at_least
        return enough and (self.at_most is None or found <= self.at_most)

    def text(self, unit: str) -> str:
        """Return it in a few signs, such as ``>= 8x`` or ``aim <= 20 us``."""
        sign, bound = (">=", self.at_least) if self.at_most is None else ("<=", self.at_most)
        text = f"{sign} {bound:g}{'x' if self.of == 'ratio' else ' ' + unit}"
        return f"aim {text}" if self.aim else text


def ratio_at_least(bound: float) -> Target:
    """Promise that nbtriton is at least ``bound`` times better."""
    return Target("ratio", at_least=bound)


def ratio_at_most(bound: float) -> Target:
    """Promise that the first takes at most ``bound`` times what the second takes."""
    return Target("ratio", at_most=bound)


def value_at_most(bound: float, *, aim: bool = False) -> Target:
    """Promise a value of nbtriton's own, in the figure's unit."""
    return Target("value", at_most=bound, aim=aim)


@dataclass(frozen=True, slots=True)
class Sides:
    """The two things, ready to be measured: each call is one round of one of them."""

    ours: Measure
    # None without anything to compare with here; the note says why.
    theirs: Measure | None
    note: str = ""


def together(measure: Callable[[], tuple[float, float]], note: str = "") -> Sides:
    """Return sides of which each round measures both at once, in turns of a few calls.

    A machine that others use too is now faster, now slower, for seconds at a time: between two
    loops of a second each that made 0.87 to 1.1 of a ratio that is 0.97.
    """
    found: dict[int, float] = {}

    def side(at: int) -> Measure:
        def value() -> float:
            if at not in found:
                found.update(enumerate(measure()))
            return found.pop(at)

        return value

    return Sides(side(0), side(1), note)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the tables.

    Parameters
    ----------
    name : str
        ``bench.what``, such as ``kernel.one``; the history's key.
    title : str
        What is measured, in words.
    unit : str
        Of both sides' values.
    better : {"lower", "higher", "flat"}
        Makes the ratio: how many times better nbtriton is, or, where nothing should differ, the
        first by the second.
    against : str
        What the second side is.
    targets : tuple of Target
    sides : callable
        Gets both ready, and takes them down at the end of its block.
    first : str
        What the first side is.
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
        """How many times better (or, where flat, larger) the first is."""
        return theirs / ours if self.better == "lower" else ours / theirs


@dataclass(frozen=True, slots=True)
class Result:
    """What the rounds of a figure gave; `theirs` is empty where there was nothing to compare with."""

    figure: Figure
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    # Why a side is missing, or what it did wrong.
    note: str = ""
    wrong: bool = False

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of the rounds: what ran side by side is compared.

        A value that is the difference of two measurements can come out below nothing on a busy
        machine; it still counts in the median, and has no ratio.
        """
        pairs = zip(self.ours, self.theirs, strict=bool(self.theirs))
        return tuple(self.figure.ratio(a, b) for a, b in pairs if min(a, b) > 0)

    @property
    def value(self) -> float | None:
        """The median of the first side."""
        return statistics.median(self.ours) if self.ours else None

    @property
    def other(self) -> float | None:
        """The median of the second side."""
        return statistics.median(self.theirs) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def met(self) -> bool | None:
        """Whether every target is kept, aims aside; None without one, and where none can be measured."""
        if self.wrong:
            return False
        targets = [target for target in self.figure.targets if not target.aim]
        if self.value is None or not targets:
            return None
        kept = [target.met(self.ratio, self.value) for target in targets]
        if False in kept:
            return False
        return None if None in kept else True


def alternate(figure: Figure, sides: Sides, rounds: int, say: Callable[[str], None]) -> Result:
    """Measure both in turn; who begins changes from round to round.

    A round in which the second side could not be measured counts only where there is no other; up to
    half as many rounds are added to make up for such.
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
    """Write a number with the digits that mean something: three."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread(values: Sequence[float], unit: str = "") -> str:
    """Write the median and, where there are several, the lowest and the highest."""
    if not values:
        return ""
    middle = show(statistics.median(values)) + unit
    if len(values) == 1:
        return middle
    return f"{middle} ({show(min(values))} to {show(max(values))})"
