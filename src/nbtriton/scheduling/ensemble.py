"""The ensemble scheduler as dataflow (scheduling.md §11).

`EnsemblePlan` is what an ensemble is, `EnsembleRun` is one request through it. The run knows only
tensor *names*: the engine keeps the tensors themselves and is told which are needed no more.

An *iteration* is one wave through the graph. Everything that is there at the start is iteration 0;
every response of a decoupled step opens a new one, in which the steps behind it run again (E14).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Advance", "EnsemblePlan", "EnsembleRun", "Start", "Step"]


@dataclass(slots=True, frozen=True)
class Step:
    """One step: which ensemble tensor feeds which model input, and the other way round."""

    model_name: str
    model_version: int
    input_map: Mapping[str, str]  # model input -> ensemble tensor
    output_map: Mapping[str, str]  # model output -> ensemble tensor


@dataclass(slots=True, frozen=True)
class Start:
    """Start this step; its input tensors are those of this iteration."""

    step: int
    iteration: int
    # Ensemble tensors that nobody needs once this step has them.
    release: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Advance:
    """What follows from one fact.

    ``emit`` is the iteration whose outputs make one response now; None for none. ``done`` means
    that no step runs and none can start: the request is finished.
    """

    starts: Sequence[Start] = ()
    emit: int | None = None
    done: bool = False


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
        self._producer = {
            tensor: index for index, made in enumerate(self.step_outputs) for tensor in made
        }
        self._needed: dict[frozenset[str], tuple[int, ...]] = {}

    def needed(self, requested: frozenset[str]) -> tuple[int, ...]:
        """Indices of the steps that these outputs need, transitively (pruning, E4)."""
        steps = self._needed.get(requested)
        if steps is None:
            found: set[int] = set()
            front = [self._producer[tensor] for tensor in requested if tensor in self._producer]
            while front:
                index = front.pop()
                if index not in found:
                    found.add(index)
                    front.extend(
                        self._producer[tensor]
                        for tensor in self.step_inputs[index]
                        if tensor in self._producer
                    )
            steps = self._needed[requested] = tuple(sorted(found))
        return steps


@dataclass(slots=True)
class _Wave:
    """One iteration: what has arrived, and which steps have had it."""

    arrived: set[str]
    started: set[int] = field(default_factory=set)
    emitted: bool = False


class EnsembleRun:
    """One request through an ensemble.

    Parameters
    ----------
    plan : EnsemblePlan
    requested : frozenset of str
        Ensemble outputs asked for; never empty.
    """

    __slots__ = ("_failed", "_in_flight", "_iterations", "_plan", "_requested", "_steps", "_waves")

    def __init__(self, plan: EnsemblePlan, requested: frozenset[str]) -> None:
        self._plan = plan
        self._requested = requested
        self._steps = plan.needed(requested)
        self._waves: dict[int, _Wave] = {}
        self._iterations = 0
        self._in_flight = 0
        self._failed = False

    def start(self) -> Advance:
        """All inputs of the ensemble are there (an omitted optional one counts as there, E2)."""
        self._waves[0] = _Wave(set(self._plan.inputs))
        return self._look(0)

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
            return iteration, Advance()
        if new_wave:
            self._iterations += 1
            origin = self._waves[iteration]
            # Requested outputs and inputs from before the fork stay readable in the new wave.
            self._waves[self._iterations] = _Wave(set(origin.arrived), set(origin.started))
            iteration = self._iterations
        self._waves[iteration].arrived |= self._plan.step_outputs[step]
        return iteration, self._look(iteration)

    def finished(self) -> Advance:
        """A step gave its final response: after `response` where that came along with one."""
        self._in_flight -= 1
        return Advance(done=self._in_flight == 0)

    def fail(self) -> bool:
        """A step failed; True the first time, when the ensemble is to be answered (E13)."""
        first = not self._failed
        self._failed = True
        return first

    @property
    def failed(self) -> bool:
        """True after the first failure: no further step starts."""
        return self._failed

    def _look(self, iteration: int) -> Advance:
        wave = self._waves[iteration]
        plan = self._plan
        ready = [
            index
            for index in self._steps
            if index not in wave.started and plan.step_inputs[index] <= wave.arrived
        ]
        wave.started.update(ready)
        self._in_flight += len(ready)
        starts = [
            Start(index, iteration, self._released(wave, ready[at + 1 :], index))
            for at, index in enumerate(ready)
        ]
        emit = None
        if not wave.emitted and self._requested <= wave.arrived:
            wave.emitted = True
            emit = iteration
        return Advance(starts, emit)

    def _released(self, wave: _Wave, later: Iterable[int], index: int) -> tuple[str, ...]:
        """Tensors that this step is the last to read in this wave."""
        if self._iterations:  # another wave may still read them
            return ()
        still = set(later).union(step for step in self._steps if step not in wave.started)
        return tuple(
            tensor
            for tensor in self._plan.step_inputs[index]
            if tensor not in self._requested
            and not any(tensor in self._plan.step_inputs[other] for other in still)
        )
