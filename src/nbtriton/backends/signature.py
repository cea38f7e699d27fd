"""Read a model's tensors from the annotations of a function, and complete a configuration by them."""

from __future__ import annotations
import __future__

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbtriton.config import (
    AutoCompleteConfig,
    ModelConfig,
    TensorSpec,
    complete_from,
    parse_annotation,
)
from nbtriton.errors import ConfigError
from nbtriton.tensors import to_config

__all__ = ["Signature", "complete_signature", "read_signature"]

_FUTURE_ANNOTATIONS = __future__.annotations.compiler_flag


@dataclass(frozen=True, slots=True)
class Signature:
    """Tensors by name, in order; empty where nothing is annotated."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    unannotated: tuple[str, ...]  # parameters without default whose tensor is not said


def read_signature(function: Callable[..., Any], *, single_output: str | None = None) -> Signature:
    """Return the tensors that a function's annotations name.

    Parameters
    ----------
    function : callable
        ``def f(IN: "FP32[4]", SCALE: "FP32[1]" = None) -> {"OUT": "FP32[4]"}``. A parameter with a
        default is an optional input. Annotations that are no strings say nothing.
    single_output : str, optional
        Name of the output where ``-> "FP32[4]"`` is allowed.

    Raises
    ------
    ConfigError
        An annotation that is no tensor.
    """
    signature = inspect.signature(function)
    inputs: dict[str, TensorSpec] = {}
    unannotated = []
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optional = parameter.default is not parameter.empty
        annotation = _literal(parameter.annotation, function)
        if isinstance(annotation, str):
            inputs[name] = replace(_parse(annotation, name), optional=optional)
        elif not optional:
            unannotated.append(name)
    returned = _literal(signature.return_annotation, function)
    if isinstance(returned, str) and single_output is not None:
        returned = {single_output: returned}
    if isinstance(returned, str):
        raise ConfigError(
            f"the outputs of '{function.__name__}' have no names: -> {returned!r}",
            hint=f'write -> {{"OUT": {returned!r}}}',
        )
    outputs: dict[str, TensorSpec] = {}
    if isinstance(returned, Mapping):
        outputs = {name: _parse(annotation, name) for name, annotation in returned.items()}
    return Signature(inputs, outputs, tuple(unannotated))


def complete_signature(
    config: ModelConfig,
    inputs: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec],
) -> ModelConfig:
    """Return the configuration with these tensors added, or agreed with where it has them.

    Raises
    ------
    ConfigError
        The configuration says otherwise, with Triton's text.
    """
    completion = AutoCompleteConfig(config)
    try:
        for name, spec in inputs.items():
            tensor = {**_properties(name, spec), "optional": spec.optional}
            completion.add_input(tensor)
        for name, spec in outputs.items():
            completion.add_output(_properties(name, spec))
    except ValueError as error:
        raise ConfigError(
            str(error), hint="change the annotation or the configuration so that they agree"
        ) from None
    return complete_from(config, completion.as_dict())


def _properties(name: str, spec: TensorSpec) -> dict[str, Any]:
    return {"name": name, "data_type": to_config(spec.datatype), "dims": list(spec.dims)}


def _parse(annotation: Any, name: str) -> TensorSpec:
    try:
        return replace(parse_annotation(annotation), name=name)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message} (tensor '{name}')", hint=error.hint, field=name
        ) from None


def _literal(annotation: Any, function: Callable[..., Any]) -> Any:
    """Undo ``from __future__ import annotations``, which turns every annotation into its source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    future = code is not None and code.co_flags & _FUTURE_ANNOTATIONS
    if not isinstance(annotation, str) or not future:
        return annotation
    try:
        return ast.literal_eval(annotation)
    except (ValueError, SyntaxError):
        return None  # a real type
