"""Functions and other callables as models: their inputs, outputs and calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, TypeAlias

from nbtriton.backends.auto_complete import completing
from nbtriton.backends.python.predictors import complete_predictor, is_predictor, predictor_call
from nbtriton.backends.ragged import batch_input_names
from nbtriton.backends.signature import Signature, complete_signature, read_signature
from nbtriton.common.errors import ConfigError, UnsupportedError
from nbtriton.model.config import (
    ModelConfig,
    complete_from,
    control_types,
    input_specs,
    output_specs,
    output_types,
    state_inputs,
    state_outputs,
    to_reported_dict,
)
from nbtriton.model.tensors import Array, to_protocol

# Maps the inputs of a batch by name, and the names of the requested outputs, to the result.
Call: TypeAlias = Callable[[Mapping[str, Array], frozenset[str]], Any]


@dataclass(frozen=True, slots=True)
class CallableModel:
    """A callable with its description.

    Parameters
    ----------
    call : callable
        Gets the inputs of a batch by name, and the names of the requested outputs.
    inputs : mapping of str to str
        Input names with the kind of array of each: ``"numpy"``, ``"torch"``, ``"cupy"``, or ``""`` for the
        usual kind of the instance's device.
    outputs : mapping of str to str
        Output names with the datatype of each.
    streams : bool
        Whether it yields any number of responses to one request.
    selective : bool
        Whether it computes only the requested outputs.
    """

    call: Call
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    streams: bool = False
    selective: bool = False


def is_callable_model(source: object) -> bool:
    """Return True for a function, a method, and a callable or predicting object."""
    if isinstance(source, type):
        return False
    return callable(source) or is_predictor(source)


def complete_callable(source: Any, config: ModelConfig, example: object) -> ModelConfig:
    """Fill a configuration from the annotations of a callable, or from the kind of a predictor.

    A generator function is decoupled, unless the configuration says otherwise.

    Raises
    ------
    ConfigError
        Annotations are missing or contradict the configuration.
    """
    if is_predictor(source):
        return complete_predictor(source, config, example)
    function = _function(source)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UnsupportedError(
            f"'{_name(source)}' is a coroutine function",
            hint="write a class TritonPythonModel with `async def execute`",
        )
    if inspect.isgeneratorfunction(function):
        config = _decoupled(source, config)
    signature = read_signature(function)
    made = {*batch_input_names(config), *control_types(config), *state_inputs(config)}
    configured = {*(tensor.name for tensor in config.input), *made}
    unknown = [name for name in signature.unannotated if name not in configured]
    if unknown:
        raise ConfigError(
            f"parameter '{unknown[0]}' of '{_name(source)}' names no tensor",
            hint=f'annotate it: {unknown[0]}: "FP32[4]", dims without the batch dimension',
            field=unknown[0],
        )
    _check_agreement(source, config, signature)
    inputs = {name: spec for name, spec in signature.inputs.items() if name not in made}
    # A state is not an output, unless the configuration also lists it as one.
    hidden = {*state_outputs(config)} - {*output_specs(config)}
    outputs = {name: spec for name, spec in signature.outputs.items() if name not in hidden}
    completed = complete_signature(config, inputs, outputs)
    if not completed.output:
        raise ConfigError(
            f"'{_name(source)}' does not say what it returns",
            hint='annotate it: -> {"OUT": "FP32[4]"}, dims without the batch dimension',
        )
    parameters = inspect.signature(function).parameters
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in (*(tensor.name for tensor in completed.input), *sorted(made)):
        if name not in parameters and not accepts_any:
            raise ConfigError(
                f"'{_name(source)}' has no parameter for input '{name}'",
                hint=f"its parameters: {', '.join(parameters)}",
                field=name,
            )
    return completed


def open_callable(source: Any, config: ModelConfig) -> CallableModel:
    """Return how to call a callable with a completed configuration."""
    outputs = output_types(config)
    names = [
        *input_specs(config),
        *control_types(config),
        *state_inputs(config),
        *batch_input_names(config),
    ]
    if is_predictor(source):
        kinds = dict.fromkeys(names, "numpy")
        return CallableModel(predictor_call(source, config), kinds, outputs, selective=True)
    function = _function(source)
    said = read_signature(function).kinds
    streams = config.model_transaction_policy.decoupled
    single = not inspect.isgeneratorfunction(function)

    def call(inputs: Mapping[str, Array], _wanted: frozenset[str]) -> Any:
        return function(**inputs)

    def stream(inputs: Mapping[str, Array], _wanted: frozenset[str]) -> Iterator[Any]:
        return iter((function(**inputs),)) if single else function(**inputs)

    kinds = {name: said.get(name, "") for name in names}
    return CallableModel(stream if streams else call, kinds, outputs, streams)


def _function(source: Any) -> Any:
    """Return the function for `inspect`: a function, a method, or an object's ``__call__``."""
    plain = inspect.isroutine(source) or isinstance(source, partial)
    return source if plain else source.__call__


def _name(source: Any) -> str:
    if isinstance(source, MethodType) or inspect.isfunction(source):
        return source.__name__
    return type(source).__name__


def _decoupled(source: Any, config: ModelConfig) -> ModelConfig:
    if config.HasField("model_transaction_policy"):
        if config.model_transaction_policy.decoupled:
            return config
        raise ConfigError(
            f"'{_name(source)}' yields, the configuration of '{config.name}' says that the model is "
            "not decoupled",
            hint="set model_transaction_policy { decoupled: true }, or return one dict of outputs",
            field="model_transaction_policy.decoupled",
        )
    completion = completing(to_reported_dict(config))
    completion.set_model_transaction_policy({"decoupled": True})
    return complete_from(config, completion.as_dict())


def _check_agreement(source: Any, config: ModelConfig, signature: Signature) -> None:
    """Refuse annotations of controls and states that contradict the configuration's datatypes."""
    for configured, annotated in (
        (control_types(config) | state_inputs(config), signature.inputs),
        (state_outputs(config), signature.outputs),
    ):
        for name, data_type in configured.items():
            spec = annotated.get(name)
            if spec is not None and spec.datatype != to_protocol(data_type):
                raise ConfigError(
                    f"'{name}' is annotated as {spec.datatype} in '{_name(source)}', "
                    f"sequence_batching says {data_type}",
                    hint="change the annotation or the configuration so that they agree",
                    field="sequence_batching",
                )
