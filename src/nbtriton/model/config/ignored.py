"""Fields of a configuration that have no effect here, with the reason, and settings that only work here.

A configuration that Triton accepts is accepted and reported unchanged; fields that this runtime
does not act on are reported here. There are two tables: fields that never have an effect, and
fields that have none in combination with others, in Triton as here.

Settings that work here but fail or misbehave in Triton 2.51 have the names of ``docs/differences.md``, which has
the reasons. If only a model's code uses a feature, the warning is given at its line
(`nbtriton.backends.python.api.pybind.warn_newer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from nbtriton.common.foreign import BATCH_STRATEGY
from nbtriton.model.config._proto import ModelConfig, copy_config, enum_name, is_map, is_repeated
from nbtriton.model.config.normalize import is_ensemble, queue_policies
from nbtriton.model.config.parameters import INSTANCE_SHARING, sharing_of
from nbtriton.model.config.validate_io import STRATEGY_PATH

_FRAMEWORK = "it configures a graph compiler that the backends here do not use"
_COPIES = "it tunes copies of Triton's C++ backends; here a batch is gathered by its framework"
_MEMORY = "where a state lies in memory is the model's own affair here"

# Paths without indices and keys.
NEVER: Final = {
    "input.format": "only TensorRT acts on it; the other backends take tensors as they are",
    "cc_model_filenames": (
        "it chooses a file by the compute capability of a GPU; "
        "here the same code runs on every device"
    ),
    "model_metrics": "the metrics endpoint has no histograms whose buckets could be chosen",
    "model_operations": "it loads operator libraries of TensorFlow or ONNX Runtime, and this backend is neither",
    "instance_group.secondary_devices": "no backend here uses a second device, such as a DLA core",
    "instance_group.profile": "only TensorRT has optimization profiles",
    "optimization.graph": _FRAMEWORK,
    "optimization.execution_accelerators": _FRAMEWORK,
    "optimization.priority": (
        "it sets how nice a batcher's thread is; requests are scheduled by the threads that bring "
        "them here"
    ),
    "optimization.cuda": "CUDA graphs, streams and events are the framework's own affair here",
    "optimization.gather_kernel_buffer_threshold": _COPIES,
    "optimization.eager_batching": _COPIES,
    "sequence_batching.state.use_same_buffer_for_input_output": _MEMORY,
    "sequence_batching.state.use_growable_memory": _MEMORY,
    "ensemble_scheduling.step.model_namespace": "models have no namespaces here",
}
_CUDA_OF_TORCH = {
    "optimization.cuda.busy_wait_events": "what waits for a GPU sleeps",
    "optimization.cuda.graph_spec": "a CUDA graph is captured for each set of shapes that comes",
    "optimization.cuda.output_copy_stream": "outputs leave by the stream of their instance",
}
PYTHON = {
    "batch_input": (
        "a TritonPythonModel gets the tensors of each request and no others, as in Triton; "
        "a plain function would get it"
    ),
    "batch_output": (
        "a TritonPythonModel answers each request by itself, as in Triton; "
        "the output of a plain function would be split by it"
    ),
}
# Something that the model or its server lacks, and the field that then has no effect.
WITHOUT: Final = {
    "agents": ("model_repository_agents", "agents look at a model's directory, and this one has none"),
    "labels": ("output.label_filename", "labels are read from a model's directory, and this one has none"),
    "cache": ("response_cache", "this server has no response cache: nt.server(cache_bytes=…) or %triton_server --cache-bytes, nbtriton serve --cache-config"),
    "policies": ("instance_group.host_policy", "it binds processes of instances to cores and memory: nt.server(isolation='process', host_policies={…}), or --isolation process --host-policy NAME,cpu-cores=0-3 of %triton_server and nbtriton serve"),
    "limiter": ("instance_group.rate_limiter", "this server limits no rates: nt.server(rate_limit='execution_count'), or --rate-limit of %triton_server and nbtriton serve"),
}  # fmt: skip
# Fields that only that backend acts on.
ONNXRUNTIME = ("model_operations", "optimization.graph")
PARAMETERS: Final = {STRATEGY_PATH: str(BATCH_STRATEGY)}
EXECUTION_ENV_PATH: Final = "EXECUTION_ENV_PATH"
NO_ENVIRONMENT: Final = "only the python backend has environments, as in Triton"
NO_ACTORS: Final = "actors are shared with isolation ray"
PINNED: Final = "the frameworks here allocate host memory as they do"


def ignored_fields(
    config: ModelConfig,
    *,
    whole_batches: bool = False,
    agents: bool = True,
    labels: bool = True,
    cache: bool = True,
    limiter: bool = True,
    policies: bool = True,
    actors: bool = True,
) -> list[tuple[str, str]]:
    """Return the set fields of a configuration that have no effect here.

    Parameters
    ----------
    config : ModelConfig
        As written, or normalised: additions by normalisation are not reported.
    whole_batches : bool
        Whether the model is a plain function, which gets whole batches.
    agents : bool
        Whether the model came from a repository, where its agents have looked at it.
    labels : bool
        Whether the model has a directory, which may have label files.
    cache, limiter : bool
        Whether the server has a response cache and a rate limiter.
    policies : bool
        Whether the instances live in processes, and the server has host policies.
    actors : bool
        Whether the instances live in actors of a Ray cluster.

    Returns
    -------
    list of (str, str)
        Paths, such as ``instance_group[0].host_policy`` or ``parameters[EXECUTION_ENV_PATH]``, in
        the order of the message, with the reason as a sentence without a full stop. Fields set to
        their default count as not set.

    Examples
    --------
    >>> ignored_fields(as_config("optimization { graph { level: 1 } }"))
    [('optimization.graph', 'it configures a graph compiler that the backends here do not use')]
    """
    in_python = config.backend == "python" and not whole_batches
    table = {**NEVER, **(PYTHON if in_python else {})}
    cache = cache or not config.response_cache.enable
    has = {"agents": agents, "labels": labels, "cache": cache, "limiter": limiter}
    has["policies"] = policies
    table |= dict(field for what, field in WITHOUT.items() if not has[what])
    for path in ONNXRUNTIME if config.backend == "onnxruntime" else ():
        del table[path]
    kinds = {enum_name(group, "kind") for group in config.instance_group}
    if config.backend == "pytorch" and kinds != {"KIND_CPU"}:
        del table["optimization.cuda"]
        table |= _CUDA_OF_TORCH
    found = list(_never(config, table))
    for key, reason in PARAMETERS.items():
        if key in config.parameters:
            found.append((f"parameters[{key}]", reason))
    if EXECUTION_ENV_PATH in config.parameters and not _is_python(config):
        found.append((f"parameters[{EXECUTION_ENV_PATH}]", NO_ENVIRONMENT))
    for rule in _RULES:
        found += rule(config)
    if not actors and sharing_of(config) > 1:
        found.append((f"parameters[{INSTANCE_SHARING}]", NO_ACTORS))
    return found


def _is_python(config: ModelConfig) -> bool:
    """Return True also for a Python-based backend."""
    return config.backend in ("", "python") or config.runtime == "model.py"


def _never(message: Message, table: dict[str, str], at: str = "") -> Iterator[tuple[str, str]]:
    """Walk the set fields; ``at`` is the path of the message, with indices."""
    for field, value in message.ListFields():
        path = f"{at}.{field.name}" if at else field.name
        reason = table.get(_plain(path))
        if reason is not None:
            for one in _entries(path, field, value) if is_repeated(field) else (path,):
                yield one, reason
        elif field.message_type is not None and not is_map(field):
            inner = value if is_repeated(field) else (value,)
            for index, one in enumerate(inner):
                where = f"{path}[{index}]" if is_repeated(field) else path
                yield from _never(one, table, where)


def _entries(path: str, field: Any, value: Any) -> Iterator[str]:
    """Yield a path for each entry of a map or of a list of messages; a list of scalars is one."""
    if is_map(field):
        yield from (f"{path}[{key}]" for key in sorted(value))
    elif field.message_type is None:
        yield path
    else:
        yield from (f"{path}[{index}]" for index in range(len(value)))


def _plain(path: str) -> str:
    return ".".join(part.partition("[")[0] for part in path.split("."))


# -- fields that others make ineffective -------------------------------------------------------------


def _pinned(config: ModelConfig) -> Iterator[tuple[str, str]]:
    optimization = config.optimization
    for name in ("input_pinned_memory", "output_pinned_memory"):
        # True is the default that normalisation writes.
        if optimization.HasField(name) and not getattr(optimization, name).enable:
            yield f"optimization.{name}", PINNED


def _priorities(config: ModelConfig) -> Iterator[tuple[str, str]]:
    batching = config.dynamic_batching
    if batching.priority_levels:
        return
    reason = "priority_levels is 0: there are no priorities"
    if batching.default_priority_level:
        yield "dynamic_batching.default_priority_level", reason
    for level in sorted(batching.priority_queue_policy):
        yield f"dynamic_batching.priority_queue_policy[{level}]", reason


def _delay(config: ModelConfig) -> Iterator[tuple[str, str]]:
    if config.dynamic_batching.max_queue_delay_microseconds and config.max_batch_size <= 1:
        yield (
            "dynamic_batching.max_queue_delay_microseconds",
            f"max_batch_size is {config.max_batch_size}: no request waits for another one",
        )


def _timeouts(config: ModelConfig) -> Iterator[tuple[str, str]]:
    levels = config.dynamic_batching.priority_levels
    for name, policy in queue_policies(config).items():
        if policy.default_timeout_microseconds or (name != "default_queue_policy" and not levels):
            continue
        if policy.timeout_action:
            yield (
                f"dynamic_batching.{name}.timeout_action",
                "default_timeout_microseconds is 0: nothing times out",
            )
        if policy.allow_timeout_override:
            yield (
                f"dynamic_batching.{name}.allow_timeout_override",
                (
                    "a request can only shorten default_timeout_microseconds, and that is 0; it only "
                    "keeps batches from being formed ahead of time"
                ),
            )


def _slots(config: ModelConfig) -> Iterator[tuple[str, str]]:
    direct = config.sequence_batching.direct
    slots, delay = "minimum_slot_utilization", "max_queue_delay_microseconds"
    for one, other, reason in (
        (slots, delay, "no slot is waited for"),
        (delay, slots, "one slot with a request is enough"),
    ):
        if getattr(direct, one) and not getattr(direct, other):
            yield f"sequence_batching.direct.{one}", f"{other} is 0: {reason}"


def _runtime(config: ModelConfig) -> Iterator[tuple[str, str]]:
    if config.runtime and is_ensemble(config):
        yield "runtime", "an ensemble has no backend"


def _pytorch(config: ModelConfig) -> Iterator[tuple[str, str]]:
    if config.backend != "pytorch":
        return
    compiles = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
    for key, reason in (
        ("ENABLE_NVFUSER", "PyTorch has no NVFuser any more"),
        ("ENABLE_WEIGHT_SHARING", "the instances on a device share the weights anyway"),
        (compiles, 'runtime: "model.py" is what compiles a module'),
    ):
        if key in config.parameters and not (key == compiles and config.runtime == "model.py"):
            yield f"parameters[{key}]", reason


_RULES: Final[tuple[Callable[[ModelConfig], Iterator[tuple[str, str]]], ...]] = (
    _pinned,
    _priorities,
    _delay,
    _timeouts,
    _slots,
    _runtime,
    _pytorch,
)


class Difference(NamedTuple):
    """A section of ``docs/differences.md`` that applies to a model.

    Attributes
    ----------
    name : str
        Of the section.
    text : str
        What Triton 2.51 does, as a sentence without a full stop.

    Examples
    --------
    >>> print(Difference("cache-errors", "Triton 2.51 answers …"))
    Triton 2.51 answers … (docs/differences.md: cache-errors)
    """

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} (docs/differences.md: {self.name})"


_LATER_DATATYPES = {"TYPE_BF16", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"}


def _newer_fields(config: ModelConfig) -> bool:
    return bool(config.ensemble_scheduling.max_inflight_requests) or config.HasField(
        "model_metrics"
    )


def _name_with_space(config: ModelConfig) -> bool:
    names = [config.name, *(group.name for group in config.instance_group)]
    return config.backend == "python" and any(" " in name for name in names)


def _state_from_python(config: ModelConfig) -> bool:
    return config.backend == "python" and bool(config.sequence_batching.state)


def _text_ids(config: ModelConfig) -> bool:
    controls = [
        control for one in config.sequence_batching.control_input for control in one.control
    ]
    return any(enum_name(control, "data_type") == "TYPE_STRING" for control in controls)


def _later_datatypes(config: ModelConfig) -> bool:
    tensors = [*config.input, *config.output]
    return config.backend == "pytorch" and any(
        enum_name(tensor, "data_type") in _LATER_DATATYPES for tensor in tensors
    )


def _cached_in_order(config: ModelConfig) -> bool:
    return config.response_cache.enable and config.dynamic_batching.preserve_ordering


def _cached(config: ModelConfig) -> bool:
    # The others go wrong once an answer comes from the cache.
    return config.response_cache.enable and not config.dynamic_batching.preserve_ordering


def _cached_ambiguously(config: ModelConfig) -> bool:
    """Return True if equal bytes may be different requests: shapes with two free dimensions, or outputs."""
    free = sum(dim == -1 for tensor in config.input for dim in tensor.dims)
    free += config.max_batch_size > 0
    return _cached(config) and (free > 1 or len(config.output) > 1)


_TABLE: Final[tuple[tuple[Callable[[ModelConfig], bool], Difference], ...]] = tuple(
    (holds, Difference(name, f"Triton 2.51 {text}"))
    for holds, name, text in (
        (_newer_fields, "newer-fields", "knows neither model_metrics nor max_inflight_requests, and refuses the configuration"),
        (_name_with_space, "names-of-python-models", "does not load a Python model whose name has a space"),
        (_state_from_python, "state-from-python", "cannot write an implicit state from its python backend"),
        (_text_ids, "string-correlation-ids", "refuses correlation ids for a TYPE_STRING control that have not 128 characters"),
        (_later_datatypes, "pytorch-datatypes", "has no BF16, UINT16, UINT32 and UINT64 in its pytorch backend"),
        (_cached_in_order, "cache-with-order", "never answers what comes behind a hit of the response cache with preserve_ordering"),
        (_cached_ambiguously, "cache-key", "answers inputs of the same bytes in another shape, and requests for other outputs, from the response cache"),
        (_cached, "cache-errors", "answers a request that failed, when it comes again, from the response cache: without outputs"),
    )
)  # fmt: skip


def differences(config: ModelConfig, *, cache: bool = True) -> list[Difference]:
    """Return the settings of a completed configuration that work here but not in Triton 2.51.

    Parameters
    ----------
    config : ModelConfig
    cache : bool
        Whether the server has a response cache.

    Examples
    --------
    >>> [one.name for one in differences(as_config("response_cache { enable: true }"))]
    ['cache-errors']
    """
    if config.response_cache.enable and not cache:
        config = copy_config(config)
        config.ClearField("response_cache")
    return [difference for holds, difference in _TABLE if holds(config)]
