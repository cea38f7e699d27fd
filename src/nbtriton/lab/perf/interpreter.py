"""Waits of the measured models' instances for the interpreter and for processors, per level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbtriton.lab.perf.measure import Level
from nbtriton.lab.perf.point import PerfPoint, describe
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.session import Measure
from nbtriton.runtime.engine.core.snapshot import InterpreterWait
from nbtriton.runtime.engine.diagnostics.interpreter import advice
from nbtriton.runtime.engine.diagnostics.oversubscription import oversubscription

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server

__all__ = ["InterpreterWaits"]


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
