"""Options of a call or a magic, applied to a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from nbtriton.common.errors import ConfigError, nearest
from nbtriton.model.config._proto import KINDS, ModelConfig, copy_config
from nbtriton.model.config.ignored import EXECUTION_ENV_PATH
from nbtriton.model.config.normalize import scheduling_choice
from nbtriton.model.config.parameters import (
    INSTANCE_ISOLATION,
    INSTANCE_RESOURCES,
    INSTANCE_SHARING,
    READ_ONLY_INPUTS,
    check_isolation,
)


def apply_options(
    config: ModelConfig,
    *,
    max_batch_size: int | None = None,
    instances: int | None = None,
    kind: str | None = None,
    gpus: Sequence[int] | None = None,
    dynamic_batching: bool | None = None,
    max_queue_delay_us: int | None = None,
    preferred: Sequence[int] | None = None,
    read_only_inputs: bool | None = None,
    isolation: str | None = None,
    environment: str | None = None,
    resources: str | None = None,
    sharing: int | None = None,
    response_cache: bool | None = None,
) -> ModelConfig:
    """Return the configuration with these options set; None leaves a field as it is.

    Parameters
    ----------
    config : ModelConfig
        Not changed.
    max_batch_size : int, optional
        Largest batch; 0 for a model that does not batch.
    instances : int, optional
        ``instance_group.count``: instances per group, and per GPU in groups on GPUs.
    kind : str, optional
        ``"cpu"``, ``"gpu"``, ``"auto"``, ``"model"`` or the name in the configuration, such as
        ``"KIND_GPU"``.
    gpus : sequence of int, optional
        Device ids. They mean ``KIND_GPU`` unless `kind` is given.
    dynamic_batching : bool, optional
        True adds the dynamic batcher, False removes it.
    max_queue_delay_us : int, optional
        ``max_queue_delay_microseconds``; adds the dynamic batcher.
    preferred : sequence of int, optional
        ``preferred_batch_size``; adds the dynamic batcher.
    read_only_inputs : bool, optional
        The parameter ``READ_ONLY_INPUTS``: the model only reads its inputs, which are not copied.
    isolation : {"thread", "process", "auto", "ray"}, optional
        The parameter ``INSTANCE_ISOLATION``: where the instances live.
    environment : str, optional
        The parameter ``EXECUTION_ENV_PATH``: an archive or a folder.
    resources : str, optional
        The parameter ``INSTANCE_RESOURCES``: what each instance takes of a node of a Ray cluster.
    sharing : int, optional
        The parameter ``INSTANCE_SHARING``: how many instances share an actor there.
    response_cache : bool, optional
        ``response_cache.enable``.

    Returns
    -------
    ModelConfig
        A new message.

    Raises
    ------
    ConfigError
        An unknown kind, a value out of range, or options that exclude each other.
    InvalidArgumentError
        An unknown isolation.
    """
    done = copy_config(config)
    if max_batch_size is not None:
        _check_at_least(0, max_batch_size, "max_batch_size")
        done.max_batch_size = max_batch_size
    _apply_instances(done, instances, kind, gpus)
    if dynamic_batching is False:
        if max_queue_delay_us is not None or preferred is not None:
            raise ConfigError(
                "dynamic batching is switched off, but a queue delay or preferred sizes are given",
                field="dynamic_batching",
                hint="leave one of the options out",
            )
        done.ClearField("dynamic_batching")
    elif dynamic_batching or max_queue_delay_us is not None or preferred is not None:
        _apply_dynamic_batching(done, max_queue_delay_us, preferred)
    if read_only_inputs is not None:
        done.parameters[READ_ONLY_INPUTS].string_value = "yes" if read_only_inputs else "no"
    if isolation is not None:
        check_isolation(isolation)
        done.parameters[INSTANCE_ISOLATION].string_value = isolation
    if environment is not None:
        done.parameters[EXECUTION_ENV_PATH].string_value = environment
    if resources is not None:
        done.parameters[INSTANCE_RESOURCES].string_value = resources
    if sharing is not None:
        done.parameters[INSTANCE_SHARING].string_value = str(sharing)
    if response_cache is not None:
        done.response_cache.enable = response_cache
    return done


def _apply_instances(
    config: ModelConfig, instances: int | None, kind: str | None, gpus: Sequence[int] | None
) -> None:
    if instances is None and kind is None and gpus is None:
        return
    if not config.instance_group:
        config.instance_group.add()
    for group in config.instance_group:
        if instances is not None:
            _check_at_least(1, instances, "instance_group.count")
            group.count = instances
        if kind is not None:
            group.kind = _kind(kind)
        elif gpus:
            group.kind = KINDS["KIND_GPU"]
        if gpus is not None:
            for gpu in gpus:
                _check_at_least(0, gpu, "instance_group.gpus")
            group.ClearField("gpus")
            group.gpus.extend(gpus)


def _kind(kind: str) -> int:
    name = kind.upper()
    number = KINDS.get(name if name.startswith("KIND_") else f"KIND_{name}")
    if number is None:
        short = [known.removeprefix("KIND_").lower() for known in KINDS]
        raise ConfigError(
            f"unknown instance kind '{kind}'",
            field="instance_group.kind",
            hint=nearest(kind.lower(), short),
        )
    return number


def _apply_dynamic_batching(
    config: ModelConfig, max_queue_delay_us: int | None, preferred: Sequence[int] | None
) -> None:
    choice = scheduling_choice(config)
    if choice not in ("", "dynamic_batching"):
        raise ConfigError(
            f"dynamic batching cannot be added to '{config.name}', which uses {choice}",
            field="dynamic_batching",
            hint="a model has one scheduler",
        )
    batching = config.dynamic_batching
    batching.SetInParent()
    if max_queue_delay_us is not None:
        _check_at_least(0, max_queue_delay_us, "dynamic_batching.max_queue_delay_microseconds")
        batching.max_queue_delay_microseconds = max_queue_delay_us
    if preferred is not None:
        for size in preferred:
            _check_at_least(1, size, "dynamic_batching.preferred_batch_size")
        batching.ClearField("preferred_batch_size")
        batching.preferred_batch_size.extend(preferred)


def _check_at_least(least: int, value: int, field: str) -> None:
    # Every one of these fields holds at least 31 bits; nothing larger makes sense in any of them.
    if not least <= value < 2**31:
        raise ConfigError(
            f"'{field}' must be a number from {least} to {2**31 - 1}, got {value}", field=field
        )
