"""One call of `nbtriton.Server.load`: an update of a model that is loaded, or a new version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nbtriton.backends import find_backend
from nbtriton.backends.base import WAY_OUT
from nbtriton.common.errors import ConfigError, InvalidArgumentError
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.runtime.engine.core.dispatch import checked_name
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.lifecycle.loading import changes_only_instances
from nbtriton.runtime.engine.lifecycle.model_builder import ModelBuilder
from nbtriton.runtime.engine.lifecycle.mtimes import source_mtime_ns

__all__ = ["LoadRequest", "model_name"]


@dataclass(slots=True, frozen=True)
class LoadRequest:
    """The arguments of a load, and the version that serves now.

    Parameters
    ----------
    config : ModelConfig
        As given, with the model's name.
    model : object
        The code, None to keep that of the latest version.
    version : int
    example, batching : object
        As for `nbtriton.Server.load`.
    serving : Runtime, optional
        The version that is to be replaced.
    latest : Runtime, optional
        The latest version.
    """

    config: ModelConfig
    model: object
    version: int
    example: object
    batching: object
    serving: Runtime | None
    latest: Runtime | None

    def updatable(self, builder: ModelBuilder) -> ModelRuntime | None:
        """Return the version that can go on, perhaps with other instances; None without one (L16)."""
        runtime, model = self.serving, self.model
        if not isinstance(runtime, ModelRuntime) or not changes_only_instances(
            runtime, self.config
        ):
            return None
        source = runtime.source
        if model is None:  # then the code is that of the latest version
            same = isinstance(self.latest, ModelRuntime) and self.latest.source is source
        else:
            # The same code with the same configuration is a fresh start.
            given = Path(model) if isinstance(model, str) else model
            same = given is source or (isinstance(given, Path) and given == source)
            same = same and builder.updated_config(runtime, self.config) != runtime.config
        same = (
            same
            and source_mtime_ns(source) == runtime.mtime_ns
            and (self.example is None or self.example is runtime.example)
            and (self.batching is None or self.batching is runtime.batching)
        )
        return runtime if same else None

    def build(self, builder: ModelBuilder) -> Runtime:
        """Make the version, with the code of the latest one if no other is given.

        Raises
        ------
        ConfigError, LoadError, InvalidArgumentError
            As `nbtriton.Server.load`.
        """
        config, model, example, batching = self.config, self.model, self.example, self.batching
        if model is None and (is_ensemble(config) or config.platform == "ensemble"):
            if batching is not None:
                raise ConfigError(
                    f"the ensemble '{config.name}' forms no batches of its own",
                    hint="give the custom batching to one of its models",
                    field="batching",
                )
            directory = None if self.latest is None else self.latest.directory  # with its labels
            return builder.build(config, None, self.version, directory=directory)
        auto_complete = True
        if model is None and isinstance(self.latest, ModelRuntime):
            model = self.latest.source
            auto_complete = self.latest.auto_complete
            example = self.latest.example if example is None else example
            if batching is None and config.HasField("dynamic_batching"):
                batching = self.latest.batching
        if (
            model is None
            and not builder.options.stand_in
            and (not config.backend or find_backend(config.backend, builder.settings).needs_source)
        ):
            raise InvalidArgumentError(
                f"no code for model '{config.name}'",
                hint="give model=…: a class, a torch module, a function or the path of a file; "
                'an ensemble has platform: "ensemble" and ensemble_scheduling; '
                f"{WAY_OUT}",
            )
        if isinstance(model, str):
            model = Path(model)
        return builder.build(
            config, model, self.version,
            example=example, batching=batching, auto_complete=auto_complete,
        )  # fmt: skip


def model_name(config: ModelConfig, name: str | None) -> str:
    """Return the name of the model that a configuration, or the caller, names.

    Raises
    ------
    ConfigError
        Neither does, or they differ.
    InvalidArgumentError
        The caller's is no text.
    """
    if name is not None:
        checked_name(name)
    if name and config.name and config.name != name:
        raise ConfigError(
            f"unexpected name '{config.name}' in the configuration of model '{name}'",
            hint="leave 'name' out of the configuration, or make the two equal",
            field="name",
        )
    found = name or str(config.name)
    if not found:
        raise ConfigError("model configuration must specify 'name'", field="name")
    return found
