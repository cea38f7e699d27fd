"""An ensemble run and its oracle on random graphs: sets instead of bits, no cached state.

Tensors are kept as in the engine: one table of names per iteration, copied at a fork, released by the
run's decisions. Reading a released tensor, or releasing one twice, fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from nbtriton.scheduling import Advance, EnsemblePlan, EnsembleRun, Step


def step(reads: str, makes: str, name: str = "m") -> Step:
    """Return a step; tensor names are separated by blanks."""
    return Step(
        name,
        -1,
        {f"IN{at}": tensor for at, tensor in enumerate(reads.split())},
        {f"OUT{at}": tensor for at, tensor in enumerate(makes.split())},
    )


@dataclass
class _Iteration:
    """One iteration as the oracle sees it, and the tensors kept for it."""

    arrived: set[str]
    started: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    emitted: bool = False


class EnsemblePair:
    """Send each event to a run and check its decisions."""

    def __init__(self, plan: EnsemblePlan, requested: set[str], decoupled: set[int]) -> None:
        self.plan = plan
        self.requested = requested
        self.decoupled = decoupled
        self.run = EnsembleRun(plan, frozenset(requested))
        self.needed = self._needed()
        self.running: list[tuple[int, int]] = []  # (step, iteration)
        self.responses = 0
        self.emitted: list[int] = []
        self.failed = False
        self.done = False
        self.iterations = {0: _Iteration(set(plan.inputs), kept=set(plan.inputs))}
        assert set(plan.route(frozenset(requested)).steps) == self.needed
        self._check(0, self.run.start())

    def _needed(self) -> set[int]:
        """Return each step that makes a wanted tensor; its inputs are wanted too (E4)."""
        wanted = set(self.requested)
        while True:
            steps = {index for index, made in enumerate(self.plan.step_outputs) if made & wanted}
            more = wanted.union(*(self.plan.step_inputs[index] for index in steps))
            if more == wanted:
                return steps
            wanted = more

    # -- events ----------------------------------------------------------------------------------

    def respond(self, at: int) -> None:
        """The running step at this index responds."""
        index, origin = self.running[at]
        new_iteration = index in self.decoupled
        iteration, advance = self.run.response(index, origin, new_iteration=new_iteration)
        self.responses += 1
        if self.failed:
            assert not any((advance.starts, advance.emit, advance.over, advance.done))
            return
        if new_iteration:
            before = self.iterations[origin]
            assert iteration not in self.iterations, "an iteration was used twice"
            self.iterations[iteration] = _Iteration(
                set(before.arrived), set(before.started), set(), set(before.kept)
            )
        else:
            assert iteration == origin
        state = self.iterations[iteration]
        state.arrived |= self.plan.step_outputs[index]
        state.kept |= self.plan.step_outputs[index]
        self._check(iteration, advance)

    def answer(self, at: int) -> None:
        """The running step at this index gives its only response and finishes."""
        index, iteration = self.running[at]
        assert index not in self.decoupled
        if self.failed:
            return self.finish(at, self.run.answered)
        del self.running[at]
        starts, emits = self.run.foreseen(index, iteration)
        advance = self.run.answered(index, iteration)
        assert (starts, emits) == ([start.step for start in advance.starts], advance.emit)
        self.responses += 1
        state = self.iterations[iteration]
        state.running.discard(index)
        state.arrived |= self.plan.step_outputs[index]
        state.kept |= self.plan.step_outputs[index]
        self._check(iteration, advance)
        return None

    def finish(self, at: int, answered: Callable[[int, int], Advance] | None = None) -> None:
        """The running step at this index finishes."""
        index, iteration = self.running.pop(at)
        state = self.iterations[iteration]
        state.running.discard(index)
        advance = answered(index, iteration) if answered else self.run.finished(iteration)
        assert not advance.starts
        assert not advance.emit
        self._check_end(iteration, advance)
        assert not self.done, "finished twice"
        self.done = advance.done
        assert self.done == (not self.running)

    def fail(self) -> None:
        """A step failed: only the first failure counts (E13)."""
        assert self.run.fail() is not self.failed
        self.failed = True
        assert self.run.failed

    # -- checks ----------------------------------------------------------------------------------

    def _check(self, iteration: int, advance: Advance) -> None:
        state = self.iterations[iteration]
        due = [
            index
            for index in sorted(self.needed - state.started)
            if self.plan.step_inputs[index] <= state.arrived
        ]
        assert [start.step for start in advance.starts] == due  # E2, E3, E4
        for start in advance.starts:
            reads = self.plan.step_inputs[start.step]
            assert reads <= state.kept, "a tensor was released before its reader started"
            state.started.add(start.step)
            state.running.add(start.step)
            self.running.append((start.step, iteration))
            for tensor in start.release:
                assert tensor not in self.requested
                state.kept.remove(tensor)  # fails if released before
            # Released with its last reader, neither earlier nor later.
            read_later = set().union(
                *(self.plan.step_inputs[other] for other in self.needed - state.started)
            )
            assert set(start.release) == reads - read_later - self.requested
        if advance.emit:
            assert self.requested <= state.kept
            self.emitted.append(iteration)
        assert advance.emit == (self.requested <= state.arrived and not state.emitted)
        state.emitted = state.emitted or advance.emit
        self._check_end(iteration, advance)
        self.done = advance.done
        assert self.done == (not self.running)

    def _check_end(self, iteration: int, advance: Advance) -> None:
        over = not self.iterations[iteration].running
        assert advance.over == over
        if over:
            del self.iterations[iteration]


# -- random graphs -------------------------------------------------------------------------------


def random_ensemble(random: Random) -> EnsemblePair:
    """Return a run through a random graph that Triton would accept (E16).

    The origin of a tensor is its path of decoupled steps. A step, and a response, joins only tensors
    of one origin.
    """
    inputs = [f"I{at}" for at in range(random.randint(1, 3))]
    origin: dict[str, tuple[int, ...]] = dict.fromkeys(inputs, ())
    steps: list[Step] = []
    decoupled: set[int] = set()
    chance = random.choice((0, 0, 0.2))
    for index in range(random.randint(1, 10)):
        first = random.choice(list(origin))
        others = [name for name in origin if origin[name] == origin[first] and name != first]
        reads = [first, *random.sample(others, min(len(others), random.randint(0, 3)))]
        makes = [f"T{index}.{at}" for at in range(random.randint(1, 3))]
        through = origin[first]
        if random.random() < chance:
            decoupled.add(index)
            through = (*through, index)
        origin.update(dict.fromkeys(makes, through))
        steps.append(step(" ".join(reads), " ".join(makes)))
    made = [name for name in origin if name not in inputs]
    first = random.choice(made)
    outputs = [name for name in made if origin[name] == origin[first]]
    requested = set(random.sample(outputs, random.randint(1, len(outputs))))
    shuffled = list(range(len(steps)))
    random.shuffle(shuffled)
    place = {old: new for new, old in enumerate(shuffled)}
    return EnsemblePair(
        EnsemblePlan([steps[old] for old in shuffled], inputs, outputs),
        requested,
        {place[old] for old in decoupled},
    )
