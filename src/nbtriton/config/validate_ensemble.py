"""Triton's checks of ensembles: the graph alone (class P) and with the composing models (class E).

``ValidateEnsembleSchedulingConfig`` of core's model_config_utils.cc, ``ValidateEnsembleConfig`` of
ensemble_utils.cc, ``CircularDependencyCheck`` of model_repository_manager.cc. Where Triton walks a
hash map, and so reports one of several faults by chance, this reports the first in the text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbtriton.config._proto import ModelConfig, protocol_name
from nbtriton.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nbtriton.config._messages import ModelEnsembling, ModelInput, ModelOutput

__all__ = ["validate_ensemble", "validate_structure", "validate_versions"]


@dataclass(slots=True, eq=False)
class _Node:
    """An ensemble tensor in the graph."""

    name: str
    is_output: bool = False
    ready: bool = False
    before: list[_Node] = field(default_factory=list)
    after: list[_Node] = field(default_factory=list)


def validate_structure(config: ModelConfig) -> None:
    """Check an ensemble without its composing models (V101 to V111)."""
    name = config.name
    if config.platform != "ensemble":
        raise ConfigError(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
            field="platform",
            hint='set platform: "ensemble" and no backend, or remove ensemble_scheduling',
        )
    if config.instance_group:
        raise ConfigError(
            f"instance group should not be specified for ensemble '{name}'",
            field="instance_group",
            hint="an ensemble runs nothing itself: set instance_group in the composing models",
        )
    if config.HasField("optimization"):
        raise ConfigError(
            f"optimization should not be specified for ensemble '{name}'",
            field="optimization",
            hint="set optimization in the composing models",
        )
    if config.model_warmup:
        raise ConfigError(
            f"model_warmup can not be specified for ensemble '{name}'",
            field="model_warmup",
            hint="set model_warmup in the composing models",
        )
    if not config.ensemble_scheduling.step:
        raise ConfigError(
            f"must specify 'step' for ensemble '{name}'",
            field="ensemble_scheduling.step",
            hint="add a step with model_name, input_map and output_map",
        )
    graph = _build_graph(config)
    _flow(config, graph)
    outputs = _validate_outputs(config, graph)
    unused = [
        node
        for node in graph.values()
        if node.name not in outputs and not (node.ready and node.after)
    ]
    # A tensor that nothing writes is the cause of those that wait for it.
    for node in sorted(unused, key=lambda node: node.is_output):
        raise ConfigError(
            f"ensemble tensor '{node.name}' is unused in ensemble '{name}'",
            field="ensemble_scheduling.step",
            hint=f"nothing reads '{node.name}': make it an output, let a step read it, or leave it "
            "out of output_map"
            if node.ready
            else _hint_unready(_unready_source(node)),
        )


def _build_graph(config: ModelConfig) -> dict[str, _Node]:
    name = config.name
    graph: dict[str, _Node] = {}
    for index, step in enumerate(config.ensemble_scheduling.step):
        path = f"ensemble_scheduling.step[{index}]"
        for required in ("model_name", "input_map", "output_map"):
            if not getattr(step, required):
                raise ConfigError(
                    f"must specify '{required}' in step {index} of ensemble '{name}'",
                    field=f"{path}.{required}",
                    hint="the name of the composing model"
                    if required == "model_name"
                    else f'for example {required} {{ key: "<tensor of the model>" '
                    'value: "<tensor of the ensemble>" }',
                )
        written: list[_Node] = []
        for _, tensor in sorted(step.output_map.items()):
            node = graph.setdefault(tensor, _Node(tensor))
            if node.is_output:
                raise ConfigError(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for "
                    f"ensemble '{name}' step {index}",
                    field=f"{path}.output_map",
                    hint="give this output another ensemble tensor",
                )
            node.is_output = True
            written.append(node)
        for _, tensor in sorted(step.input_map.items()):
            read = graph.setdefault(tensor, _Node(tensor))
            for node in written:
                node.before.append(read)
                read.after.append(node)
    return graph


def _flow(config: ModelConfig, graph: dict[str, _Node]) -> None:
    """Mark every tensor that the ensemble's inputs lead to."""
    queue: deque[_Node] = deque()
    for index, tensor in enumerate(config.input):
        node = graph.get(tensor.name)
        if node is None:
            raise ConfigError(
                f"ensemble input '{tensor.name}' for ensemble {config.name}' is not used",
                field=f"input[{index}].name",
                hint=nearest(tensor.name, graph),
            )
        node.ready = True
        queue.append(node)
    while queue:
        for node in queue.popleft().after:
            if not node.ready and all(before.ready for before in node.before):
                node.ready = True
                queue.append(node)


def _validate_outputs(config: ModelConfig, graph: dict[str, _Node]) -> set[str]:
    for index, tensor in enumerate(config.output):
        node = graph.get(tensor.name)
        if node is None:
            raise ConfigError(
                f"ensemble output '{tensor.name}' for ensemble {config.name}' is not used",
                field=f"output[{index}].name",
                hint=nearest(tensor.name, graph),
            )
        if not node.ready:
            culprit = _unready_source(node)
            message = f"output '{tensor.name}' for ensemble '{config.name}' is not written"
            if culprit is not node:
                message += (
                    f": at least one of its depending tensors, '{culprit.name}', is not connected"
                )
            raise ConfigError(
                message,
                field=f"output[{index}].name",
                hint=_hint_unready(culprit),
            )
    return {tensor.name for tensor in config.output}


def _unready_source(node: _Node) -> _Node:
    """Walk up to the tensor that was never ready; in a circle, to where it was entered."""
    seen: set[str] = set()
    last = node
    while True:
        missing = (one for one in last.before if not one.ready and one.name not in seen)
        above = next(missing, None)
        if above is None:
            return last
        seen.add(above.name)
        last = above


def _hint_unready(culprit: _Node) -> str:
    if culprit.is_output:
        return "the steps wait for each other in a circle"
    return f"make '{culprit.name}' an input of the ensemble or let a step write it"


@dataclass(slots=True, eq=False)
class _Tensor:
    """An ensemble tensor with what the first model to mention it says about it."""

    model: str
    data_type: int = 0
    dims: tuple[int, ...] = ()
    batching: bool = False
    is_decoupled: bool = False
    label: int = 0
    visited: bool = False
    before: list[_Tensor] = field(default_factory=list)
    after: list[_Tensor] = field(default_factory=list)
    # The outputs of one step share the label of that step.
    step: _StepLabel | None = None

    @property
    def full_dims(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batching else self.dims


@dataclass(slots=True, eq=False)
class _StepLabel:
    """Which decoupled model the responses of one step come from; 0 for none."""

    label: int | None = None


def validate_ensemble(
    config: ModelConfig,
    members: Mapping[str, ModelConfig],
    versions: Mapping[str, Collection[int]] | None = None,
) -> ModelConfig:
    """Check an ensemble against the models it is made of (V112, V115 to V123).

    Parameters
    ----------
    config : ModelConfig
        Normalised and valid by itself.
    members : mapping of str to ModelConfig
        The final configurations of the models that may be used, nested ensembles included.
    versions : mapping of str to collection of int, optional
        Which versions of them there are; not checked for models that it does not name.

    Returns
    -------
    ModelConfig
        The ensemble with ``model_transaction_policy.decoupled`` computed from its models.

    Raises
    ------
    ConfigError
        With Triton's text, the field at fault and what would be right.
    """
    steps = config.ensemble_scheduling.step
    known = {*members, config.name}
    missing = list(dict.fromkeys(step.model_name for step in steps if step.model_name not in known))
    if missing:
        also = f"; also missing: {', '.join(missing[1:])}" if missing[1:] else ""
        raise ConfigError(
            # Triton stops at the first.
            f"ensemble {config.name} contains models that are not available or ambiguous: "
            + missing[0],
            field="ensemble_scheduling.step.model_name",
            hint=(nearest(missing[0], members) or "no model is loaded") + also,
        )
    _validate_no_circle(config.name, config.name, {**members, config.name: config}, set())
    validate_versions(config, versions or {})
    tensors, sink = _own_tensors(config)
    for index, step in enumerate(steps):
        member = members[step.model_name]
        path = f"ensemble_scheduling.step[{index}]"
        if 0 < member.max_batch_size < config.max_batch_size:
            raise ConfigError(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it "
                f"contains model {step.model_name} which only allows maximum batch size to be "
                f"{member.max_batch_size}",
                field="max_batch_size",
                hint=f"set max_batch_size: {member.max_batch_size} or less, or raise that of "
                f"{step.model_name}",
            )
        _map_inputs(config.name, step, member, tensors, path)
        _map_outputs(config.name, step, member, tensors, path)
    done = ModelConfig()
    done.CopyFrom(config)
    done.model_transaction_policy.decoupled = _label_decoupled(config, tensors, sink)
    return done


def validate_versions(config: ModelConfig, versions: Mapping[str, Collection[int]]) -> None:
    """Check that the versions that steps name are there; -1 is the highest (V115).

    Raises
    ------
    ConfigError
        With Triton's text.
    """
    for index, step in enumerate(config.ensemble_scheduling.step):
        known = versions.get(step.model_name)
        wanted = int(step.model_version)
        if known is not None and wanted != -1 and wanted not in known:
            raise ConfigError(
                f"ensemble '{config.name}' depends on '{step.model_name}' whose required version "
                f"{wanted} is not loaded.",
                field=f"ensemble_scheduling.step[{index}].model_version",
                hint=f"versions of {step.model_name}: {', '.join(map(str, sorted(known)))}; "
                "-1 is the highest one",
            )


def _validate_no_circle(
    start: str, current: str, configs: Mapping[str, ModelConfig], seen: set[str]
) -> None:
    seen.add(current)
    for step in configs[current].ensemble_scheduling.step:
        if step.model_name == start:
            raise ConfigError(
                f"circular dependency between ensembles: {start} -> ... -> {current} -> {start}",
                field="ensemble_scheduling.step.model_name",
                hint=f"{current} must not use {start}",
            )
        if step.model_name in configs and step.model_name not in seen:
            _validate_no_circle(start, step.model_name, configs, seen)


def _own_tensors(config: ModelConfig) -> tuple[dict[str, _Tensor], _Tensor]:
    """Return the tensors that the ensemble itself describes, and a sink behind its outputs."""
    batching = config.max_batch_size > 0
    tensors = {
        tensor.name: _Tensor(config.name, tensor.data_type, _own_dims(tensor), batching)
        for tensor in reversed(config.input)  # the first of a name counts
    }
    sink = _Tensor(config.name)
    for output in config.output:
        own = _Tensor(config.name, output.data_type, _own_dims(output), batching)
        tensor = tensors.setdefault(output.name, own)
        sink.before.append(tensor)
        tensor.after.append(sink)
    return tensors, sink


def _own_dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _map_inputs(
    ensemble: str,
    step: ModelEnsembling.Step,
    member: ModelConfig,
    tensors: dict[str, _Tensor],
    path: str,
) -> None:
    known = [tensor.name for tensor in member.input]
    for name, tensor in sorted(step.input_map.items()):
        if name not in known:
            raise ConfigError(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing "
                f"input {name} in model {step.model_name}",
                field=f"{path}.input_map",
                hint=nearest(name, known),
            )
    for wanted in member.input:
        if wanted.name in step.input_map:
            _join(ensemble, step.input_map[wanted.name], wanted, step, member, tensors)
        elif not wanted.optional:
            raise ConfigError(
                f"in ensemble {ensemble}, input {wanted.name} in model {step.model_name} is not "
                "mapped to any ensemble tensors",
                field=f"{path}.input_map",
                hint=f'add input_map {{ key: "{wanted.name}" value: "<ensemble tensor>" }}',
            )


def _map_outputs(
    ensemble: str,
    step: ModelEnsembling.Step,
    member: ModelConfig,
    tensors: dict[str, _Tensor],
    path: str,
) -> None:
    known = {tensor.name: tensor for tensor in reversed(member.output)}
    for name, tensor in sorted(step.output_map.items()):
        if name not in known:
            raise ConfigError(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing "
                f"output {name} in model {step.model_name}",
                field=f"{path}.output_map",
                hint=nearest(name, known),
            )
    label = _StepLabel()
    read = [tensors[tensor] for _, tensor in sorted(step.input_map.items())]
    for name, tensor in sorted(step.output_map.items()):
        written = _join(ensemble, tensor, known[name], step, member, tensors)
        written.step = label
        written.is_decoupled = member.model_transaction_policy.decoupled
        for source in read:
            written.before.append(source)
            source.after.append(written)


def _join(
    ensemble: str,
    tensor: str,
    described: ModelInput | ModelOutput,
    step: ModelEnsembling.Step,
    member: ModelConfig,
    tensors: dict[str, _Tensor],
) -> _Tensor:
    """Return the ensemble tensor after checking that this model agrees with the others on it."""
    mine = _Tensor(
        step.model_name, described.data_type, tuple(described.dims), member.max_batch_size > 0
    )
    known = tensors.setdefault(tensor, mine)
    if known.data_type != mine.data_type:
        raise ConfigError(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent data type: "
            f"{_type_name(known)} is inferred from model {known.model} while {_type_name(mine)} is "
            f"inferred from model {mine.model}",
            field="data_type",
            hint=f"'{tensor}' needs one data type on both sides",
        )
    if not _match(known.dims, mine.dims) and not _match(known.full_dims, mine.full_dims):
        raise ConfigError(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent shape: "
            f"{_shape(known.full_dims)} is inferred from model {known.model} while "
            f"{_shape(mine.full_dims)} is inferred from model {mine.model}",
            field="dims",
            hint="dims must agree one by one, where -1 agrees with any; a batch dimension counts "
            "as a leading -1",
        )
    return known


def _match(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )


def _shape(dims: Sequence[int]) -> str:
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def _type_name(tensor: _Tensor) -> str:
    name = protocol_name(tensor.data_type)
    return "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"


def _label_decoupled(config: ModelConfig, tensors: Mapping[str, _Tensor], sink: _Tensor) -> bool:
    """Give every tensor the label of the decoupled model it comes from; at most one may meet."""
    labels = 0
    queue: deque[_Tensor] = deque()
    for described in config.input:
        source = tensors[described.name]
        source.visited = True
        queue.append(source)
    while queue:
        for tensor in queue.popleft().after:
            if tensor.visited or not all(before.visited for before in tensor.before):
                continue
            label = tensor.before[0].label
            if any(before.label != label for before in tensor.before):
                raise ConfigError(
                    f"in ensemble {config.name}, step of model '{tensor.model}' receives inputs "
                    "originated from different decoupled models",
                    field="ensemble_scheduling.step",
                    hint="responses of two decoupled models cannot be paired: join them in one "
                    "model, or let only one path be decoupled",
                )
            step = tensor.step
            if step is not None and step.label is not None:
                tensor.label = step.label
            else:
                if tensor.is_decoupled:
                    labels += 1
                    label = labels
                tensor.label = label
                if step is not None:
                    step.label = label
            tensor.visited = True
            if tensor is not sink:
                queue.append(tensor)
    return labels != 0
