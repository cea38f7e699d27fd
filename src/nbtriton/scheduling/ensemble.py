"""The ensemble scheduler as dataflow (E1 to E21).

`EnsemblePlan` is an ensemble, `EnsembleRun` is one request's way through it. The run knows only the
*names* of tensors: the engine keeps the tensors themselves, and learns which are needed no more.

An *iteration* is one pass through the graph. The ensemble's inputs begin iteration 0; every response
of a decoupled step begins a new one, in which the steps behind it run again (E14).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

__all__ = ["Advance", "EnsemblePlan", "EnsembleRun", "Start", "Step"]


@dataclass(slots=True, frozen=True)
class Step:
    """One step: which ensemble tensor feeds which model input, and the other way round."""

    model_name: str
    model_version: int
    input_map: Mapping[str, str]  # model input -> ensemble tensor
    output_map: Mapping[str, str]  # model output -> ensemble tensor


class Start:
    """Start a step, in the iteration of the event that it follows from.

    Attributes
    ----------
    step : int
    release : tuple of str
        Ensemble tensors that are needed no more once this step has them.
    """

    __slots__ = ("release", "step")

    def __init__(self, step: int, release: tuple[str, ...]) -> None:
        self.step = step
        self.release = release


class Advance:
    """What follows from one event, all of it in one iteration.

    Attributes
    ----------
    starts : tuple of Start
    emit : bool
        The outputs of the iteration make one response now.
    over : bool
        Nothing can happen in the iteration once the rest of this is carried out: its tensors may go.
    done : bool
        No step runs and none can start, in any iteration: the request is finished.
    """

    __slots__ = ("done", "emit", "over", "starts")

    def __init__(
        self,
        starts: tuple[Start, ...] = (),
        emit: bool = False,
        over: bool = False,
        done: bool = False,
    ) -> None:
        self.starts = starts
        self.emit = emit
        self.over = over
        self.done = done


class EnsemblePlan:
    """The static half: the steps, their dependencies, and what a set of requested outputs needs.

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
        self.tensors = self.inputs.union(self.outputs, *self.step_inputs, *self.step_outputs)
        self._routes: dict[frozenset[str], _Route] = {}

    def needed(self, requested: frozenset[str]) -> tuple[int, ...]:
        """Return the steps that these outputs need, transitively (pruning, E4)."""
        return self.route(requested).steps

    def route(self, requested: frozenset[str]) -> _Route:
        """Return what `EnsembleRun` needs to know for these outputs; worked out once."""
        route = self._routes.get(requested)
        if route is None:
            route = self._routes[requested] = _Route(self, requested)
        return route


class _Route:
    """The part of a plan that one set of requested outputs needs.

    Attributes
    ----------
    steps : tuple of int
        Those needed.
    missing : list of int
        For each step, how many of the tensors that it reads are made by other steps.
    first : tuple of int
        The needed steps that read nothing but the ensemble's inputs.
    readers : tuple
        For each step, the needed steps that read its outputs, with the number of outputs they read.
    outputs : tuple of int
        For each step, how many of the requested outputs it makes.
    awaited : int
        How many of the requested outputs are made by steps.
    advances : tuple of Advance or None
        For each step, what follows from its outputs, if that is the same in each request: none of
        them is requested, and the steps that read them wait for no other step and share no tensor.
    """

    __slots__ = (
        "_alone", "_releases", "advances", "awaited", "first", "missing", "outputs", "readers",
        "steps",
    )  # fmt: skip

    def __init__(self, plan: EnsemblePlan, requested: frozenset[str]) -> None:
        needed: set[int] = set()
        front = [plan.producer[name] for name in requested if name in plan.producer]
        while front:
            index = front.pop()
            if index not in needed:
                needed.add(index)
                front.extend(
                    plan.producer[name] for name in plan.step_inputs[index] if name in plan.producer
                )
        self.steps = tuple(sorted(needed))
        made = [outputs - plan.inputs for outputs in plan.step_outputs]
        together = frozenset(chain(*made))
        self.missing = [len(reads & together) for reads in plan.step_inputs]
        self.first = tuple([index for index in self.steps if not self.missing[index]])
        self.readers = tuple(
            tuple(
                (other, len(plan.step_inputs[other] & outputs))
                for other in self.steps
                if plan.step_inputs[other] & outputs
            )
            for outputs in made
        )
        self.outputs = tuple([len(outputs & requested) for outputs in made])
        self.awaited = len(requested - plan.inputs)
        # For each step, the tensors that may go after it, each with the steps that read it as bits.
        self._releases = tuple(
            tuple(
                (name, sum(1 << other for other in self.steps if name in plan.step_inputs[other]))
                for name in sorted(names - requested)
            )
            for names in plan.step_inputs
        )
        # The start of each step that shares no tensor with another one.
        self._alone = [
            Start(index, tuple([name for name, _ in released]))
            if all(readers == 1 << index for _, readers in released)
            else None
            for index, released in enumerate(self._releases)
        ]
        self.advances = tuple([self._foreseen(step) for step in range(len(plan.steps))])

    def _foreseen(self, step: int) -> Advance | None:
        readers = self.readers[step]
        if self.outputs[step] or not readers:
            return None
        starts: list[Start] = []
        for reader, count in readers:
            start = self._alone[reader]
            if start is None or count < self.missing[reader]:
                return None
            starts.append(start)
        return Advance(tuple(starts))

    def start(self, step: int, started: int) -> Start:
        """Return the start of a step, which is the last one in these bits of started steps."""
        alone = self._alone[step]
        if alone is not None:
            return alone
        return Start(
            step,
            tuple([name for name, readers in self._releases[step] if not readers & ~started]),
        )


class _Iteration:
    """How far one iteration is.

    Attributes
    ----------
    missing : list of int
        For each step, how many of its input tensors have not arrived.
    outputs : int
        How many of the requested outputs have not arrived.
    arrived, started : int
        Steps that have answered, and that were started, as bits.
    running : int
        How many steps were started here and have not finished.
    emitted : bool
    """

    __slots__ = ("arrived", "emitted", "missing", "outputs", "running", "started")

    def __init__(
        self, missing: list[int], outputs: int, arrived: int, started: int, emitted: bool
    ) -> None:
        self.missing = missing
        self.outputs = outputs
        self.arrived = arrived
        self.started = started
        self.emitted = emitted
        self.running = 0


class EnsembleRun:
    """One request through an ensemble.

    Parameters
    ----------
    plan : EnsemblePlan
    requested : frozenset of str
        Ensemble outputs asked for; never empty.

    Attributes
    ----------
    failed : bool
        True after the first failure: no further step starts.
    """

    __slots__ = ("_iterations", "_last", "_route", "failed")

    def __init__(self, plan: EnsemblePlan, requested: frozenset[str]) -> None:
        self.failed = False
        self._route = plan.route(requested)
        self._iterations: dict[int, _Iteration] = {}  # those in which something can still happen
        self._last = 0

    def start(self) -> Advance:
        """All inputs of the ensemble are there (an omitted optional one counts as there, E2)."""
        route = self._route
        state = _Iteration(route.missing.copy(), route.awaited, 0, 0, False)
        self._iterations[0] = state
        starts: list[Start] = []
        for step in route.first:
            state.started |= 1 << step
            starts.append(route.start(step, state.started))
        return self._advance(0, state, tuple(starts), arrived=True)

    def answered(self, step: int, iteration: int) -> Advance:
        """A step gave its only response: `response` in its own iteration, and `finished`, in one."""
        state = self._iterations[iteration]
        state.running -= 1
        if self.failed:
            return self._advance(iteration, state, (), arrived=False)
        return self._arrive(step, iteration, state)

    def response(self, step: int, iteration: int, *, new_iteration: bool) -> tuple[int, Advance]:
        """A step gave one response.

        Parameters
        ----------
        step, iteration
            Which step, and the iteration in which it was started.
        new_iteration : bool
            True if the step's model is decoupled: its tensors begin an iteration of their own.

        Returns
        -------
        iteration : int
            The iteration under which its tensors are to be kept, and to which the advance belongs.
        advance : Advance
            A mapped output that the response lacks counts as arrived, but absent (E11).
        """
        if self.failed:
            return iteration, Advance()
        state = self._iterations[iteration]
        if new_iteration:
            # Requested outputs and inputs from before the fork stay readable in the new iteration.
            self._last = iteration = self._last + 1
            state = _Iteration(
                state.missing.copy(), state.outputs, state.arrived, state.started, state.emitted
            )
            self._iterations[iteration] = state
        return iteration, self._arrive(step, iteration, state)

    def finished(self, iteration: int) -> Advance:
        """A step of this iteration gave its final response; after `response` if it made one."""
        state = self._iterations[iteration]
        state.running -= 1
        return self._advance(iteration, state, (), arrived=False)

    def fail(self) -> bool:
        """A step failed; True the first time, when the ensemble is to be answered (E13)."""
        first = not self.failed
        self.failed = True
        return first

    def _arrive(self, step: int, iteration: int, state: _Iteration) -> Advance:
        """The outputs of a step arrive."""
        if state.arrived >> step & 1:  # by an earlier response of the same step
            return self._advance(iteration, state, (), arrived=True)
        state.arrived |= 1 << step
        route = self._route
        advance = route.advances[step]
        if advance is not None:
            state.running += len(advance.starts)
            return advance
        starts: list[Start] = []
        state.outputs -= route.outputs[step]
        missing = state.missing
        for reader, count in route.readers[step]:
            missing[reader] -= count
            if not missing[reader]:
                state.started |= 1 << reader
                starts.append(route.start(reader, state.started))
        return self._advance(iteration, state, tuple(starts), arrived=True)

    def _advance(
        self, iteration: int, state: _Iteration, starts: tuple[Start, ...], *, arrived: bool
    ) -> Advance:
        # The end of a step brings no tensor: nothing becomes complete with it.
        emit = arrived and not state.outputs and not state.emitted
        if emit:
            state.emitted = True
        state.running += len(starts)
        # If nothing runs, its last step has finished, or no step reads what began it.
        if state.running:
            return Advance(starts, emit)
        self._iterations.pop(iteration, None)
        return Advance(starts, emit, True, not self._iterations)
