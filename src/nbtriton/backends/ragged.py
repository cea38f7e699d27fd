"""Ragged batches: requests of different shapes in one buffer, and tensors that describe them (G4, G7).

Pure arithmetic on shapes, after ``BackendInputCollector`` and ``BackendOutputResponder`` of Triton's backend
utilities. Shapes are those of the requests, batch dimension included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

import numpy as np

from nbtriton.backends.described import model_dims
from nbtriton.common.errors import ConfigError
from nbtriton.model.config import ModelConfig, enum_name, input_specs, output_specs

Shape = tuple[int, ...]

_DTYPES = {"TYPE_INT32": np.dtype(np.int32), "TYPE_FP32": np.dtype(np.float32)}


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A tensor that is made for the whole batch from the shapes of one input.

    ``kind`` is ``BATCH_ELEMENT_COUNT`` or another one of Triton's ``BatchInput``; ``dtype`` is INT32 or FP32.
    """

    name: str
    kind: str
    dtype: np.dtype[np.generic]
    source: str

    def value(self, shapes: Sequence[Shape]) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """Return the tensor for requests with these shapes of the source input, batch dimension first.

        Its shape depends on the kind; for R requests: [R] for the two counts, [R + 1] with zero, [items, rank - 1] for
        the item shapes, the same flat for ``…_FLATTEN``. For ``BATCH_MAX_ELEMENT_COUNT_AS_SHAPE`` the shape is the
        value; the data, which Triton leaves undefined, are zeros.
        """
        kind, dtype = self.kind, self.dtype
        counts = [prod(shape) for shape in shapes]
        if kind == "BATCH_ELEMENT_COUNT":
            return np.array(counts, dtype)
        if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT":
            return np.array(list(accumulate(counts)), dtype)
        if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
            return np.array(list(accumulate(counts, initial=0)), dtype)
        if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
            return np.zeros(max(counts), dtype)
        items = np.array([shape[1:] for shape in shapes for _ in range(shape[0])], dtype)
        if kind == "BATCH_ITEM_SHAPE":
            return items
        assert kind == "BATCH_ITEM_SHAPE_FLATTEN", kind
        return items.reshape(-1)


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """An output whose parts are shaped by one input.

    ``shape`` is the output's. -1 stands for the batch dimension, and for dimensions equal to those at the
    same position of the source input.
    """

    source: str
    shape: Shape

    def part(self, source: Shape) -> Shape:
        """Return the shape of a request's part, given its shape of the source input."""
        return tuple(source[axis] if size == -1 else size for axis, size in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of tensors in a model's batches, beyond joining them along axis 0.

    Parameters
    ----------
    ragged : frozenset of str
        Inputs that the model gets as one flat buffer, also for a single request.
    batch_inputs : tuple of BatchInput
    batch_outputs : mapping of str to BatchOutput
        By output name.
    shape_tensors : mapping of str to int
        Inputs whose values are a shape, and the number of values without the batch dimension.
    """

    ragged: frozenset[str] = frozenset()
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: Mapping[str, BatchOutput] = field(default_factory=dict)
    shape_tensors: Mapping[str, int] = field(default_factory=dict)


PLAIN = Layout()


def layout(config: ModelConfig) -> Layout:
    """Return the layout of a configuration.

    Raises
    ------
    ConfigError
        An output shaped by an input that lacks a dimension for it.
    """
    inputs = input_specs(config)
    outputs = output_specs(config)
    batching = (-1,) if config.max_batch_size > 0 else ()
    batch_outputs = {}
    for index, scattered in enumerate(config.batch_output):
        (source,) = scattered.source_input
        spec = inputs[source]
        rank = len(batching) + len(model_dims(spec))
        for name in scattered.target_name:
            of = outputs[name]
            shape = (*batching, *model_dims(of))
            if any(size == -1 for size in shape[rank:]):
                raise ConfigError(
                    f"output '{name}' of model '{config.name}' has more variable dimensions than "
                    f"'{source}', whose shape scatters it, has dimensions",
                    hint=f"'{name}' is {list(of.dims)}, '{source}' is {list(spec.dims)}",
                    field=f"batch_output[{index}]",
                )
            batch_outputs[name] = BatchOutput(source, shape)
    batch_inputs = tuple(
        BatchInput(name, enum_name(made, "kind"), _DTYPES[enum_name(made, "data_type")], source)
        for made in config.batch_input
        for source in made.source_input
        for name in made.target_name
    )
    ragged = frozenset(name for name, spec in inputs.items() if spec.allow_ragged_batch)
    shapes = [spec for spec in inputs.values() if spec.is_shape_tensor and batching]
    sizes = {spec.name: spec.dims[0] for spec in shapes}
    return Layout(ragged, batch_inputs, batch_outputs, sizes)


def batch_input_names(config: ModelConfig) -> list[str]:
    """Return the names of the tensors that batch inputs add to a model's inputs."""
    return [name for made in config.batch_input for name in made.target_name]
