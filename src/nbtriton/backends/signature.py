"""The tensors in a function's annotations, and completion of a configuration by them."""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from nbtriton.backends.auto_complete import completing
from nbtriton.common.errors import ConfigError
from nbtriton.model.config import (
    ModelConfig,
    TensorSpec,
    complete_from,
    parse_annotation,
    to_reported_dict,
)
from nbtriton.model.tensors import Array, datatype_of, shape_of, to_config

_ARRAY_PACKAGES = ("numpy", "torch", "cupy")
# Return annotations of generator functions.
_STREAMS = (Generator, Iterable, Iterator)
_FUTURE_ANNOTATIONS = __future__.annotations.compiler_flag


@dataclass(frozen=True, slots=True)
class Signature:
    """Tensors by name, in order; empty without annotations."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    unannotated: tuple[str, ...]  # parameters without default and without a tensor
    kinds: Mapping[str, str]  # "numpy", "torch" or "cupy", for annotated types of arrays


def read_signature(function: Callable[..., Any], *, single_output: str | None = None) -> Signature:
    """Return the tensors in a function's annotations.

    Parameters
    ----------
    function : callable
        ``def f(IN: "FP32[4]", SCALE: "FP32[1]" = None) -> {"OUT": "FP32[4]"}``. A parameter with a default is
        an optional input. ``IN: Annotated[torch.Tensor, "FP32[4]"]`` also gives the type of the array.
        Outputs may be ``Annotated[dict[str, np.ndarray], {"OUT": "FP32[4]"}]`` or a ``TypedDict`` of such
        members, and for a generator function an ``Iterator`` of either: type checkers understand these
        annotations. Other types do not describe a tensor.
    single_output : str, optional
        Name of the output, if ``-> "FP32[4]"`` is allowed.

    Raises
    ------
    ConfigError
        An annotation does not describe a tensor.
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
    config: ModelConfig, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> ModelConfig:
    """Return the configuration with these tensors added, or checked against configured ones.

    Raises
    ------
    ConfigError
        A contradiction to the configuration, with Triton's text.
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
    """Return the input or output of an example array.

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
    # Without batching the first dimension is one of the model's own; an example cannot show whether it is
    # fixed, and in most modules it is not.
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
    """Return the tensor of ``Annotated[type, "FP32[4]"]``; any other annotation unchanged."""
    if get_origin(annotation) is not Annotated:
        return annotation
    return next(
        (metadata for metadata in annotation.__metadata__ if isinstance(metadata, str | Mapping)),
        None,
    )


def _outputs_of(annotation: Any, names: Mapping[str, Any] | None = None) -> Any:
    """Return the tensors of a result by name, without the types around them."""
    if get_origin(annotation) in _STREAMS:
        annotation = get_args(annotation)[0]
    if not is_typeddict(annotation):
        return _tensor_of(annotation)
    try:
        members = get_type_hints(annotation, localns=names, include_extras=True)
    except NameError:
        return None  # a name that only a type checker knows
    named = {name: _tensor_of(member) for name, member in members.items()}
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, str)} or None


def _array_kind(annotation: Any) -> str | None:
    """Return ``"numpy"``, ``"torch"`` or ``"cupy"`` for an annotation with such a type."""
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    kind = get_origin(annotation) or annotation  # numpy.typing.NDArray[...] is an alias
    package = str(getattr(kind, "__module__", "")).partition(".")[0]
    return package if isinstance(kind, type) and package in _ARRAY_PACKAGES else None


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Evaluate an annotation that ``from __future__ import annotations`` has turned into its source."""
    unwrapped = inspect.unwrap(function)
    code = getattr(unwrapped, "__code__", None)
    future = code is not None and code.co_flags & _FUTURE_ANNOTATIONS
    if not isinstance(annotation, str) or not future:
        return annotation
    try:
        # Like inspect.get_annotations(eval_str=True), but one failure leaves the other annotations.
        return eval(annotation, dict(unwrapped.__globals__))  # noqa: S307 - the user's own source
    except Exception:
        return None  # a name that only a type checker knows
