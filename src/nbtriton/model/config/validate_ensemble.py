"""Triton's checks of ensembles: their graph (class P), and their composing models (class E).

``ValidateEnsembleSchedulingConfig`` of core's model_config_utils.cc, ``ValidateEnsembleConfig`` of
ensemble_utils.cc, ``CircularDependencyCheck`` of model_repository_manager.cc. Where Triton walks a
hash map, and so reports one of several faults by chance, this reports the first in the text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtriton.common.errors import ConfigError, nearest
from nbtriton.model.config._proto import ModelConfig, copy_config, enum_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from nbtriton.model.config._messages import ModelEnsembling, ModelInput, ModelOutput

# Fields that an ensemble cannot have, and how Triton begins to say so.
_OF_MODELS = {
    "instance_group": "instance group should not",
    "optimization": "optimization should not",
    "model_warmup": "model_warmup can not",
}


@dataclass(frozen=True, slots=True)
class _Step:
    """A model, and the ensemble tensors that it reads and writes, by its own names for them."""

    model: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def validate_structure(config: ModelConfig) -> None:
    """Check an ensemble without its composing models (V101 to V111)."""
    name = config.name
    if config.platform != "ensemble":
        raise ConfigError(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
            field="platform",
            hint='set platform: "ensemble" and no backend, or remove ensemble_scheduling',
        )
    given = {field.name for field, _ in config.ListFields()}
    for owned, refusal in _OF_MODELS.items():
        if owned in given:
            raise ConfigError(
                f"{refusal} be specified for ensemble '{name}'",
                field=owned,
                hint=f"an ensemble runs nothing itself: set {owned} in the composing models",
            )
    if not config.ensemble_scheduling.step:
        raise ConfigError(
            f"must specify 'step' for ensemble '{name}'",
            field="ensemble_scheduling.step",
            hint="add a step with model_name, input_map and output_map",
        )
    _validate_maps(config)
    steps = _steps(config)
    tensors = list(dict.fromkeys(one for step in steps for one in (*step.writes, *step.reads)))
    for index, tensor in enumerate(config.input):
        _validate_name(tensor.name, f"input[{index}]", name, tensors)
    inputs = [tensor.name for tensor in config.input]
    ready = {*inputs, *(one for step in _flow(inputs, steps) for one in step.writes)}
    writers = {tensor: step for step in steps for tensor in step.writes}
    for index, output in enumerate(config.output):
        _validate_name(output.name, f"output[{index}]", name, tensors)
        if output.name not in ready:
            culprit = _unready_source(output.name, writers, ready)
            because = f": at least one of its depending tensors, '{culprit}', is not connected"
            raise ConfigError(
                f"output '{output.name}' for ensemble '{name}' is not written"
                + (because if culprit != output.name else ""),
                field=f"output[{index}].name",
                hint=_hint_unready(culprit, writers),
            )
    used = {output.name for output in config.output}
    used |= ready & {tensor for step in steps for tensor in step.reads}
    # A tensor that nothing writes is the cause of those that wait for it.
    for unused in sorted(tensors, key=lambda one: one in writers):
        if unused not in used:
            raise ConfigError(
                f"ensemble tensor '{unused}' is unused in ensemble '{name}'",
                field="ensemble_scheduling.step",
                hint=f"nothing reads '{unused}': make it an output, let a step read it, or leave it "
                "out of output_map"
                if unused in ready
                else _hint_unready(_unready_source(unused, writers, ready), writers),
            )


def _validate_maps(config: ModelConfig) -> None:
    name = config.name
    written: set[str] = set()
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
        for _, tensor in sorted(step.output_map.items()):
            if tensor in written:
                raise ConfigError(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for "
                    f"ensemble '{name}' step {index}",
                    field=f"{path}.output_map",
                    hint="give this output another ensemble tensor",
                )
            written.add(tensor)


def _steps(config: ModelConfig) -> list[_Step]:
    return [
        _Step(
            step.model_name,
            tuple(tensor for _, tensor in sorted(step.input_map.items())),
            tuple(tensor for _, tensor in sorted(step.output_map.items())),
        )
        for step in config.ensemble_scheduling.step
    ]


def _flow(inputs: Iterable[str], steps: Iterable[_Step]) -> Iterator[_Step]:
    """Yield the steps that the inputs lead to, in the order in which their own inputs are ready."""
    ready = dict.fromkeys(inputs)
    queue = deque(ready)
    waiting = list(steps)
    while queue:
        tensor = queue.popleft()
        for step in [
            one for one in waiting if tensor in one.reads and ready.keys() >= {*one.reads}
        ]:
            waiting.remove(step)
            queue.extend(written for written in step.writes if written not in ready)
            ready.update(dict.fromkeys(step.writes))
            yield step


def _validate_name(tensor: str, field: str, ensemble: str, tensors: Collection[str]) -> None:
    if tensor not in tensors:
        raise ConfigError(
            f"ensemble {field.partition('[')[0]} '{tensor}' for ensemble {ensemble}' is not used",
            field=f"{field}.name",
            hint=nearest(tensor, tensors),
        )


def _unready_source(tensor: str, writers: Mapping[str, _Step], ready: Collection[str]) -> str:
    """Walk up to the tensor that was never ready; in a circle, to where it was entered."""
    seen: set[str] = set()
    last = tensor
    while last in writers:
        missing = (one for one in writers[last].reads if one not in ready and one not in seen)
        above = next(missing, None)
        if above is None:
            break
        seen.add(above)
        last = above
    return last


def _hint_unready(culprit: str, writers: Collection[str]) -> str:
    if culprit in writers:
        return "the steps wait for each other in a cycle"
    return f"make '{culprit}' an input of the ensemble or let a step write it"


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An ensemble tensor as the first model that mentions it describes it."""

    model: str
    data_type: str
    dims: tuple[int, ...]
    batching: bool

    @property
    def full_dims(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batching else self.dims


def validate_ensemble(
    config: ModelConfig,
    members: Mapping[str, ModelConfig],
    versions: Mapping[str, Collection[int]] | None = None,
) -> ModelConfig:
    """Check an ensemble against its composing models (V112, V115 to V123).

    Parameters
    ----------
    config : ModelConfig
        Normalised and valid by itself.
    members : mapping of str to ModelConfig
        The final configurations of the models that may be used, nested ensembles included.
    versions : mapping of str to collection of int, optional
        Their versions; models that are not in it are not checked.

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
    tensors = _own_tensors(config)
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
        maps = _MapCheck(config.name, path, step, member, tensors)
        maps.check_inputs()
        maps.check_outputs()
    done = copy_config(config)
    decoupled = {name for name, one in members.items() if one.model_transaction_policy.decoupled}
    done.model_transaction_policy.decoupled = _follow_responses(config, tensors, decoupled)
    return done


def validate_versions(config: ModelConfig, versions: Mapping[str, Collection[int]]) -> None:
    """Check that the versions that steps name exist; -1 is the highest (V115).

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


def _own_tensors(config: ModelConfig) -> dict[str, _Tensor]:
    """Return the tensors that the ensemble itself describes; the first of a name counts."""
    tensors: dict[str, _Tensor] = {}
    described: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    for one in described:
        dims = tuple(one.reshape.shape if one.HasField("reshape") else one.dims)
        own = _Tensor(config.name, _type_of(one), dims, config.max_batch_size > 0)
        tensors.setdefault(one.name, own)
    return tensors


def _type_of(tensor: ModelInput | ModelOutput) -> str:
    name = enum_name(tensor, "data_type")
    return f"TYPE_{name}" if name.isdecimal() else name


@dataclass(frozen=True, slots=True)
class _MapCheck:
    """Checks of one step's maps against its model, and against the models before it."""

    ensemble: str
    path: str
    step: ModelEnsembling.Step
    member: ModelConfig
    tensors: dict[str, _Tensor]

    def check_inputs(self) -> None:
        given = self.step.input_map
        self._check_names(given, "input", "is mapping to", [one.name for one in self.member.input])
        for wanted in self.member.input:
            if wanted.name in given:
                self._agree(given[wanted.name], wanted)
            elif not wanted.optional:
                raise ConfigError(
                    f"in ensemble {self.ensemble}, input {wanted.name} in model "
                    f"{self.step.model_name} is not mapped to any ensemble tensors",
                    field=f"{self.path}.input_map",
                    hint=f'add input_map {{ key: "{wanted.name}" value: "<ensemble tensor>" }}',
                )

    def check_outputs(self) -> None:
        known = {tensor.name: tensor for tensor in reversed(self.member.output)}
        self._check_names(self.step.output_map, "output", "is mapped from", known)
        for name, tensor in sorted(self.step.output_map.items()):
            self._agree(tensor, known[name])

    def _check_names(
        self, given: Mapping[str, str], what: str, verb: str, known: Collection[str]
    ) -> None:
        for name, tensor in sorted(given.items()):
            if name not in known:
                raise ConfigError(
                    f"in ensemble {self.ensemble}, ensemble tensor {tensor} {verb} "
                    f"non-existing {what} {name} in model {self.step.model_name}",
                    field=f"{self.path}.{what}_map",
                    hint=nearest(name, known),
                )

    def _agree(self, tensor: str, described: ModelInput | ModelOutput) -> None:
        """Check that this model agrees with those before it on an ensemble tensor."""
        where = f"in ensemble {self.ensemble}, ensemble tensor {tensor}: inconsistent"
        batching = self.member.max_batch_size > 0
        mine = _Tensor(self.step.model_name, _type_of(described), tuple(described.dims), batching)
        known = self.tensors.setdefault(tensor, mine)
        if known.data_type != mine.data_type:
            raise ConfigError(
                f"{where} data type: {known.data_type} is inferred from model {known.model} while "
                f"{mine.data_type} is inferred from model {mine.model}",
                field="data_type",
                hint=f"'{tensor}' needs one data type on both sides",
            )
        if not _match(known.dims, mine.dims) and not _match(known.full_dims, mine.full_dims):
            raise ConfigError(
                f"{where} shape: {_shape(known.full_dims)} is inferred from model {known.model} "
                f"while {_shape(mine.full_dims)} is inferred from model {mine.model}",
                field="dims",
                hint=_hint_shape(known, mine),
            )


def _hint_shape(known: _Tensor, mine: _Tensor) -> str:
    one, other = ([dim for dim in tensor.full_dims if dim != 1] for tensor in (known, mine))
    if _match(one, other):
        return (
            f"they differ by dimensions of 1, which `reshape {{ shape: [ … ] }}` of this tensor adds or "
            f"drops in the configuration of {known.model} or {mine.model}"
        )
    return "dims must agree one by one, where -1 agrees with any; a batch dimension counts as a leading -1"


def _match(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )


def _shape(dims: Sequence[int]) -> str:
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def _follow_responses(
    config: ModelConfig, tensors: Mapping[str, _Tensor], decoupled: Collection[str]
) -> bool:
    """Return True if a model is decoupled; the responses of two must not meet in a step (V123)."""
    # The decoupled step that a tensor comes from; 0 for none.
    origins = {tensor.name: 0 for tensor in config.input}
    last = 0
    client = _Step(config.name, tuple(tensor.name for tensor in config.output), ())
    for step in _flow(list(origins), [client, *_steps(config)]):
        written = [tensor for tensor in step.writes if tensor not in origins]
        if not written and step is not client:
            continue
        origin, *others = {origins[tensor] for tensor in step.reads}
        if others:
            raise ConfigError(
                f"in ensemble {config.name}, step of model "
                f"'{tensors[written[0]].model if written else config.name}' receives inputs originated "
                "from different decoupled models",
                field="ensemble_scheduling.step",
                hint="responses of two decoupled models cannot be paired: join them in one model, or "
                "let only one path be decoupled",
            )
        if step is not client and step.model in decoupled:
            last += 1
            origin = last
        origins.update(dict.fromkeys(written, origin))
    return last != 0
