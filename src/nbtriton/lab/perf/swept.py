"""Check that the models that a sweep reconfigures have run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbtriton.lab.perf.measure import Level
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.session import Measure

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server


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
        self._inferences = dict.fromkeys(names, 0)

    def around(self, measure: Measure) -> Measure:
        """Return a function that measures a level, and counts the inferences in it."""

        def measured(
            level: Level, on_progress: Callable[[LevelProgress], None]
        ) -> tuple[PerfPoint | None, bool]:
            before = {name: self._counted(name) for name in self._inferences}
            done = measure(level, on_progress)
            for name, count in before.items():
                self._inferences[name] += self._counted(name) - count
            return done

        return measured

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
