"""The ensemble scheduler as dataflow (E1 to E21).

`EnsemblePlan` is what an ensemble is, `EnsembleRun` is one request through it. The run knows only
tensor *names*: the engine keeps the tensors themselves and is told which are needed no more.

An *iteration* is one wave through the graph. Everything that is there at the start is iteration 0;
every response of a decoupled step opens a new one, in which the steps behind it run again (E14).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

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
    """Start this step, in the iteration of the fact that it follows from."""

    step: int
    # Ensemble tensors that nobody needs once this step has them.
    release: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Advance:
    """What follows from one fact, all of it in one iteration.

    ``emit``: its outputs make one response now. ``over``: nothing can happen in it any more, once
    the rest of this is carried out, and its tensors may go. ``done``: no step runs and none can
    start, in any iteration: the request is finished.
    """

    starts: tuple[Start, ...] = ()
    emit: bool = False
    over: bool = False
    done: bool = False


_NOTHING: Final = Advance()


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


# Of one route, remembered: what happened so far and what may come next. Ten branches side by side
# can be through in 1,024 ways; that many take some 400 kB.
_KNOWN_STATES: Final = 1024
# Facts, as `_State.moves` knows them; those of a step have its index in front of the last bit.
_ANSWERED: Final = 0
_RESPONDED: Final = 1
_FINISHED: Final = -1
_BEGUN: Final = -2


class _Route:
    """The part of a plan that one set of requested outputs needs: an automaton.

    Tensors are bits (of `EnsemblePlan`), steps too (1 << index): a fact is a few integer
    operations on the steps that it concerns, whatever the size of the ensemble. Most requests go
    the way of others before them, so what follows from a fact in a state is remembered.
    """

    __slots__ = ("_states", "feeds", "given", "makes", "readers", "reads", "requested", "steps")

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
        self._states: dict[tuple[int, int, int, bool], _State] = {}

    def state(self, arrived: int, started: int, running: int, emitted: bool) -> _State:
        """Return the state of an iteration in which this has happened."""
        key = (arrived, started, running, emitted)
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= _KNOWN_STATES:
                # Its moves lead to all that it knows: forgotten together, kept by who is there.
                self._states.clear()
            state = self._states[key] = _State(*key)
        return state

    def move(self, state: _State, fact: int) -> _Move:
        """Work out what follows from a fact that is new in a state."""
        if fact == _BEGUN:
            return self._look(state, fact, state.arrived, 0, self.steps)
        if fact == _FINISHED:
            return self._look(state, fact, state.arrived, state.running - 1, ())
        step = fact >> 1
        running = state.running - 1 if fact & 1 == _ANSWERED else state.running
        return self._look(state, fact, state.arrived | self.makes[step], running, self.feeds[step])

    def _look(
        self, state: _State, fact: int, arrived: int, running: int, candidates: Sequence[int]
    ) -> _Move:
        """See which of these steps can start now, and whether a response is complete."""
        started = state.started
        starts: list[Start] = []
        for index in candidates:
            reads = self.reads[index]
            if arrived & reads == reads and not started >> index & 1:
                started |= 1 << index
                starts.append(Start(index, self._released(started, index)))
        # The end of a step brings no tensor: nothing becomes complete with it.
        complete = fact != _FINISHED and arrived & self.requested == self.requested
        emit = complete and not state.emitted
        running += len(starts)
        # If nothing runs, its last step is over, or no step reads what opened it.
        over = not running
        following = None if over else self.state(arrived, started, running, state.emitted or emit)
        advance = Advance(tuple(starts), emit, over) if starts or emit or over else _NOTHING
        move = state.moves[fact] = _Move(following, advance, replace(advance, done=over))
        return move

    def _released(self, started: int, index: int) -> tuple[str, ...]:
        """Tensors that this step is the last to read."""
        return tuple([name for name, readers in self.readers[index] if not readers & ~started])


class _State:
    """What has happened in an iteration: tensors that arrived, steps that had them, as bits."""

    __slots__ = ("arrived", "emitted", "moves", "running", "started")

    def __init__(self, arrived: int, started: int, running: int, emitted: bool) -> None:
        self.arrived = arrived
        self.started = started
        self.running = running  # how many steps started here and have not finished
        self.emitted = emitted
        self.moves: dict[int, _Move] = {}


class _Move:
    """The next state, or None at the end, and what is to be done.

    ``last`` is the same advance if nothing goes on in any other iteration.
    """

    __slots__ = ("advance", "last", "state")

    def __init__(self, state: _State | None, advance: Advance, last: Advance) -> None:
        self.state = state
        self.advance = advance
        self.last = last


def _mask(bits: Mapping[str, int], names: Iterable[str]) -> int:
    return sum(bits[name] for name in set(names))


class EnsembleRun:
    """One request through an ensemble.

    Parameters
    ----------
    plan : EnsemblePlan
    requested : frozenset of str
        Ensemble outputs asked for; never empty.
    """

    __slots__ = ("_iterations", "_route", "_waves", "failed")

    def __init__(self, plan: EnsemblePlan, requested: frozenset[str]) -> None:
        # True after the first failure: no further step starts.
        self.failed = False
        self._route = plan.route(requested)
        self._waves: dict[int, _State] = {}  # those in which something can still happen
        self._iterations = 0

    def start(self) -> Advance:
        """All inputs of the ensemble are there (an omitted optional one counts as there, E2)."""
        route = self._route
        return self._take(0, route.state(route.given, 0, 0, False), _BEGUN)

    def answered(self, step: int, iteration: int) -> Advance:
        """A step gave its only response: `response` without a new wave, and `finished`, in one."""
        fact = _FINISHED if self.failed else step << 1 | _ANSWERED
        return self._take(iteration, self._waves[iteration], fact)

    def response(self, step: int, iteration: int, *, new_wave: bool) -> tuple[int, Advance]:
        """A step gave one response.

        Parameters
        ----------
        step, iteration
            Which step, and the iteration in which it was started.
        new_wave : bool
            True if the step's model is decoupled: its tensors open an iteration of their own.

        Returns
        -------
        iteration : int
            The iteration under which its tensors are to be kept, and to which the advance belongs.
        advance : Advance
            A mapped output that the response lacks counts as arrived, but absent (E11).
        """
        if self.failed:
            return iteration, _NOTHING
        state = self._waves[iteration]
        if new_wave:
            # Requested outputs and inputs from before the fork stay readable in the new wave.
            self._iterations = iteration = self._iterations + 1
            state = self._route.state(state.arrived, state.started, 0, False)
        return iteration, self._take(iteration, state, step << 1 | _RESPONDED)

    def finished(self, iteration: int) -> Advance:
        """A step of this iteration gave its final response; after `response` if it made one."""
        return self._take(iteration, self._waves[iteration], _FINISHED)

    def fail(self) -> bool:
        """A step failed; True the first time, when the ensemble is to be answered (E13)."""
        first = not self.failed
        self.failed = True
        return first

    def _take(self, iteration: int, state: _State, fact: int) -> Advance:
        move = state.moves.get(fact)
        if move is None:
            move = self._route.move(state, fact)
        if move.state is not None:
            self._waves[iteration] = move.state
            return move.advance
        self._waves.pop(iteration, None)
        return move.advance if self._waves else move.last
