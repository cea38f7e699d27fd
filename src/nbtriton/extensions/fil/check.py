"""Checks and completion of a forest's configuration (FL4, FL5)."""

from __future__ import annotations

from math import prod
from typing import Any

from nbtriton.backends.described import expect, fill, model_dims
from nbtriton.common.errors import InternalError, UnsupportedError
from nbtriton.extensions.fil.forest import Forest, forest_parameters, is_classifier
from nbtriton.extensions.fil.instance import INPUT, OUTPUT
from nbtriton.model.config import ModelConfig, TensorSpec, copy_config, input_specs, output_specs
from nbtriton.model.tensors import format_shape, to_config

_SHAPLEY = "treeshap_output"


def describe_object(config: ModelConfig, model: Any) -> ModelConfig:
    """Return a configuration with the parameters that follow from an object of a notebook."""
    done = copy_config(config)
    classifies = is_classifier(model)
    parameters = {"model_type": "treelite_checkpoint", "output_class": str(classifies).lower()}
    if classifies:
        parameters["threshold"] = "0.5"
    for key, value in parameters.items():
        if key not in done.parameters:
            done.parameters[key].string_value = value
    return done


def complete(config: ModelConfig, forest: Forest) -> ModelConfig:
    """Return a configuration with missing inputs and outputs filled in."""
    done = copy_config(config)
    for field, name, size in (("input", INPUT, forest.features), ("output", OUTPUT, forest.width)):
        fill(done, field, [{"name": name, "data_type": "TYPE_FP32", "dims": [size]}])
    return done


def row_width(config: ModelConfig) -> int:
    """Return the number of elements of a row's output."""
    return prod(_row(output_specs(config)[OUTPUT], config.max_batch_size > 0))


def check(config: ModelConfig, forest: Forest) -> None:
    """Compare a configuration with the forest.

    Raises
    ------
    InternalError, UnsupportedError
        Triton would fail each request, or read past the end of its memory.
    """
    inputs, outputs = input_specs(config), output_specs(config)
    model = f"model '{config.name}'"
    for kind, specs, name in (("input", inputs, INPUT), ("output", outputs, OUTPUT)):
        expect(
            name in specs,
            f"No {kind} with name {name} in configuration.",
            hint=f"a forest's {kind} is called {name}, found {', '.join(specs) or 'none'}",
            error=InternalError,
        )
        datatype = specs[name].datatype
        expect(
            datatype == "FP32",
            f"{model}: {name} is {to_config(datatype)}, a forest takes and gives TYPE_FP32",
            error=InternalError,
        )
    if _SHAPLEY in outputs:
        raise UnsupportedError(
            f"{model}: Shapley values ({_SHAPLEY}) are not computed here",
            hint="remove the output, or call the predict(pred_contribs=True) of XGBoost in a model.py",
        )
    batches = config.max_batch_size > 0
    columns = _row(inputs[INPUT], batches)
    expect(
        columns in ((-1,), (forest.features,)),
        f"{model}: {INPUT} has {format_shape(inputs[INPUT].dims)}, the model has "
        f"{forest.features} features",
        hint=f"max_batch_size above 0 and dims: [ {forest.features} ]",
        error=InternalError,
    )
    allowed = {forest.width} | ({1} if forest.classes == 1 else set())
    expect(
        row_width(config) in allowed,
        f"{model}: {OUTPUT} has {format_shape(outputs[OUTPUT].dims)}, the model gives {forest.width} "
        f"value{'s' if forest.width > 1 else ''} a row",
        hint=_output_hint(config, forest),
        error=InternalError,
    )


def _row(spec: TensorSpec, batches: bool) -> tuple[int, ...]:
    """Return the shape of a row: without batching the first dimension counts the rows."""
    dims = model_dims(spec)
    return dims if batches else dims[1:]


def _output_hint(config: ModelConfig, forest: Forest) -> str:
    parameters = forest_parameters(config)
    settings = f"predict_proba is {str(parameters.predict_proba).lower()}, output_class "
    settings += str(parameters.output_class).lower()
    return f"{settings}: dims: [ {forest.width} ]"
