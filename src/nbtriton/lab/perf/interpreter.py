"""Where instances wait for each other: for the interpreter, for processors, and for threads of libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbtriton.lab.perf.measure import Level
from nbtriton.lab.perf.point import PerfPoint, describe
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.session import Measure
from nbtriton.runtime.engine.core.snapshot import InterpreterWait, ModelSnapshot
from nbtriton.runtime.engine.diagnostics.interpreter import advice
from nbtriton.runtime.workers.resources import ThreadBudget

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server

_TORCH = "pytorch_libtorch"


def oversubscription(models: Sequence[ModelSnapshot], budget: ThreadBudget) -> list[str]:
    """Return a sentence for each group of instances whose libraries have more threads than there are cores.

    Parameters
    ----------
    models : sequence of ModelSnapshot
    budget : ThreadBudget
        Of the server's worker processes.
    """
    found = []
    cores = budget.cores
    if any(model.isolation == "process" and model.instances for model in models):
        workers, threads = budget.total()
        if threads > cores:
            found.append(
                f"{workers} worker processes compute with {threads} threads on {cores} "
                f"core{'s' * (cores > 1)}: fewer instances, or INTRA_OP_THREAD_COUNT, would leave each "
                "a core of its own"
            )
    torch = sys.modules.get("torch")
    for model in models:
        count = sum(instance.kind == "KIND_CPU" for instance in model.instances)
        if torch is None or model.isolation != "thread" or model.platform != _TORCH or count < 2:
            continue
        each = int(torch.get_num_threads())
        if each > 1 and count * each > cores:
            found.append(
                f"{count} instances of '{model.name}' compute with {each} threads each on {cores} "
                f"core{'s' * (cores > 1)}: INTRA_OP_THREAD_COUNT {max(1, cores // count)}, or "
                "--isolation process, which shares the cores"
            )
    return found


class InterpreterWaits:
    """Adds to each point how long instances of a server in this process waited for the interpreter.

    Parameters
    ----------
    server : Server
    models : sequence of str
        The measured model, or the composing models of an ensemble.
    """

    def __init__(self, server: Server, models: Sequence[str]) -> None:
        self._server = server
        self._models = frozenset(models)
        # The longest wait of each model in a level, and the level's configuration.
        self._longest: dict[str, tuple[InterpreterWait, str]] = {}
        self._crowded: dict[str, str] = {}  # sentences, with the first configuration of each

    def around(self, measure: Measure) -> Measure:
        """Return a function that measures a level and the waits in it."""

        def measured(
            level: Level, on_progress: Callable[[LevelProgress], None]
        ) -> tuple[PerfPoint | None, bool]:
            before = self._counted()
            point, interrupted = measure(level, on_progress)
            waits = {
                name: wait.since(before.get(name, InterpreterWait()))
                for name, wait in self._counted().items()
            }
            if point is None:
                return point, interrupted
            configuration = describe("", level.configuration, 1)
            for name, wait in waits.items():
                known = self._longest.get(name)
                if advice(name, wait) and (known is None or wait.share > known[0].share):
                    self._longest[name] = wait, configuration
            for sentence in self._oversubscription():
                self._crowded.setdefault(sentence, configuration)
            longest = max((wait.share for wait in waits.values()), default=0.0)
            return replace(point, interpreter_wait=longest), interrupted

        return measured

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each model that waited, or has too many threads, with the remedy."""
        sentences = [
            (configuration, advice(name, wait))
            for name, (wait, configuration) in self._longest.items()
        ]
        sentences += [
            (configuration, sentence) for sentence, configuration in self._crowded.items()
        ]
        return tuple([f"{where}: {text}" if where else text for where, text in sentences])

    def _oversubscription(self) -> list[str]:
        models = [model for model in self._server.models() if model.name in self._models]
        return oversubscription(models, self._server.engine.lifecycle.builder.workers.budget)

    def _counted(self) -> dict[str, InterpreterWait]:
        return {
            model.name: model.interpreter
            for model in self._server.models()
            if model.name in self._models
        }
