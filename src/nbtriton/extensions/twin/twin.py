"""A twin: the profile of a running Triton, the traffic that it had, and stand-ins for its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.backends.stand_in import DECLARED
from nbtriton.common.packages import needed
from nbtriton.drawing.numbers import counted, measure
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.lab.simulate.model_profile import ModelProfile, Profile
from nbtriton.model.config import ModelConfig, amend, parse_pbtxt, plan_instances

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.serving.server import Server


@dataclass(frozen=True, slots=True, repr=False)
class Twin(Profile):
    """The result of `nbtriton.twin`: a profile, with the traffic that was seen.

    Parameters
    ----------
    url : str
        Of the running server.
    seen : tuple of mapping
        One for each model, the rows of `traffic`.
    """

    url: str = ""
    seen: tuple[Mapping[str, Any], ...] = ()

    @property
    def traffic(self) -> pd.DataFrame:
        """One row a model as a pandas DataFrame; times are averages per request, and in microseconds.

        ``predicted_queue_us`` is the queue time of this twin under the same rate, with exponential gaps. Where it is far
        from ``queue_us``, requests came in bursts, executions slow each other down, or the model's time is not its own.
        """
        with needed("a twin's traffic"):
            import pandas as pd

        return pd.DataFrame(self.seen)

    def stand_ins(self, server: Server | None = None) -> Server:
        """Load stand-ins of all models: they take the time that the models took, and answer with zeros.

        So the views, `nbtriton.why` and `nbtriton.perf` work on a copy that runs here.

        Parameters
        ----------
        server : Server, optional
            One with the option ``stand_in``; by default a new one.

        Returns
        -------
        Server
            The caller closes a new one.

        Raises
        ------
        LoadError
            A model's configuration names what cannot be here, such as a file of labels.
        """
        if server is None:
            from nbtriton.serving.server import Server

            server = Server(stand_in=True)
        for name, model in self.models.items():
            server.load(_stand_in(model), name=name)
        loaded: set[str] = set()
        for name in self.ensembles:
            inner, _ = model_tree(self, name)
            for each in reversed(inner):  # the innermost first
                if each not in loaded:
                    server.load(self.ensembles[each], name=each)
                    loaded.add(each)
        return server

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON, without the traffic; `nbtriton.types.Profile.load` reads it."""
        plain = {each.name: getattr(self, each.name) for each in fields(Profile)}
        Profile(**plain).save(path)

    @property
    def headline(self) -> str:
        """A one-line summary."""
        executed = sum(point.executions for one in self.models.values() for point in one.points)
        words = (
            f"{self.url}: {counted(len(self.models), 'model')}, {counted(executed, 'execution')} "
            f"in {measure(self.elapsed_s)} s"
        )
        return words + (", interrupted" if self.interrupted else "")

    def _remarks(self) -> list[str]:
        return [*self.notes]


def _stand_in(model: ModelProfile) -> ModelConfig:
    """Return the configuration of a stand-in on the host, with the mean times by batch size."""
    config = parse_pbtxt(model.config)
    alone = [point for point in model.points if point.at_once == 1]
    cost = ", ".join(f"{point.rows}:{point.mean_us:.1f}" for point in alone)
    config.parameters[DECLARED].string_value = cost
    # Files of the model's directory are there, not here.
    del config.model_warmup[:]
    return amend(config, f"instance_group {{ kind: KIND_CPU count: {instances_of(config)} }}")


def instances_of(config: ModelConfig) -> int:
    """Return how many instances a model executes on."""
    return max(1, sum(not plan.passive for plan in plan_instances(config, gpus=None)))
