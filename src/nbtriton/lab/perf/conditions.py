"""What is observed around a level: waits for the interpreter and processors, usage, and whether swept models ran."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nbtriton.common.errors import TritonError
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


class Condition(Protocol):
    """Something that is observed from the begin to the end of each level."""

    def begin(self) -> None:
        """Note what is before a level."""

    def end(self, level: Level, point: PerfPoint | None) -> PerfPoint | None:
        """Return the point of the level with what was observed; None stays None."""

    def notes(self) -> tuple[str, ...]:
        """Return sentences about the whole run."""


def observed(measure: Measure, conditions: Sequence[Condition]) -> Measure:
    """Return a function that measures a level under these conditions, the last of them closest to it."""

    def measured(
        level: Level, on_progress: Callable[[LevelProgress], None]
    ) -> tuple[PerfPoint | None, bool]:
        for each in conditions:
            each.begin()
        point, interrupted = measure(level, on_progress)
        for each in reversed(conditions):
            point = each.end(level, point)
        return point, interrupted

    return measured


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
        self._before: dict[str, InterpreterWait] = {}

    def begin(self) -> None:
        self._before = self._counted()

    def end(self, level: Level, point: PerfPoint | None) -> PerfPoint | None:
        if point is None:
            return None
        waits = {
            name: wait.since(self._before.get(name, InterpreterWait()))
            for name, wait in self._counted().items()
        }
        configuration = describe("", level.configuration, 1)
        for name, wait in waits.items():
            known = self._longest.get(name)
            if advice(name, wait) and (known is None or wait.share > known[0].share):
                self._longest[name] = wait, configuration
        models = [model for model in self._server.models() if model.name in self._models]
        budget = self._server.engine.lifecycle.builder.workers.budget
        for sentence in oversubscription(models, budget):
            self._crowded.setdefault(sentence, configuration)
        longest = max((wait.share for wait in waits.values()), default=0.0)
        return replace(point, interpreter_wait=longest)

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

    def _counted(self) -> dict[str, InterpreterWait]:
        return {
            model.name: model.interpreter
            for model in self._server.models()
            if model.name in self._models
        }


class SweptModels:
    """Counts the inferences of the models in `sweep_models`, per level.

    A model that another one calls by BLS is in no configuration: only its executions show that the sweep
    affects the measurement.

    Parameters
    ----------
    server : Server
    model : str
        The measured model.
    names : sequence of str
        The models whose configuration is swept instead.
    """

    def __init__(self, server: Server, model: str, names: Sequence[str]) -> None:
        self._server = server
        self._model = model
        self._inferences = self._before = dict.fromkeys(names, 0.0)

    def begin(self) -> None:
        self._before = {name: self._counted(name) for name in self._inferences}

    def end(self, level: Level, point: PerfPoint | None) -> PerfPoint | None:  # noqa: ARG002
        for name, count in self._before.items():
            try:
                self._inferences[name] += self._counted(name) - count
            except TritonError:  # it was unloaded meanwhile
                self._inferences[name] = math.nan
        return point

    def notes(self) -> tuple[str, ...]:
        """Return a sentence that names the swept models, and one for each that never ran."""
        if not self._inferences:
            return ()
        named = ", ".join(f"'{name}'" for name in self._inferences)
        return (
            f"the configurations are those of {named}",
            *(
                f"'{name}' ran 0 times: its configuration made no difference to '{self._model}'"
                for name, count in self._inferences.items()
                if not count
            ),
        )

    def _counted(self, name: str) -> int:
        return sum(each["inference_count"] for each in self._server.statistics(name)["model_stats"])


# One interpreter runs one thread's Python code at a time: a sender at this share of a processor has no time
# left.
_BUSY_PERCENT = 90.0


class Usage:
    """Adds processor time and memory to each point.

    Parameters
    ----------
    remote : bool
        The server is remote: all usage of this process is the load generator's.
    """

    def __init__(self, *, remote: bool) -> None:
        self._remote = remote
        self._wall_s = self._cpu_s = 0.0

    def begin(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def end(self, level: Level, point: PerfPoint | None) -> PerfPoint | None:  # noqa: ARG002
        wall_s, cpu_s = time.monotonic() - self._wall_s, time.process_time() - self._cpu_s
        if point is None:
            return None
        percent = 100 * cpu_s / wall_s if wall_s else math.nan
        point = replace(point, cpu_percent=percent, memory_mb=memory_mb())
        if self._remote and percent >= _BUSY_PERCENT:
            note = (
                f"The load generator used {percent:.0f}% of a processor: it, and not the server, may "
                "be what limits the throughput. perf_analyzer sends more from the same machine."
            )
            point = replace(point, notes=(*point.notes, note))
        return point

    def notes(self) -> tuple[str, ...]:
        return ()


def memory_mb() -> float:
    """Return the resident memory of this process in megabytes; nan if unreadable."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
