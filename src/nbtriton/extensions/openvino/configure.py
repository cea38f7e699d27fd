"""A model changed to match its configuration, with the checks and the texts of Triton's openvino backend.

``ValidateInputs``, ``ValidateOutputs`` and ``CompareDimsSupported`` of its openvino.cc and openvino_utils.cc:
a tensor has the datatype of the configuration, from or to which OpenVINO converts, and a batching model has
``max_batch_size`` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbtriton.backends.checks import expect, expect_input_count, model_dims
from nbtriton.common.errors import InternalError, InvalidArgumentError, nearest
from nbtriton.extensions.openvino.runtime import TYPES, dims_of, import_openvino, runtime_errors
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs, output_specs
from nbtriton.model.tensors import format_shape, to_config


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
        port = _look_up("input", spec.name, ports)
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
        port = _look_up("output", spec.name, ports)
        changes.output(spec.name).tensor().set_element_type(_element("output", spec, config))
        _check_dims(config, spec, dims_of(port), exact=True)
    with runtime_errors("apply model output preprocessing"):
        return changes.build()


def _look_up(kind: str, name: str, ports: Mapping[str, Any]) -> Any:
    if name not in ports:
        raise InvalidArgumentError(
            f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(ports))}",
            hint=nearest(name, ports),
        )
    return ports[name]


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
    prefix = f"model '{config.name}', tensor '{spec.name}':"
    expect(
        bool(found) or not batches,
        f"{prefix} for the model to support batching the shape should have at least 1 dimension",
    )
    full = (config.max_batch_size, *dims) if batches else dims
    first = 0 if exact or not batches else 1  # set later
    fits = len(found) == len(full) and all(
        has in (-1, want) or (batches and not exact and want == -1)
        for has, want in zip(found[first:], full[first:], strict=True)
    )
    shape = format_shape(full)
    explained = (
        " (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
        f"shape, making complete shape {shape})"
    )
    expect(
        fits,
        f"{prefix} the model expects {len(found)} dimensions (shape {format_shape(found)}) but the model "
        f"configuration specifies {len(full)} dimensions"
        f"{explained if batches else f' (shape {shape})'}",
        hint='parameters { key: "RESHAPE_IO_LAYERS" value { string_value: "yes" } } gives the model '
        "the shapes of its configuration",
    )
