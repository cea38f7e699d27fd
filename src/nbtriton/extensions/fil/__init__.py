"""The fil backend: tree models. The package treelite is imported with the first model."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.core.place import Place
from nbtriton.backends.described import expect, fill, model_dims
from nbtriton.backends.devices.ledger import CopyLedger
from nbtriton.common.errors import InternalError, UnsupportedError
from nbtriton.extensions.fil.forest import (
    FILENAMES,
    Forest,
    forest_parameters,
    is_classifier,
    is_forest,
    load,
    model_file,
    model_type,
    treelite_model,
)
from nbtriton.extensions.fil.gpu import FlatForest, GpuForest, flatten
from nbtriton.extensions.fil.instance import INPUT, OUTPUT, ForestInstance
from nbtriton.model.config import ModelConfig, TensorSpec, copy_config, input_specs, output_specs
from nbtriton.model.tensors import format_shape, to_config

__all__ = ["FilBackend"]

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


_SUFFIXES = (".tl", ".ubj")


class FilBackend(Backend):
    """Runs tree models as Triton's FIL backend: on the host by treelite, on a GPU by torch.

    Instances of a version share one model on each device.
    """

    name: ClassVar[str] = "fil"
    packages: ClassVar[tuple[str, ...]] = ("treelite",)
    operation: ClassVar[str] = "trees"
    object_parameters: ClassVar[tuple[str, ...]] = ("model_type", "output_class", "threshold")

    def __init__(self) -> None:
        self._model: Any = None
        self._forest: Forest | None = None
        self._flat: FlatForest | None = None
        # Each instance is created on its own thread.
        self._lock = threading.Lock()
        self._by_device: dict[int, Any] = {}

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for a path to a file that is no other kind of model, and for ``treelite.Model``."""
        if isinstance(source, Path):
            return source.suffix in _SUFFIXES
        return type(source).__module__.partition(".")[0] == "treelite"

    @classmethod
    def missing(cls, source: object, config: ModelConfig) -> str:
        """Return the missing file of a version's directory, by its model type; empty if none."""
        if isinstance(source, Path) and source.is_dir():
            source = model_file(source, model_type(config))
        return super().missing(source, config)

    def prefers_gpu(self) -> bool:
        """Return whether a GPU can run tree models here."""
        return not _lacks_for_gpu(0)

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Fill input and output, and for an object its parameters; see `nbtriton.extensions.fil`."""
        config = context.config
        if not isinstance(context.source, Path):
            config = describe_object(config, self._read(context, config))
        return complete(config, self._open(context, config))

    def check(self, context: ModelContext) -> None:
        """Compare the configuration with the model; see `nbtriton.extensions.fil`."""
        check(context.config, self._open(context, context.config))

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance; on a GPU it has never run on hardware.

        Raises
        ------
        UnsupportedError
            A missing GPU or package, with the text of a FIL backend that was built without CUDA.
        """
        model = context.model
        forest, width = self._open(model, model.config), row_width(model.config)
        if context.kind != "KIND_GPU":
            return ForestInstance(model.config, forest, width)
        lacks = _lacks_for_gpu(context.device_id)
        if lacks:
            raise UnsupportedError(
                "KIND_GPU cannot be used in CPU-only build",
                hint=f"{lacks}; KIND_CPU runs the trees on the host",
            )
        from nbtriton.backends.devices.cuda import CudaDevice

        gpu: Any = context.device or CudaDevice(context.device_id, CopyLedger())
        place = Place(gpu, model.name)
        return ForestInstance(model.config, self._on(model, gpu), width, place)

    def weights_bytes(self, context: ModelContext) -> int:
        """Return the size of the flat trees."""
        return self._flattened(context).nbytes

    def served(self, context: ModelContext) -> object:
        """Return the path, or treelite's model of an object."""
        source = context.source
        return source if isinstance(source, Path) else self._read(context, context.config)

    @classmethod
    def default_file(cls, config: ModelConfig) -> str:
        """Return the name for the model's type."""
        return FILENAMES[model_type(config)]

    @classmethod
    def export(cls, served: Any, folder: Path) -> str:
        """Write treelite's checkpoint."""
        served.serialize(str(folder / FILENAMES["treelite_checkpoint"]))
        return "treelite checkpoint"

    def close(self) -> None:
        """Release the model."""
        self._model = self._forest = self._flat = None
        self._by_device.clear()

    def _open(self, context: ModelContext, config: ModelConfig) -> Forest:
        if self._forest is None:
            parameters = forest_parameters(config)
            self._forest = Forest(self._read(context, config), parameters)
        return self._forest

    def _flattened(self, context: ModelContext) -> FlatForest:
        with self._lock:
            if self._flat is None:
                self._open(context, context.config)  # sets the postprocessor
                self._flat = flatten(self._model)
            return self._flat

    def _on(self, context: ModelContext, gpu: Any) -> Any:
        flat = self._flattened(context)
        with self._lock:
            if gpu.index not in self._by_device:
                parameters = forest_parameters(context.config)
                self._by_device[gpu.index] = GpuForest(flat, parameters, gpu.place)
            return self._by_device[gpu.index]

    def _read(self, context: ModelContext, config: ModelConfig) -> Any:
        if self._model is None:
            source = context.source
            if isinstance(source, Path):
                self._model = load(source, forest_parameters(config))
            elif is_forest(source):
                self._model = treelite_model(source)
            else:
                raise InternalError(f"the fil backend cannot run {source!r}")
        return self._model


def _lacks_for_gpu(device_id: int) -> str:
    """Return what a GPU lacks to run tree models here; empty if nothing."""
    if find_spec("torch") is None:
        return "the package 'torch' is not installed (extra torch)"
    import torch

    count = torch.cuda.device_count()
    return "" if device_id < count else f"torch finds {count} GPUs, not GPU {device_id}"
