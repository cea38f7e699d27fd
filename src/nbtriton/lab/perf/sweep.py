"""Configurations of a sweep: the combinations of options, where they place models, applied and undone."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from nbtriton.common.checks import is_list
from nbtriton.common.errors import (
    ConfigWarning,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    nearest,
)
from nbtriton.lab.perf.settings import Placement, SweepSettings
from nbtriton.model.config import (
    ModelConfig,
    apply_options,
    copy_config,
    format_pbtxt,
    is_ensemble,
    normalize,
    normalize_instance_groups,
    validate,
    validate_instance_groups,
)
from nbtriton.options.server import SERVER

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server

Configuration = Mapping[str, Any]

PLACEMENTS = ("cpu", "models-on-gpu", "gpu")
_DEVICE = re.compile(r"cpu|gpu(:\d+)?")
# Options of the server, not of a model.
SERVER_OPTIONS = ("rate_limit",)
# What the client does: nothing is loaded for it.
CLIENT_OPTIONS = ("chained",)
# The last one changes fastest.
_AXES = (
    "chained", "rate_limit", "kind", "cache", "placement", "isolation", "instances", "max_batch_size", "dynamic_batching",
    "max_queue_delay_us",
)  # fmt: skip


def combinations(**given: Unpack[SweepSettings]) -> tuple[Configuration, ...]:
    """Return every combination of the given options, the last one changing fastest.

    `preferred` is one list of sizes, or a list of such lists. Delay and preferred sizes do not apply without
    the dynamic batcher; such combinations are merged.
    """
    swept: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "kind" in swept and "placement" in swept:
        raise InvalidArgumentError("kind and placement both say where models run: give one of them")
    axes: dict[str, list[Any]] = {}
    for name in (each for each in _AXES if each in swept):
        value = swept[name]
        if name == "placement":
            value = placement_list(value)
        values: list[Any] = list(value) if is_list(value) else [value]
        if not values:
            raise InvalidArgumentError(
                f"{name} is an empty list", hint="leave it out to keep what is"
            )
        axes[name] = [getattr(each, "item", lambda each=each: each)() for each in values]  # numpy's
    for limit in axes.get("rate_limit", ()):
        SERVER["rate_limit"].check(limit)
    if "preferred" in swept:
        sizes = list(swept["preferred"]) if is_list(swept["preferred"]) else [swept["preferred"]]
        nested = any(isinstance(size, Sequence) for size in sizes)
        axes["preferred"] = [tuple(each) for each in (sizes if nested else [sizes])]
    configurations: list[Configuration] = []
    for chosen in itertools.product(*axes.values()):
        options = dict(zip(axes, chosen, strict=True))
        if options.get("dynamic_batching") is False:
            options.pop("max_queue_delay_us", None)
            options.pop("preferred", None)
        if options not in configurations:
            configurations.append(options)
    return tuple(configurations)


def placement_list(given: Placement | Sequence[Placement]) -> list[Placement]:
    """Return one placement or several as a validated list.

    Raises
    ------
    InvalidArgumentError
        An unknown name or device.
    """
    placements: list[Any] = list(given) if is_list(given) else [given]
    for one in placements:
        if isinstance(one, Mapping):
            for model, device in one.items():
                if not _DEVICE.fullmatch(str(device)):
                    raise InvalidArgumentError(
                        f"unknown device '{device}' of model '{model}': it is cpu, gpu or gpu:N",
                        hint=nearest(str(device), ("cpu", "gpu")),
                    )
        elif not isinstance(one, str):
            raise InvalidArgumentError(
                f"placement must be {', '.join(PLACEMENTS)}, gpu:N, a device for each model, or a list of them; "
                f"found {one!r}"
            )
        elif one not in PLACEMENTS and not _DEVICE.fullmatch(one):
            raise InvalidArgumentError(
                f"unknown placement '{one}': it is {', '.join(PLACEMENTS)}, gpu:N for one GPU, or a "
                "device for each model",
                hint=nearest(one, PLACEMENTS),
            )
    return placements


def device_of(placement: Placement, config: ModelConfig) -> str | None:
    """Return the device of a model in a placement: ``"cpu"``, ``"gpu"`` or ``"gpu:1"``.

    None for a model that the placement does not mention. With ``"models-on-gpu"`` Python steps, which come
    before and after the models, stay on the host.
    """
    if not isinstance(placement, str):
        return placement.get(config.name)
    if placement == "models-on-gpu":
        return "cpu" if config.backend == "python" else "gpu"
    return placement


def placed(config: ModelConfig, placement: Placement) -> dict[str, Any]:
    """Return the options of `nbtriton.model.config.apply_options` for a model in a placement."""
    device = device_of(placement, config)
    if device is None:
        return {}
    kind, _, index = device.partition(":")
    # Without an id all GPUs, like an instance group without `gpus`; the host has none.
    return {"kind": kind, "gpus": [int(index)] if index else []}


def show_placement(placement: Placement) -> str:
    """Return a placement as text."""
    if isinstance(placement, str):
        return placement
    return " ".join(f"{model}={device}" for model, device in placement.items())


def with_options(config: ModelConfig, options: Configuration) -> ModelConfig:
    """Return a normalised configuration with options applied, consistent in itself.

    Normalising made ``max_batch_size`` the preferred size where none was set, so this size follows a new
    ``max_batch_size``. Preferred sizes that no longer fit are left out.
    """
    others = (*SERVER_OPTIONS, *CLIENT_OPTIONS)
    chosen = {name: value for name, value in options.items() if name not in others}
    placement = chosen.pop("placement", None)
    if chosen.pop("executes_all", False):
        config = _executing_all(config)
    if "cache" in chosen:
        chosen["response_cache"] = chosen.pop("cache")
    if chosen.get("kind") is not None and "gpu" not in chosen["kind"].lower():
        chosen["gpus"] = []  # the configuration's ids are for another kind
    if placement is not None:
        chosen |= placed(config, placement)
    size = chosen.get("max_batch_size")
    batcher = config.dynamic_batching if config.HasField("dynamic_batching") else None
    keeps_batcher = chosen.get("dynamic_batching") is not False
    if size and batcher is not None and keeps_batcher and "preferred" not in chosen:
        now = list(batcher.preferred_batch_size)
        fitting = [n for n in now if n <= size]
        chosen["preferred"] = fitting if fitting and now != [config.max_batch_size] else [size]
    return apply_options(config, **chosen)


def _executing_all(config: ModelConfig) -> ModelConfig:
    """Return a configuration under which each request is executed: none is refused, late or cached."""
    done = copy_config(config)
    done.ClearField("response_cache")
    if done.HasField("dynamic_batching"):
        done.dynamic_batching.ClearField("default_queue_policy")
        done.dynamic_batching.ClearField("priority_queue_policy")
    return done


class Configured(Protocol):
    """A source of models' configurations: a server or a profile."""

    def config(self, name: str, version: int = -1) -> ModelConfig: ...


def model_tree(
    server: Configured, model: str
) -> tuple[dict[str, ModelConfig], dict[str, ModelConfig]]:
    """Return the configurations of a model and its composing models: ensembles, and others.

    Both are in the order of a walk through the steps. A model that is no ensemble is alone in the second.
    """
    ensembles: dict[str, ModelConfig] = {}
    others: dict[str, ModelConfig] = {}

    def walk(name: str) -> None:
        if name in ensembles or name in others:
            return
        config = server.config(name)
        if not is_ensemble(config):
            others[name] = config
            return
        ensembles[name] = config
        for step in config.ensemble_scheduling.step:
            walk(step.model_name)

    walk(model)
    return ensembles, others


class SweepPlan:
    """The configurations of all models of a sweep, by the options in force. Pure.

    Parameters
    ----------
    ensembles, others : mapping
        As `model_tree` returns them.
    chosen : mapping, optional
        The models to reconfigure, by name; by default `others`.

    Attributes
    ----------
    ensembles, swept, originals : dict
        The ensembles, the models that are reconfigured, and all models.
    """

    def __init__(
        self,
        ensembles: Mapping[str, ModelConfig],
        others: Mapping[str, ModelConfig],
        chosen: Mapping[str, ModelConfig] | None = None,
    ) -> None:
        self.ensembles = dict(ensembles)
        self.swept = dict(chosen or others)
        self.originals = {**ensembles, **others, **self.swept}

    def target(self, options: Configuration) -> dict[str, ModelConfig]:
        """Return the configurations of all models under these options."""
        return self.target_of(dict.fromkeys(self.swept, options))

    def target_of(self, options: Mapping[str, Configuration]) -> dict[str, ModelConfig]:
        """Return the configurations of all models with options for each."""
        target = dict(self.originals)
        for name, chosen in options.items():
            if chosen:
                target[name] = with_options(self.originals[name], chosen)
        if any("max_batch_size" in chosen for chosen in options.values()):
            # V117 and MA8: an ensemble allows the smallest batch size of its steps. Steps come after the
            # ensemble in a walk, so go backwards for nested ones.
            for name in reversed(self.ensembles):
                self._fit_ensemble(target, name)
        return target

    def in_force(self, options: Configuration) -> dict[str, str]:
        """Return the configurations of all models under these options, as protobuf text with all defaults."""
        target = self.target(options)
        return {name: format_pbtxt(normalize(one, name=name)) for name, one in target.items()}

    def check(self, configurations: Sequence[Configuration]) -> None:
        """Refuse an invalid combination.

        Raises
        ------
        ConfigError
        """
        for options in configurations:
            for config in self.target(options).values():
                validate(config)

    def _fit_ensemble(self, target: dict[str, ModelConfig], name: str) -> None:
        config = self.originals[name]
        steps = [target[s.model_name].max_batch_size for s in config.ensemble_scheduling.step]
        sizes = [size for size in steps if size > 0]
        if config.max_batch_size > 0 and sizes:
            target[name] = apply_options(config, max_batch_size=min(sizes))


class Configurator:
    """Applies configurations to the models of a sweep, and the original ones at the end.

    Parameters
    ----------
    server : Server
    model : str
        The model to measure.
    sweep_models : sequence of str, optional
        Models to reconfigure; by default `model`, or its composing models if it is an ensemble.
    configurations : sequence of Configuration
        All configurations; each is validated before anything changes.

    Raises
    ------
    ConfigError
        An invalid combination.
    """

    def __init__(
        self,
        server: Server,
        model: str,
        configurations: Sequence[Configuration],
        sweep_models: Sequence[str] = (),
    ) -> None:
        self._server = server
        ensembles, others = model_tree(server, model)
        for name in sweep_models:
            if name in ensembles or not server.is_ready(name):
                names = [m.name for m in server.models() if m.name not in ensembles]
                raise NotFoundError(
                    f"cannot sweep the configuration of '{name}'", hint=nearest(name, names)
                )
        self._plan = SweepPlan(ensembles, others, {n: server.config(n) for n in sweep_models})
        originals = self._plan.originals
        self._given = {name: server.engine.inspection.user_config(name) for name in originals}
        self._current = dict(originals)
        self._loaded: dict[str, ModelConfig] = {}  # by this object, as `user_config` has it
        self._plan.check(configurations)
        self._check_cache(configurations)
        self._check_placements(configurations)
        self._server_options = {
            name: getattr(server.options, name)
            for name in SERVER_OPTIONS
            if any(name in options for options in configurations)
        }

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the sweep: composing models first, then the ensembles around them."""
        return (
            *self._plan.swept,
            *(name for name in self._plan.ensembles if name not in self._plan.swept),
        )

    def apply(self, options: Configuration) -> None:
        """Load the models that these options change; all models for options of the server."""
        self._set_server({name: options[name] for name in SERVER_OPTIONS if name in options})
        self._move(self._plan.target(options))

    def apply_each(self, options: Mapping[str, Configuration]) -> None:
        """Load the models that their own options change."""
        self._move(self._plan.target_of(options))

    def restore(self) -> None:
        """Load the original configurations where others apply.

        They are the user's, before completion: Triton's defaults follow from them again. A model that was
        loaded or unloaded elsewhere meanwhile stays as it is.
        """
        self._set_server(self._server_options)
        self._move(self._plan.originals, self._given)

    def _is_changed(self, name: str) -> bool:
        """Return whether a model was loaded or unloaded elsewhere since."""
        if name not in self._loaded:
            return False
        try:
            return self._server.engine.inspection.user_config(name) != self._loaded[name]
        except TritonError:
            return True

    def _set_server(self, options: Mapping[str, Any]) -> None:
        if options:  # equal options change nothing
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConfigWarning)
                self._server.set_options(**options)

    def _check_cache(self, configurations: Sequence[Configuration]) -> None:
        """Refuse to measure a cache that the server does not have."""
        needs_cache = any(options.get("cache") for options in configurations)
        if needs_cache and self._server.options.cache_bytes is None:
            raise InvalidArgumentError(
                "the server has no response cache, so cache=True would change nothing",
                hint="%triton_server --cache-bytes N, or nt.Server(cache_bytes=N)",
            )

    def _check_placements(self, configurations: Sequence[Configuration]) -> None:
        """Refuse GPUs that the server does not have, before any measurement."""
        gpus = self._server.engine.lifecycle.builder.devices.ids
        for options in configurations:
            placement = options.get("placement")
            if placement is None and "kind" not in options:
                continue
            named = () if placement is None or isinstance(placement, str) else tuple(placement)
            for name in named:
                if name not in self._plan.swept:
                    raise NotFoundError(
                        f"the placement names '{name}', which is no step that can be placed",
                        hint=nearest(name, list(self._plan.swept)),
                    )
            for config in self._plan.target(options).values():
                validate_instance_groups(normalize_instance_groups(config, gpus=gpus), gpus=gpus)

    def _move(
        self, target: Mapping[str, ModelConfig], given: Mapping[str, ModelConfig] | None = None
    ) -> None:
        failed: list[TritonError] = []
        for name in self._order(target):
            if self._current[name] == target[name]:
                continue
            if self._is_changed(name):
                if given is not None:
                    continue
                raise UnavailableError(
                    f"model '{name}' was loaded or unloaded while its configurations were measured",
                    hint="measure again",
                )
            # Unknown while it loads: an interrupt may come in between.
            self._current[name] = ModelConfig()
            self._loaded.pop(name, None)
            with warnings.catch_warnings():
                # The first load has warned of fields without effect.
                warnings.simplefilter("ignore", ConfigWarning)
                try:
                    self._server.load((given or target)[name], name=name)
                except TritonError as error:
                    if given is None:
                        raise
                    failed.append(error)  # the others are to have their own configuration again
                    continue
            self._current[name] = target[name]
            self._loaded[name] = self._server.engine.inspection.user_config(name)
        if failed:
            raise failed[0]

    def _order(self, target: Mapping[str, ModelConfig]) -> Iterator[str]:
        """Yield ensembles that shrink, then models, then the other ensembles.

        No ensemble ever allows a larger batch than one of its steps.
        """
        ensembles = list(self._plan.ensembles)
        shrinking = [
            name
            for name in ensembles
            if target[name].max_batch_size < self._current[name].max_batch_size
        ]
        yield from shrinking
        yield from (name for name in self._plan.swept if name not in ensembles)
        yield from (name for name in reversed(ensembles) if name not in shrinking)
