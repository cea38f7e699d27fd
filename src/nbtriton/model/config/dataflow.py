"""Ensembles written as dataflow lines, such as ``ids, mask = tokenizer(TEXT=excerpt)``.

A line runs one model: keywords name its inputs, the names on the left take its outputs in the
order of its configuration (``_`` leaves one out; the first ones may be named alone if the model changes
a tensor: its first output has the name of an input). A name that no line assigns is an input of the
ensemble; one that no line uses, or that the caller lists, is an output.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from nbtriton.common.errors import ConfigError, nearest
from nbtriton.model.config._proto import ModelConfig
from nbtriton.model.config.signature import (
    TensorSpec,
    add_input,
    add_output,
    input_specs,
    output_specs,
)


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: a model, the tensors that it reads, and those that it writes."""

    number: int
    model: str
    inputs: dict[str, str]  # the model's input -> ensemble tensor
    outputs: dict[str, str]  # the model's output -> ensemble tensor


def parse_dataflow(
    text: str,
    *,
    name: str,
    models: Mapping[str, ModelConfig],
    outputs: Sequence[str] = (),
    steps: Iterable[str] = (),
) -> ModelConfig:
    """Write the configuration of an ensemble from dataflow lines.

    Parameters
    ----------
    text : str
        One model call a line; ``#`` starts a comment. A model whose name is not a Python name is
        quoted; such an input is given as ``**{"INPUT:0": x}``.
    name : str
        The ensemble's name.
    models : mapping of str to ModelConfig
        The final configurations of the models that the lines may call.
    outputs : sequence of str
        Names that are outputs although a line uses them.
    steps : iterable of str
        Ready steps that the lines could have named, for the hint at a name that no model has.

    Returns
    -------
    ModelConfig
        The same as the ensemble's pbtxt gives: steps in the order of the lines with the latest
        version of each model, types and dims from the models, and the smallest of their
        ``max_batch_size`` that is not 0. Not normalised.

    Raises
    ------
    ConfigError
        With the line of `text` and the nearest known name.
    """
    lines = [_read_line(node, name, models, steps) for node in _statements(text)]
    if not lines:
        raise ConfigError(
            f"must specify 'step' for ensemble '{name}'",
            field="ensemble_scheduling.step",
            hint="write a line such as OUT = model(IN=x)",
        )
    writers = _writers(lines, name)
    used = [tensor for line in lines for tensor in line.inputs.values()]
    for wanted in outputs:
        if wanted not in writers:
            raise ConfigError(
                f"ensemble output '{wanted}' for ensemble {name}' is not used",
                field="output",
                hint=nearest(wanted, writers),
            )
    config = ModelConfig(name=name, platform="ensemble", max_batch_size=_batch_size(lines, models))
    batches = config.max_batch_size > 0
    for tensor in dict.fromkeys(used):
        if tensor not in writers:
            add_input(config, _input_spec(tensor, lines, models, batches=batches))
    for tensor, line in writers.items():
        if tensor not in used or tensor in outputs:
            source = next(output for output, own in line.outputs.items() if own == tensor)
            model = models[line.model]
            spec = output_specs(model)[source]
            dims = _ensemble_dims(spec.dims, model, batches=batches)
            add_output(config, TensorSpec(tensor, spec.datatype, dims))
    for line in lines:
        config.ensemble_scheduling.step.add(
            model_name=line.model, model_version=-1, input_map=line.inputs, output_map=line.outputs
        )
    return config


def called_models(text: str) -> list[str]:
    """Return the names of the models that dataflow lines call, in their order, each once.

    Raises
    ------
    ConfigError
        The text is no Python.
    """
    calls = [
        statement.value
        for statement in _statements(text)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
    ]
    return list(dict.fromkeys(_called(call) for call in calls))


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(text)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        raise ConfigError(
            f"line {line}: {getattr(error, 'msg', error)}" if line else str(error),
            hint="write lines such as OUT = model(IN=x)",
            line=line,
            column=getattr(error, "offset", None) or 0,
        ) from None


def _fail(node: ast.AST, message: str, hint: str, field: str = "") -> NoReturn:
    line = getattr(node, "lineno", 0)
    raise ConfigError(
        f"line {line}: {message}",
        hint=hint,
        field=field,
        line=line,
        column=getattr(node, "col_offset", -1) + 1,
    )


def _read_line(
    statement: ast.stmt, ensemble: str, models: Mapping[str, ModelConfig], steps: Iterable[str]
) -> _Line:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        model = _model_name(statement.value, ensemble, models, steps)
        listed = ", ".join(output_specs(models[model]))
        _fail(statement, f"the outputs of model {model} need names", f"{model} gives: {listed}")
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.value, ast.Call)
    ):
        written = ast.unparse(statement).replace(" ", "")
        quoted = [name for name in models if not name.isidentifier() and f"{name}(" in written]
        _fail(
            statement,
            "a dataflow line calls one model and names its outputs",
            f'a name that is not a Python name is quoted: OUT = "{max(quoted, key=len)}"(IN=x)'
            if quoted
            else "write OUT = model(IN=x), or A, B = model(IN=x) for two outputs",
        )
    call = statement.value
    model = _model_name(call, ensemble, models, steps)
    inputs = _inputs(call, model, ensemble, models[model])
    names = _target_names(statement.targets[0])
    known = list(output_specs(models[model]))
    least = 1 if not input_specs(models[model]).keys().isdisjoint(known[:1]) else len(known)
    if not least <= len(names) <= len(known):
        _fail(
            statement,
            f"model {model} has {_count(len(known), 'output')}, but the line names "
            f"{_count(len(names), 'output')}",
            f"{model} gives, in this order: {', '.join(known)}; use _ for one that is not needed"
            if known
            else f"a step has outputs, and {model} gives none",
        )
    mapped = {output: own for output, own in zip(known, names, strict=False) if own != "_"}
    if not mapped:
        _fail(statement, f"no output of model {model} is used", "give one of them a name")
    return _Line(statement.lineno, model, inputs, mapped)


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Constant) and isinstance(call.func.value, str):
        return call.func.value
    return ast.unparse(call.func)


def _model_name(
    call: ast.Call, ensemble: str, models: Mapping[str, ModelConfig], steps: Iterable[str]
) -> str:
    name = _called(call)
    if name not in models:
        _fail(
            call,
            f"ensemble {ensemble} contains models that are not available or ambiguous: {name}",
            _nearest_model(name, models, steps),
            field="ensemble_scheduling.step.model_name",
        )
    return name


def _nearest_model(name: str, models: Iterable[str], steps: Iterable[str]) -> str:
    """Return a hint with the nearest name, which may be that of a step; else the models there are."""
    known, ready = list(models), set(steps)
    hint = nearest(name, ready.union(known)) if ready else ""
    if not hint.startswith("did"):
        return nearest(name, known)
    found = hint.split("'")[1]
    return hint if found in known else f"did you mean the step '{found}'?"


def _target_names(target: ast.expr) -> list[str]:
    targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    names: list[str] = []
    for one in targets:
        if not isinstance(one, ast.Name):
            _fail(one, f"'{ast.unparse(one)}' is not a name", "outputs get plain names")
        names.append(one.id)
    return names


def _inputs(call: ast.Call, model: str, ensemble: str, config: ModelConfig) -> dict[str, str]:
    known = input_specs(config)
    if call.args:
        listed = ", ".join(f"{tensor}=…" for tensor in known)
        _fail(call.args[0], f"inputs of model {model} are given by name", f"{model}({listed})")
    inputs: dict[str, str] = {}
    for tensor, value in _keywords(call):
        if not isinstance(value, ast.Name) or value.id == "_":
            _fail(
                value,
                f"input {tensor} of model {model} is '{ast.unparse(value)}', which is not a tensor's name",
                "a line passes tensors on; what computes belongs into a model",
            )
        if tensor not in known:
            _fail(
                value,
                f"in ensemble {ensemble}, ensemble tensor {value.id} is mapping to non-existing "
                f"input {tensor} in model {model}",
                nearest(tensor, known),
                field="ensemble_scheduling.step.input_map",
            )
        if tensor in inputs:
            _fail(value, f"input {tensor} of model {model} is given twice", "keep one of them")
        inputs[tensor] = value.id
    for tensor, spec in known.items():
        if tensor not in inputs and not spec.optional:
            _fail(
                call,
                f"in ensemble {ensemble}, input {tensor} in model {model} is not mapped to any "
                "ensemble tensors",
                f"add {tensor}=… to the call",
                field="ensemble_scheduling.step.input_map",
            )
    if not inputs:
        _fail(call, f"model {model} gets no input", f"{model} takes: {', '.join(known)}")
    return inputs


def _keywords(call: ast.Call) -> Iterable[tuple[str, ast.expr]]:
    """Yield the keywords, those of ``**{"INPUT:0": x}`` included."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
        elif isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                    _fail(value, "the keys after ** are quoted names", '**{"INPUT:0": x}')
                yield key.value, value
        else:
            _fail(keyword.value, "what follows ** is a dict", '**{"INPUT:0": x}')


def _writers(lines: Iterable[_Line], ensemble: str) -> dict[str, _Line]:
    """Return the line that assigns each tensor."""
    writers: dict[str, _Line] = {}
    for index, line in enumerate(lines):
        for tensor in line.outputs.values():
            if tensor in writers:
                raise ConfigError(
                    f"line {line.number}: ensemble tensor '{tensor}' can appear in an output map "
                    f"only once for ensemble '{ensemble}' step {index}",
                    field=f"ensemble_scheduling.step[{index}].output_map",
                    hint=f"line {writers[tensor].number} assigns it already: use another name",
                    line=line.number,
                )
            writers[tensor] = line
    return writers


def _batch_size(lines: Iterable[_Line], models: Mapping[str, ModelConfig]) -> int:
    sizes = {models[line.model].max_batch_size for line in lines}
    return min((size for size in sizes if size > 0), default=0)


def _input_spec(
    tensor: str, lines: Iterable[_Line], models: Mapping[str, ModelConfig], *, batches: bool
) -> TensorSpec:
    """Describe an input of the ensemble so that it fits all models that read it.

    It is optional if it is for all of them; a dimension is fixed if one of them fixes it.
    """
    specs = [
        replace(known[name], dims=_ensemble_dims(known[name].dims, model, batches=batches))
        for line in lines
        for model in [models[line.model]]
        for known in [input_specs(model)]
        for name, own in line.inputs.items()
        if own == tensor
    ]
    dims = specs[0].dims
    for other in specs[1:]:
        if len(other.dims) == len(dims):
            dims = tuple(b if a == -1 else a for a, b in zip(dims, other.dims, strict=True))
    return TensorSpec(tensor, specs[0].datatype, dims, all(spec.optional for spec in specs))


def _ensemble_dims(dims: tuple[int, ...], model: ModelConfig, *, batches: bool) -> tuple[int, ...]:
    """Return a model's dims as the ensemble sees them.

    A model that does not batch, inside an ensemble that does, has the batch dimension in its own
    dims: Triton compares such shapes with a leading -1.
    """
    if batches and model.max_batch_size == 0 and len(dims) > 1 and dims[0] == -1:
        return dims[1:]
    return dims


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
