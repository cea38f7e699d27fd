"""The origin of a point: its server, and its configuration to apply."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.sweep import Configuration, Configurator
from nbtriton.model.config import ModelConfig, format_pbtxt

if TYPE_CHECKING:
    from nbtriton.serving.server import Server


@dataclass(frozen=True, slots=True, repr=False)
class AppliedConfiguration:
    """The models that were reconfigured, displayed as their ``config.pbtxt``.

    Parameters
    ----------
    configs : mapping of str to ModelConfig
        By model.
    """

    configs: Mapping[str, ModelConfig]

    @property
    def config_pbtxt(self) -> str:
        """The text of each model's file, under a comment with its path."""
        return "\n".join(
            f"# {name}/config.pbtxt\n{format_pbtxt(config)}"
            for name, config in self.configs.items()
        )

    def __repr__(self) -> str:
        return self.config_pbtxt


class PointSource:
    """The model of a point, and a weak reference to its server.

    Parameters
    ----------
    model : str
    sweep_models : sequence of str
        Reconfigured models; by default the model, or its composing models.
    server : Server, optional
        None for a server at a URL.
    version : int, optional
        That was asked for; by default the highest.
    """

    __slots__ = ("_server", "model", "sweep_models", "version")

    def __init__(
        self,
        model: str,
        sweep_models: tuple[str, ...] = (),
        server: Server | None = None,
        version: int | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.sweep_models = sweep_models
        self._server = None if server is None else weakref.ref(server)

    @property
    def server(self) -> Server | None:
        """The server, if it still exists."""
        return None if self._server is None else self._server()

    def apply(self, configuration: Configuration, server: Server | None) -> AppliedConfiguration:
        """Load the models with this configuration; see `PerfPoint.apply`."""
        target = server or self.server
        if target is None:
            raise InvalidArgumentError(
                f"'{self.model}' was not measured on a server of this process",
                hint="give one: point.apply(server)",
            )
        configurator = Configurator(target, self.model, [configuration], self.sweep_models)
        configurator.apply(configuration)
        return AppliedConfiguration({name: target.config(name) for name in configurator.models})

    # A copied or pickled report is plain data.
    def __reduce__(self) -> tuple[Any, ...]:
        return PointSource, (self.model, self.sweep_models)
