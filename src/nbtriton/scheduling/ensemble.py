"""The ensemble scheduler as dataflow (scheduling.md §11).

`EnsemblePlan` is what an ensemble is, `EnsembleRun` is one request through it. The run knows only
tensor *names*: the engine keeps the tensors themselves and is told which are needed no more.

An *iteration* is one wave through the graph. Everything that is there at the start is iteration 0;
every response of a decoupled step opens a new one, in which the steps behind it run again (E14).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

__all__ = ["Advance", "EnsemblePlan", "EnsembleRun", "Start", "Step"]


@dataclass(slots=True, frozen=True)
class Step:
    """One step: which ensemble tensor feeds which model input, and the other way round."""

    model_name: str
    model_version: int
    input_map: Mapping[str, str]  # model input -> ensemble tensor
    output_map: Mapping[str, str]  # model output -> ensemble tensor


class Start(NamedTuple):
    """Start this step; its input tensors are those of this iteration."""

    step: int
    iteration: int
    # Ensemble tensors that nobody needs once this step has them.
    release: tuple[str, ...] = ()


class Advance(NamedTuple):
    """What follows from one fact.

    ``emit`` is the iteration whose outputs make one response now; None for none. ``over`` is an
    iteration in which nothing can happen any more, once the rest of this is carried out: its
    tensors may go. ``done`` means that no step runs and none can start: the request is finished.
    """

    starts: Sequence[Start] = ()
    emit: int | None = None
    over: int | None = None
    done: bool = False


_NOTHING = Advance()


class EnsemblePlan:
    """The static half: steps, who feeds whom, and what a set of requested outputs needs.

    Parameters
    ----------
    steps : sequence of Step
    inputs, outputs : names of the ensemble's own tensors
    """

    def __init__(
        self, steps: Sequence[Step], inputs: Collection[str], outputs: Collection[str]
    ) -> None:
        self.steps = tuple(steps)
        self.inputs = frozenset(inputs)
        self.outputs = frozenset(outputs)
        self.step_inputs = tuple(frozenset(step.input_map.values()) for step in self.steps)
        self.step_outputs = tuple(frozenset(step.output_map.values()) for step in self.steps)
        self.producer = {
            tensor: index for index, made in enumerate(self.step_outputs) for tensor in made
        }
        # One bit per tensor: what has arrived is one integer, copied for nothing at a fork.
        named = (self.inputs, *self.step_inputs, *self.step_outputs, self.outputs)
        bits = {name: 1 << at for at, name in enumerate(dict.fromkeys(chain(*named)))}
        self.bits = bits
        self.reads = tuple(_mask(bits, names) for names in self.step_inputs)
        self.makes = tuple(_mask(bits, names) for names in self.step_outputs)
        self._routes: dict[frozenset[str], _Route] = {}

    def needed(self, requested: frozenset[str]) -> tuple[int, ...]:
        """Indices of the steps that these outputs need, transitively (pruning, E4)."""
        return self.route(requested).steps

    def route(self, requested: frozenset[str]) -> _Route:
        """Return what `EnsembleRun` needs to know for these outputs; worked out once."""
        route = self._routes.get(requested)
        if route is None:
            route = self._routes[requested] = _Route(self, requested)
        return route


class _Route:
    """The part of a plan that one set of requested outputs needs, laid out for `EnsembleRun`.

    Tensors are bits (of `EnsemblePlan`), steps too (1 << index): a fact is a few integer
    operations on the steps that it concerns, whatever the size of the ensemble.
    """

    __slots__ = ("feeds", "given", "makes", "readers", "reads", "requested", "steps")

    def __init__(self, plan: EnsemblePlan, requested: frozenset[str]) -> None:
        found: set[int] = set()
        front = [plan.producer[name] for name in requested if name in plan.producer]
        while front:
            index = front.pop()
            if index not in found:
                found.add(index)
                front.extend(
                    plan.producer[name] for name in plan.step_inputs[index] if name in plan.producer
                )
        self.steps = tuple(sorted(found))
        self.requested = _mask(plan.bits, requested)
        self.given = _mask(plan.bits, plan.inputs)
        self.reads = plan.reads
        self.makes = plan.makes
        # The needed steps that read an output of a step, those behind it in order.
        self.feeds = tuple(
            tuple(other for other in self.steps if plan.reads[other] & made) for made in plan.makes
        )
        # For a step, each tensor that may go after it, with all needed steps that read it.
        self.readers = tuple(
            tuple(
                (name, sum(1 << other for other in self.steps if name in plan.step_inputs[other]))
                for name in sorted(names - requested)
            )
            for names in plan.step_inputs
        )


def _mask(bits: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(bits[name] for name in set(names))


class _Wave:
    """One iteration: the tensors that arrived and the steps that had them, as bits."""

    __slots__ = ("arrived", "emitted", "running", "started")

    def __init__(self, arrived: int, started: int) -> None:
        self.arrived = arrived
        self.started = started
        self.running = 0  # how many steps started here and have not finished
        self.emitted = False


class EnsembleRun:
    """One request through an ensemble.

    Parameters
    ----------
    plan : EnsemblePlan
    requested : frozenset of str
        Ensemble outputs asked for; never empty.
    """

    __slots__ = ("_failed", "_iterations", "_route", "_waves")

    def __init__(self, plan: EnsemblePlan, requested: frozenset[str]) -> None:
        self._route = plan.route(requested)
        self._waves: dict[int, _Wave] = {}  # those in which something can still happen
        self._iterations = 0
        self._failed = False

    def start(self) -> Advance:
        """All inputs of the ensemble are there (an omitted optional one counts as there, E2)."""
        self._waves[0] = _Wave(self._route.given, 0)
        return self._look(0, self._route.steps)

    def answered(self, step: int, iteration: int) -> Advance:
        """A step gave its only response: `response` without a new wave, and `finished`, in one."""
        if self._failed:
            return self.finished(iteration)
        route = self._route
        wave = self._waves[iteration]
        wave.arrived |= route.makes[step]
        wave.running -= 1
        return self._look(iteration, route.feeds[step])

    def response(self, step: int, iteration: int, *, new_wave: bool) -> tuple[int, Advance]:
        """A step gave one response.

        Parameters
        ----------
        step, iteration
            As in the `Start` it answers.
        new_wave : bool
            True if the step's model is decoupled: its tensors open an iteration of their own.

        Returns
        -------
        iteration : int
            The iteration under which its tensors are to be kept.
        advance : Advance
            A mapped output that the response lacks counts as arrived, but absent (E11).
        """
        if self._failed:
            return iteration, _NOTHING
        wave = self._waves[iteration]
        if new_wave:
            # Requested outputs and inputs from before the fork stay readable in the new wave.
            self._iterations = iteration = self._iterations + 1
            self._waves[iteration] = wave = _Wave(wave.arrived, wave.started)
        route = self._route
        wave.arrived |= route.makes[step]
        return iteration, self._look(iteration, route.feeds[step])

    def finished(self, iteration: int) -> Advance:
        """A step of this iteration gave its final response; after `response` if it made one."""
        wave = self._waves[iteration]
        wave.running -= 1
        if wave.running:
            return _NOTHING
        del self._waves[iteration]
        return Advance((), None, iteration, not self._waves)

    def fail(self) -> bool:
        """A step failed; True the first time, when the ensemble is to be answered (E13)."""
        first = not self._failed
        self._failed = True
        return first

    @property
    def failed(self) -> bool:
        """True after the first failure: no further step starts."""
        return self._failed

    def _look(self, iteration: int, candidates: Sequence[int]) -> Advance:
        """See which of these steps can start now, and whether a response is complete."""
        wave = self._waves[iteration]
        route = self._route
        arrived = wave.arrived
        starts: list[Start] = []
        for index in candidates:
            reads = route.reads[index]
            if arrived & reads == reads and not wave.started >> index & 1:
                wave.started |= 1 << index
                starts.append(Start(index, iteration, self._released(wave, index)))
        emit = None
        if not wave.emitted and arrived & route.requested == route.requested:
            wave.emitted = True
            emit = iteration
        wave.running += len(starts)
        if wave.running:
            return _NOTHING if emit is None and not starts else Advance(starts, emit)
        # Nothing runs here any more: its last step is over, or no step reads what opened it.
        del self._waves[iteration]
        return Advance(starts, emit, iteration, not self._waves)

    def _released(self, wave: _Wave, index: int) -> tuple[str, ...]:
        """Tensors that this step is the last to read in this wave."""
        started = wave.started
        return tuple(
            [name for name, readers in self._route.readers[index] if not readers & ~started]
        )
