"""Read a model's tensors from the annotations of a function, and complete a configuration by them."""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from nbtriton.backends.auto_complete import completing
from nbtriton.config import (
    ModelConfig,
    TensorSpec,
    complete_from,
    parse_annotation,
    to_reported_dict,
)
from nbtriton.errors import ConfigError
from nbtriton.tensors import Array, datatype_of, shape_of, to_config

__all__ = ["Signature", "complete_signature", "example_spec", "names_tensors", "read_signature"]

_ARRAY_PACKAGES = ("numpy", "torch", "cupy")
# What a generator function is annotated with.
_STREAMS = (Generator, Iterable, Iterator)
_FUTURE_ANNOTATIONS = __future__.annotations.compiler_flag


@dataclass(frozen=True, slots=True)
class Signature:
    """Tensors by name, in order; empty where nothing is annotated."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    unannotated: tuple[str, ...]  # parameters without default whose tensor is not said
    kinds: Mapping[str, str]  # "numpy", "torch" or "cupy", where the type of array is said


def read_signature(function: Callable[..., Any], *, single_output: str | None = None) -> Signature:
    """Return the tensors that a function's annotations name.

    Parameters
    ----------
    function : callable
        ``def f(IN: "FP32[4]", SCALE: "FP32[1]" = None) -> {"OUT": "FP32[4]"}``. A parameter with a
        default is an optional input. ``IN: Annotated[torch.Tensor, "FP32[4]"]`` says the type of the
        array too. Outputs may be ``Annotated[dict[str, np.ndarray], {"OUT": "FP32[4]"}]`` or a
        ``TypedDict`` of such members, and for a generator function an ``Iterator`` of either: these
        are annotations that type checkers understand. Other types say nothing about a tensor.
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
    kinds = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optional = parameter.default is not parameter.empty
        annotation = _evaluated(parameter.annotation, function)
        kind = _array_kind(annotation)
        if kind is not None:
            kinds[name] = kind
        annotation = _tensor_of(annotation)
        if isinstance(annotation, str):
            inputs[name] = replace(_parse(annotation, name), optional=optional)
        elif not optional:
            unannotated.append(name)
    names = getattr(inspect.unwrap(function), "__globals__", {})
    returned = _outputs_of(_evaluated(signature.return_annotation, function), names)
    if isinstance(returned, str) and single_output is not None:
        returned = {single_output: returned}
    if isinstance(returned, str):
        raise ConfigError(
            f"the outputs of '{function.__name__}' have no names: -> {returned!r}",
            hint=f'write -> {{"OUT": {returned!r}}}',
        )
    outputs: dict[str, TensorSpec] = {}
    if isinstance(returned, Mapping):
        outputs = {name: _parse(_tensor_of(said), name) for name, said in returned.items()}
    return Signature(inputs, outputs, tuple(unannotated), kinds)


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
    completion = completing(to_reported_dict(config))
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


def example_spec(name: str, array: Array, batches: bool) -> TensorSpec:
    """Return the input or output that an example shows.

    Raises
    ------
    ConfigError
        It has no dimensions.
    """
    shape = shape_of(array)
    if not shape:
        raise ConfigError(
            f"tensor '{name}' of the example has no dimensions", hint="give a batch", field=name
        )
    # Without batching the first dimension is one of the model's own; an example cannot show that
    # it is fixed, and for nearly every module it is not.
    return TensorSpec(name, datatype_of(array), shape[1:] if batches else (-1, *shape[1:]))


def _properties(name: str, spec: TensorSpec) -> dict[str, Any]:
    return {"name": name, "data_type": to_config(spec.datatype), "dims": list(spec.dims)}


def _parse(annotation: Any, name: str) -> TensorSpec:
    try:
        return replace(parse_annotation(annotation), name=name)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message} (tensor '{name}')", hint=error.hint, field=name
        ) from None


def names_tensors(annotation: Any) -> bool:
    """Return True for an annotation of a parameter or a result that names tensors."""
    return bool(annotation) and isinstance(_outputs_of(annotation), str | Mapping)


def _tensor_of(annotation: Any) -> Any:
    """Return the tensor that ``Annotated[type, "FP32[4]"]`` says; any other annotation as it is."""
    if get_origin(annotation) is not Annotated:
        return annotation
    return next((said for said in annotation.__metadata__ if isinstance(said, str | Mapping)), None)


def _outputs_of(annotation: Any, names: Mapping[str, Any] | None = None) -> Any:
    """Return the tensors of a result by name, out of the types that stand around them."""
    if get_origin(annotation) in _STREAMS:
        annotation = get_args(annotation)[0]
    if not is_typeddict(annotation):
        return _tensor_of(annotation)
    try:
        members = get_type_hints(annotation, localns=names, include_extras=True)
    except NameError:
        return None  # a name that only a type checker knows
    named = {name: _tensor_of(member) for name, member in members.items()}
    return {name: said for name, said in named.items() if isinstance(said, str)} or None


def _array_kind(annotation: Any) -> str | None:
    """Return ``"numpy"``, ``"torch"`` or ``"cupy"`` for an annotation that says such a type."""
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    said = get_origin(annotation) or annotation  # numpy.typing.NDArray[...] is an alias
    package = str(getattr(said, "__module__", "")).partition(".")[0]
    return package if isinstance(said, type) and package in _ARRAY_PACKAGES else None


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Undo ``from __future__ import annotations``, which turns every annotation into its source."""
    unwrapped = inspect.unwrap(function)
    code = getattr(unwrapped, "__code__", None)
    future = code is not None and code.co_flags & _FUTURE_ANNOTATIONS
    if not isinstance(annotation, str) or not future:
        return annotation
    try:
        # As inspect.get_annotations(eval_str=True) does, but one that fails leaves the others.
        return eval(annotation, dict(unwrapped.__globals__))  # noqa: S307 - the user's own source
    except Exception:
        return None  # a name that only a type checker knows
