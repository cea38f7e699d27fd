"""A model of OpenVINO and its configuration, each completed and changed by the other (OV2, OV3)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nbtriton.backends.described import (
    expect,
    expect_input_count,
    expect_shape,
    fill,
    look_up,
    model_dims,
)
from nbtriton.common.errors import InternalError
from nbtriton.common.packages import imported
from nbtriton.model.config import ModelConfig, TensorSpec, copy_config, input_specs, output_specs
from nbtriton.model.tensors import to_config

_log = logging.getLogger("nbtriton.openvino")

# The protocol's datatypes of OpenVINO's element types; Triton's backend accepts no others (OV3).
TYPES = {
    "BOOL": "boolean",
    **{f"{sign}INT{n}": f"{kind}{n}" for n in (8, 16, 32, 64) for sign, kind in (("U", "u"), ("", "i"))},
    "FP16": "f16",
    "FP32": "f32",
}  # fmt: skip
_DATATYPES = {element: datatype for datatype, element in TYPES.items()}
_PLACE = re.compile(r"Exception from src/\S+:\n")


def import_openvino() -> Any:
    """Return the module.

    Raises
    ------
    UnsupportedError
        It is not installed, or does not start.
    """
    return imported("backend 'openvino'", "openvino")


def type_of(port: Any) -> str:
    """Return the protocol's datatype of an input or output; empty for one that Triton does not have."""
    return _DATATYPES.get(port.element_type.get_type_name(), "")


def dims_of(port: Any) -> tuple[int, ...]:
    """Return the shape of an input or output, with -1 for every variable dimension."""
    return tuple(dim.get_length() if dim.is_static else -1 for dim in port.partial_shape)


@contextmanager
def runtime_errors(doing: str) -> Iterator[None]:
    """Turn OpenVINO's exceptions into Triton's error; `doing` names the action."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        text = _PLACE.sub("", str(error)).strip()
        raise InternalError(f"openvino error in {doing} : {text}") from error


def complete(config: ModelConfig, model: Any, default_max_batch_size: int) -> ModelConfig:
    """Return a configuration with inputs, outputs and batching filled in.

    A model batches if the layouts of all its tensors name a batch dimension. Without ``max_batch_size`` it
    gets `default_max_batch_size`, at least 1, and above 1 the dynamic batcher unless sequences are batched.

    Parameters
    ----------
    config : ModelConfig
    model : openvino.Model
    default_max_batch_size : int
    """
    helpers = import_openvino().layout_helpers
    done = copy_config(config)
    ports = [*model.inputs, *model.outputs]
    if all(helpers.has_batch(helpers.get_layout(port)) for port in ports):
        if done.max_batch_size == 0:
            done.max_batch_size = max(1, default_max_batch_size)
            _log.warning(
                "autofilled max_batch_size to %d for model '%s' since batching is supported but no "
                "max_batch_size is specified in model configuration. Must specify max_batch_size to "
                "utilize autofill with a larger max batch size",
                done.max_batch_size, done.name,
            )  # fmt: skip
        chosen = done.HasField("dynamic_batching") or done.HasField("sequence_batching")
        if done.max_batch_size > 1 and not chosen:
            done.dynamic_batching.SetInParent()
    elif done.max_batch_size:
        _log.warning(
            "model layout for model %s does not support batching while non-zero max_batch_size is "
            "specified",
            done.name,
        )
    for field, tensors in (("input", model.inputs), ("output", model.outputs)):
        fill(done, field, [_tensor(port, done.max_batch_size > 0) for port in tensors])
    return done


def _tensor(port: Any, batches: bool) -> dict[str, Any]:
    datatype = type_of(port)
    return {
        "name": port.any_name,
        "data_type": to_config(datatype) if datatype else "TYPE_INVALID",
        "dims": list(dims_of(port)[1 if batches else 0 :]),
    }


def configured(model: Any, config: ModelConfig, *, reshape: bool) -> Any:
    """Return a copy of a model that matches its configuration.

    Parameters
    ----------
    model : openvino.Model
    config : ModelConfig
        Completed.
    reshape : bool
        Set the shapes of the configuration instead of comparing them.

    Raises
    ------
    ConfigError, InvalidArgumentError, InternalError
        They do not match, with Triton's text; the order of the checks is Triton's.
    """
    with runtime_errors("copying model"):
        model = model.clone()
    model = _with_inputs(model, config, reshape=reshape)
    if config.max_batch_size > 0:
        with runtime_errors("setting max batch size"):
            import_openvino().set_batch(model, config.max_batch_size)
    return _with_outputs(model, config)


def _with_inputs(model: Any, config: ModelConfig, *, reshape: bool) -> Any:
    openvino = import_openvino()
    ports = {port.any_name: port for port in model.inputs}
    specs = input_specs(config)
    expect_input_count(config, len(specs), ports, len(ports), len(ports))
    changes = openvino.preprocess.PrePostProcessor(model)
    for spec in specs.values():
        port = look_up("input", spec.name, ports)
        element = _element("input", spec, config)
        shape = port.partial_shape
        # Only the builder is changed: errors are raised by the build.
        changed = changes.input(spec.name).tensor()
        changed.set_element_type(element)
        if reshape:
            for index, size in enumerate(model_dims(spec), start=int(config.max_batch_size > 0)):
                with runtime_errors(f"setting shape for {spec.name}"):
                    shape[index] = openvino.Dimension(size)
            with runtime_errors(f"setting shape for {spec.name}"):
                changed.set_shape(shape)
        else:
            _check_dims(config, spec, dims_of(port), exact=False)
        if config.max_batch_size > 0:
            with runtime_errors(f"setting layout for {spec.name}"):
                changed.set_layout(openvino.Layout("N..."))
    with runtime_errors("apply model input preprocessing"):
        return changes.build()


def _with_outputs(model: Any, config: ModelConfig) -> Any:
    ports = {port.any_name: port for port in model.outputs}
    changes = import_openvino().preprocess.PrePostProcessor(model)
    for spec in output_specs(config).values():
        port = look_up("output", spec.name, ports)
        changes.output(spec.name).tensor().set_element_type(_element("output", spec, config))
        _check_dims(config, spec, dims_of(port), exact=True)
    with runtime_errors("apply model output preprocessing"):
        return changes.build()


def _element(kind: str, spec: TensorSpec, config: ModelConfig) -> Any:
    expect(
        spec.datatype in TYPES,
        f"unsupported datatype {to_config(spec.datatype)} for {kind} '{spec.name}' for model "
        f"'{config.name}'",
        hint=f"OpenVINO converts from and to {', '.join(map(to_config, TYPES))}",
        error=InternalError,
    )
    return getattr(import_openvino().Type, TYPES[spec.datatype])


def _check_dims(
    config: ModelConfig, spec: TensorSpec, found: Sequence[int], *, exact: bool
) -> None:
    """Compare shapes; a variable dimension of the model matches any size, except with `exact` (outputs)."""
    batches = config.max_batch_size > 0
    dims = model_dims(spec)
    expect(
        bool(found) or not batches,
        f"model '{config.name}', tensor '{spec.name}': for the model to support batching the shape should have at least 1 dimension",
    )
    full = (config.max_batch_size, *dims) if batches else dims
    first = 0 if exact or not batches else 1  # set later
    fits = len(found) == len(full) and all(
        has in (-1, want) or (batches and not exact and want == -1)
        for has, want in zip(found[first:], full[first:], strict=True)
    )
    hint = (
        'parameters { key: "RESHAPE_IO_LAYERS" value { string_value: "yes" } } gives the model '
        "the shapes of its configuration"
    )
    expect_shape(config, spec.name, found, full, fits, hint)
