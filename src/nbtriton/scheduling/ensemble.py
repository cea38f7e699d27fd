"""Ensemble scheduler: dataflow between steps (E1 to E21).

An `EnsemblePlan` describes an ensemble, an `EnsembleRun` is one request in it. The run knows only
the *names* of tensors: the engine keeps the tensors, and releases those that the run's decisions
name.

An *iteration* is one pass through the graph. The ensemble's inputs begin iteration 0. Every response of
a decoupled step begins a new iteration, in which the steps after it run again (E14).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(slots=True, frozen=True)
class Step:
    """One step: a model, and the ensemble tensors of its inputs and outputs."""

    model_name: str
    model_version: int
    input_map: Mapping[str, str]  # model input -> ensemble tensor
    output_map: Mapping[str, str]  # model output -> ensemble tensor


class Start:
    """Start a step, in the iteration of the event that causes it.

    Attributes
    ----------
    step : int
    release : tuple of str
        Ensemble tensors without a later reader: released once this step has them.
    """

    __slots__ = ("release", "step")

    def __init__(self, step: int, release: tuple[str, ...]) -> None:
        self.step = step
        self.release = release


class Advance:
    """Decisions that follow from one event, all in one iteration.

    Attributes
    ----------
    starts : tuple of Start
    emit : bool
        Respond now with the outputs of the iteration.
    over : bool
        The iteration has ended with the other decisions: its tensors may be released.
    done : bool
        No step is running or can start in any iteration: the request is finished.
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
    """Static part of an ensemble: steps, dependencies, and a route per set of requested outputs.

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

    def route(self, requested: frozenset[str]) -> _Route:
        """Return the route of these outputs, with the steps that they need (pruning, E4); computed once."""
        route = self._routes.get(requested)
        if route is None:
            route = self._routes[requested] = _Route(self, requested)
        return route


class _Route:
    """The part of a plan that one set of requested outputs needs.

    Attributes
    ----------
    steps : tuple of int
        The needed steps.
    missing : list of int
        For each step, the number of its input tensors that other steps make.
    first : tuple of int
        The needed steps that read only the ensemble's inputs.
    readers : tuple
        For each step, the needed steps that read its outputs, with the number of outputs they read.
    outputs : tuple of int
        For each step, the number of requested outputs that it makes.
    awaited : int
        Number of requested outputs that steps make.
    advances : tuple of Advance or None
        For each step, the decisions that follow from its outputs, if they are the same in each request:
        none of the outputs is requested, and their readers wait for no other step and share no tensor.
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
        # For each step, the tensors that it may release, each with its readers as bits.
        self._releases = tuple(
            tuple(
                (name, sum(1 << other for other in self.steps if name in plan.step_inputs[other]))
                for name in sorted(names - requested)
            )
            for names in plan.step_inputs
        )
        # The start of each step that shares no tensor with another step.
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
        """Return the start of a step; ``started`` are the bits of all started steps, this one included."""
        alone = self._alone[step]
        if alone is not None:
            return alone
        return Start(
            step, tuple([name for name, readers in self._releases[step] if not readers & ~started])
        )


class _Iteration:
    """State of one iteration.

    Attributes
    ----------
    missing : list of int
        For each step, the number of input tensors that have not arrived.
    outputs : int
        Number of requested outputs that have not arrived.
    arrived, started : int
        Steps that have responded, and steps that were started, as bits.
    running : int
        Number of steps started here that have not finished.
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
    """One request in an ensemble.

    Parameters
    ----------
    plan : EnsemblePlan
    requested : frozenset of str
        Requested outputs of the ensemble; never empty.

    Attributes
    ----------
    failed : bool
        True after the first failure: no further step starts.
    """

    __slots__ = ("_iterations", "_last", "_route", "failed")

    def __init__(self, plan: EnsemblePlan, requested: frozenset[str]) -> None:
        self.failed = False
        self._route = plan.route(requested)
        self._iterations: dict[int, _Iteration] = {}  # those that have not ended
        self._last = 0

    def start(self) -> Advance:
        """Begin: all inputs of the ensemble have arrived; omitted optional ones count as arrived (E2)."""
        route = self._route
        state = _Iteration(route.missing.copy(), route.awaited, 0, 0, False)
        self._iterations[0] = state
        starts: list[Start] = []
        for step in route.first:
            state.started |= 1 << step
            starts.append(route.start(step, state.started))
        return self._advance(0, state, tuple(starts), arrived=True)

    def answered(self, step: int, iteration: int) -> Advance:
        """Handle the only response of a step: `response` in its own iteration and `finished` in one."""
        state = self._iterations[iteration]
        state.running -= 1
        if self.failed:
            return self._advance(iteration, state, (), arrived=False)
        return self._arrive(step, iteration, state)

    def foreseen(self, step: int, iteration: int) -> tuple[list[int], bool]:
        """Return what `answered` would decide: the steps to start, and whether to respond; nothing changes."""
        state = self._iterations[iteration]
        route = self._route
        starts = [reader for reader, count in route.readers[step] if state.missing[reader] == count]
        return starts, not state.emitted and state.outputs == route.outputs[step]

    def response(self, step: int, iteration: int, *, new_iteration: bool) -> tuple[int, Advance]:
        """Handle one response of a step.

        Parameters
        ----------
        step, iteration
            The step, and the iteration in which it was started.
        new_iteration : bool
            True if the step's model is decoupled: the response begins a new iteration.

        Returns
        -------
        iteration : int
            The iteration of the response's tensors and of the advance.
        advance : Advance
            A mapped output that the response lacks counts as arrived, without a tensor (E11).
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
        """Handle the end of a step of this iteration, after `response` for each of its responses."""
        state = self._iterations[iteration]
        state.running -= 1
        return self._advance(iteration, state, (), arrived=False)

    def fail(self) -> bool:
        """Handle the failure of a step; True for the first failure, which answers the request (E13)."""
        first = not self.failed
        self.failed = True
        return first

    def _arrive(self, step: int, iteration: int, state: _Iteration) -> Advance:
        """Handle the arrival of a step's outputs."""
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
        # The end of a step brings no tensor, so it completes no response.
        emit = arrived and not state.outputs and not state.emitted
        if emit:
            state.emitted = True
        state.running += len(starts)
        # If no step is running, the last one has finished, or no step reads what began the iteration.
        if state.running:
            return Advance(starts, emit)
        self._iterations.pop(iteration, None)
        return Advance(starts, emit, True, not self._iterations)
