"""Sample inputs for a configuration, determined by a seed and valid for most models."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from nbtriton.model.config import ModelConfig, TensorSpec, input_specs
from nbtriton.model.tensors import numpy_dtype

_WORDS = (b"one", b"two words", "h\u00e9llo".encode(), b"", b"12")


def sample_inputs(config: ModelConfig, *, size: int = 1, seed: int = 0) -> dict[str, Any]:
    """Return the inputs of one request.

    Floats have a standard normal distribution, integers are small and not negative (they may be
    indices), BYTES are short texts.

    Parameters
    ----------
    config : ModelConfig
        Completed.
    size : int
        Batch size, if the model batches; a dimension of -1 is one larger.
    seed : int

    Returns
    -------
    dict of str to numpy.ndarray
    """
    batches = config.max_batch_size > 0
    return sample_tensors(input_specs(config).values(), batches=batches, size=size, seed=seed)


def sample_tensors(
    specs: Iterable[TensorSpec], *, batches: bool, size: int, seed: int
) -> dict[str, Any]:
    """Return a sample of each tensor; see `sample_inputs`."""
    random = np.random.default_rng(seed)
    tensors = {}
    for spec in specs:
        dims = [size + 1 if dim < 0 else dim for dim in spec.dims]
        shape = (size, *dims) if batches else tuple(dims)
        tensors[spec.name] = _sample(spec.datatype, shape, random)
    return tensors


def _sample(datatype: str, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    if datatype == "BYTES":
        words = [_WORDS[index] for index in random.integers(0, len(_WORDS), math.prod(shape))]
        out = np.empty(len(words), object)
        out[:] = words
        return out.reshape(shape)
    dtype = numpy_dtype(datatype)
    if datatype == "BOOL":
        return random.integers(0, 2, shape).astype(dtype)
    if datatype.startswith(("INT", "UINT")):
        return random.integers(0, 4, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
