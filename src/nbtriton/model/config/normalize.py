"""Defaults that Triton fills in before it checks a configuration, and the instances that follow.

Rules N1-N13 of Triton's ``AutoCompleteBackendFields``, ``NormalizeModelConfig`` and
``NormalizeInstanceGroup`` (core, model_config_utils.cc), and the names and devices of instances
(backend_model.cc ``PrepareInstances``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtriton.common.errors import ConfigError
from nbtriton.model.config._proto import KINDS, ModelConfig, copy_config, enum_name

if TYPE_CHECKING:
    from collections.abc import Collection, MutableSequence, Sequence

    from google.protobuf.message import Message

    from nbtriton.model.config._messages import ModelQueuePolicy

_SEQUENCE_IDLE_DEFAULT_US = 1_000_000

# Triton's default for backends whose CPU instances gain from overlap (SetDefaultInstanceCount).
_TWO_CPU_INSTANCES = frozenset({"tensorflow", "onnxruntime"})


@dataclass(frozen=True, slots=True)
class Family:
    """A backend's marks (N2): its platform, its file name, the files of a version."""

    backend: str
    platform: str
    filename: str
    files: tuple[str, ...]  # a directory has a slash at the end


# In Triton's order of tests.
FAMILIES = tuple(
    Family(backend, platform, filename, tuple(filename + end for end in ends))
    for backend, platform, filename, ends in (
        ("tensorflow", "tensorflow_savedmodel", "model.savedmodel", "/"),
        ("tensorflow", "tensorflow_graphdef", "model.graphdef", ("",)),
        ("tensorrt", "tensorrt_plan", "model.plan", ("",)),
        ("onnxruntime", "onnxruntime_onnx", "model.onnx", ("", "/")),
        ("openvino", "", "model.xml", ("", "/")),
        ("pytorch", "pytorch_libtorch", "model.pt", ("",)),
        ("python", "", "model.py", ("", "/")),
    )
)


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One instance that a configuration asks for.

    Parameters
    ----------
    name : str
        ``<group>_<index>``; the instances of one index on several GPUs share it, as in Triton.
    kind : str
        ``"KIND_CPU"``, ``"KIND_GPU"`` or ``"KIND_MODEL"``.
    device_id : int
        The GPU; 0 for the other kinds.
    host_policy : str
        ``"cpu"``, ``"gpu_<id>"`` or ``"model"`` unless the group names one.
    passive : bool
        True if the scheduler must not send it requests.
    group : int
        Index of its instance group in the configuration.
    shares_name : bool
        True on one of several GPUs.
    settings : bytes
        The group without its name and count: an instance can stay if one with the same settings and
        device is wanted (L16).

    Examples
    --------
    >>> config = normalize(as_config("instance_group { count: 2  kind: KIND_CPU }"), name="bert")
    >>> [plan.name for plan in plan_instances(config, gpus=None)]
    ['bert_0_0', 'bert_0_1']
    """

    name: str
    kind: str
    device_id: int
    host_policy: str
    passive: bool
    group: int = 0
    shares_name: bool = False
    settings: bytes = b""

    @property
    def label(self) -> str:
        """The name in records and views, where each instance has another one; in the words of Triton's log."""
        return f"{self.name} (GPU device {self.device_id})" if self.shares_name else self.name


def is_ensemble(config: ModelConfig) -> bool:
    """Return True for an ensemble."""
    return config.HasField("ensemble_scheduling") or config.platform == "ensemble"


def scheduling_choice(config: ModelConfig) -> str:
    """Return the scheduler that is configured: its field's name, or ``""`` for the default one."""
    return config.WhichOneof("scheduling_choice") or ""


def queue_policies(config: ModelConfig) -> dict[str, ModelQueuePolicy]:
    """Return the queue policies of the dynamic batcher by their paths in it."""
    batching = config.dynamic_batching
    policies = {"default_queue_policy": batching.default_queue_policy}
    for level in sorted(batching.priority_queue_policy):
        policies[f"priority_queue_policy[{level}]"] = batching.priority_queue_policy[level]
    return policies


def normalize(
    config: ModelConfig, *, name: str, filenames: Collection[str] | None = None
) -> ModelConfig:
    """Fill in what Triton fills in before it validates (N1-N9); a new message.

    Parameters
    ----------
    config : ModelConfig
        As the user wrote it, or as auto-complete left it: Triton normalises both.
    name : str
        The model's name (its directory's), used if the configuration has none.
    filenames : collection of str, optional
        The contents of the first version directory, directories with a slash at the end. None for a
        model without a directory, whose backend is known by other means.

    Returns
    -------
    ModelConfig
        The normalised configuration.

    Raises
    ------
    ConfigError
        N4: files are given, and neither they nor the configuration name a backend, nor does a
        name of the form ``model.<backend>``.

    Examples
    --------
    >>> normalize(as_config("max_batch_size: 8  dynamic_batching { }"), name="bert").name
    'bert'
    """
    done = copy_config(config)
    if not done.name:
        done.name = name
    _fill_backend(done, name, filenames)
    if not done.HasField("version_policy"):
        done.version_policy.latest.num_versions = 1
    if done.HasField("dynamic_batching"):
        _prefer_max(done.dynamic_batching.preferred_batch_size, done.max_batch_size)
    if done.HasField("sequence_batching"):
        sequence = done.sequence_batching
        if sequence.max_sequence_idle_microseconds == 0:
            sequence.max_sequence_idle_microseconds = _SEQUENCE_IDLE_DEFAULT_US
        if sequence.HasField("oldest"):
            _prefer_max(sequence.oldest.preferred_batch_size, done.max_batch_size)
    if not done.HasField("ensemble_scheduling"):
        for pinned in ("input_pinned_memory", "output_pinned_memory"):
            if not done.optimization.HasField(pinned):
                getattr(done.optimization, pinned).enable = True
    return done


def normalize_instance_groups(
    config: ModelConfig, *, gpus: Sequence[int] | None, default_kind: str = "KIND_CPU"
) -> ModelConfig:
    """Give every instance group its name, kind, count and GPUs (N10-N13); a new message.

    Parameters
    ----------
    config : ModelConfig
        Already normalised by `normalize`.
    gpus : sequence of int or None
        The GPUs of this machine; empty, or None where GPUs are not supported at all.
    default_kind : str
        The backend's preferred kind, for a model that configures no group. A preferred
        ``KIND_GPU`` counts only where there is a GPU.

    Returns
    -------
    ModelConfig
        The configuration with its groups resolved; an ensemble has none.
    """
    done = copy_config(config)
    if is_ensemble(done):
        return done
    present = sorted(gpus or ())
    if not done.instance_group:
        kind = default_kind if present or default_kind != "KIND_GPU" else "KIND_CPU"
        done.instance_group.add(name=done.name, kind=KINDS[kind])
    for index, group in enumerate(done.instance_group):
        if not group.name:
            group.name = f"{done.name}_{index}"
        if group.kind == KINDS["KIND_AUTO"]:
            usable = present and all(gpu in present for gpu in group.gpus)
            group.kind = KINDS["KIND_GPU" if usable else "KIND_CPU"]
        if group.count < 1:
            two = group.kind == KINDS["KIND_CPU"] and done.backend in _TWO_CPU_INSTANCES
            group.count = 2 if two else 1
        if group.kind == KINDS["KIND_GPU"] and not group.gpus:
            group.gpus.extend(present)
    return done


def plan_instances(config: ModelConfig, *, gpus: Sequence[int] | None) -> tuple[InstancePlan, ...]:
    """List the instances that a configuration asks for, in the order Triton creates them.

    Parameters
    ----------
    config : ModelConfig
        Normalised; groups that are not resolved yet are resolved for these GPUs.
    gpus : sequence of int or None
        The GPUs of this machine.

    Returns
    -------
    tuple of InstancePlan
        Empty for an ensemble.

    Examples
    --------
    >>> config = normalize(as_config("instance_group { kind: KIND_GPU }"), name="bert")
    >>> [plan.device_id for plan in plan_instances(config, gpus=[0, 1])]
    [0, 1]
    """
    plans: list[InstancePlan] = []
    groups = normalize_instance_groups(config, gpus=gpus).instance_group
    for number, group in enumerate(groups):
        kind = enum_name(group, "kind")
        devices = group.gpus if kind == "KIND_GPU" else (0,)
        settings = _settings(group)
        for index in range(group.count):
            plans.extend(
                InstancePlan(
                    name=f"{group.name}_{index}",
                    kind=kind,
                    device_id=device,
                    host_policy=group.host_policy or _host_policy(kind, device),
                    passive=group.passive,
                    group=number,
                    shares_name=len(devices) > 1,
                    settings=settings,
                )
                for device in devices
            )
    return tuple(plans)


def equal_but_for_instances(one: ModelConfig, other: ModelConfig) -> bool:
    """Return True if only instance_group and version_policy may differ (L16)."""
    bare = [copy_config(config) for config in (one, other)]
    for copy in bare:
        copy.ClearField("instance_group")
        copy.ClearField("version_policy")
    return bare[0] == bare[1]


def _settings(group: Message) -> bytes:
    copy = type(group)()
    copy.CopyFrom(group)
    copy.ClearField("name")
    copy.ClearField("count")
    return copy.SerializeToString(deterministic=True)


def _host_policy(kind: str, device: int) -> str:
    return {"KIND_GPU": f"gpu_{device}", "KIND_MODEL": "model"}.get(kind, "cpu")


def _prefer_max(preferred: MutableSequence[int], max_batch_size: int) -> None:
    """Prefer the largest batch if no size is preferred (N6, N7)."""
    if not preferred and max_batch_size > 0:
        preferred.append(max_batch_size)


def _fill_backend(config: ModelConfig, name: str, filenames: Collection[str] | None) -> None:
    """Fill in backend, platform and file name from one another (N2-N4)."""
    if not config.backend:
        family = _recognise(config, filenames)
        if family is not None:
            config.backend = family.backend
            if family.backend == "tensorflow" and not config.platform:
                config.platform = family.platform
    for family in FAMILIES:
        if config.backend != family.backend:
            continue
        if family.backend == "tensorflow" and config.platform != family.platform:
            continue  # the backend alone does not say which of its two platforms it is
        config.platform = config.platform or family.platform
        if family.backend != "pytorch" or config.runtime != "model.py":
            config.default_model_filename = config.default_model_filename or family.filename
    nothing_known = not (config.backend or config.platform or config.default_model_filename)
    if nothing_known and filenames is not None:
        _, dot, backend = name.partition(".")
        if not dot:
            raise ConfigError(
                f"Invalid model name: Could not determine backend for model '{name}' with no "
                "backend in model configuration. Expected model name of the form "
                "'model.<backend_name>'.",
                field="backend",
                hint='set backend, for example backend: "python", or put a model file such as '
                "model.py into the version directory",
            )
        config.backend = backend
        config.default_model_filename = f"model.{backend}"


def _recognise(config: ModelConfig, filenames: Collection[str] | None) -> Family | None:
    platform, filename = config.platform, config.default_model_filename
    for family in FAMILIES:
        if platform:
            found = platform == family.platform
        elif filename:
            found = filename == family.filename
        else:
            found = any(file in (filenames or ()) for file in family.files)
        if found:
            return family
    return None
