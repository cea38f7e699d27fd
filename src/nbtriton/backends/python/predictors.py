"""Objects that predict: estimators, with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.backends.signature import complete_signature, example_spec
from nbtriton.backends.tracebacks import user_code
from nbtriton.common.errors import ConfigError, nearest
from nbtriton.model.config import ModelConfig, output_specs
from nbtriton.model.tensors import Array, as_array, to_numpy

# In this order; any other method of an estimator is an output if the configuration names it.
_METHODS = ("predict", "predict_proba")
_INPUT = "INPUT"


def is_predictor(source: object) -> bool:
    """Return True for an object with ``predict`` or ``predict_proba``."""
    if isinstance(source, type):
        return False
    return any(callable(getattr(source, name, None)) for name in _METHODS)


def complete_predictor(source: Any, config: ModelConfig, example: object) -> ModelConfig:
    """Fill a configuration from a predictor's results for a sample.

    An estimator has one input, ``INPUT``, and an output by the name of each of its methods ``predict`` and
    ``predict_proba``.

    Parameters
    ----------
    source : object
    config : ModelConfig
    example : array, optional
        A batch; by default zeros with the estimator's number of training columns.

    Raises
    ------
    ConfigError
        Unknown inputs, or a contradiction to the configuration.
    ModelError
        The predictor raised.
    """
    batches = config.max_batch_size > 0
    sample = _sample(source, config, example)
    names = list(output_specs(config))
    with user_code(f"model '{config.name}' failed on a sample of shape {list(sample.shape)}: "):
        results = _results(source, sample, names)
    name = config.input[0].name if len(config.input) == 1 else _INPUT
    return complete_signature(
        config,
        {} if config.input else {name: example_spec(name, sample, batches)},
        {} if names else {key: example_spec(key, array, batches) for key, array in results.items()},
    )


def predictor_call(
    source: Any, config: ModelConfig
) -> Callable[[Mapping[str, Array], frozenset[str]], dict[str, Any]]:
    """Return a function that calls a predictor with the inputs of a batch.

    Raises
    ------
    ConfigError
        The configuration has more than one input.
    """
    if len(config.input) != 1:
        raise ConfigError(
            f"model '{config.name}' has {len(config.input)} inputs, a "
            f"{type(source).__name__} takes one",
            hint="write a function that calls it with what it wants",
            field="input",
        )
    names = list(output_specs(config))
    for name in names:
        _method(source, name)

    def call(inputs: Mapping[str, Array], requested: frozenset[str]) -> dict[str, Any]:
        (batch,) = inputs.values()
        computed = [name for name in names if name in requested]
        results = _results(source, to_numpy(batch), computed)
        return {name: results[name] for name in computed}

    return call


def _results(source: Any, batch: Array, names: Sequence[str]) -> dict[str, Array]:
    """Return the outputs of these names; all outputs for no names."""
    names = names or [name for name in _METHODS if callable(getattr(source, name, None))]
    rows = _with_columns(source, batch)
    return {name: _rows(_method(source, name)(rows)) for name in names}


def _with_columns(source: Any, batch: Array) -> Any:
    """Return a batch as what the estimator was trained with: a DataFrame, where its columns had names."""
    columns = getattr(source, "feature_names_in_", None)
    if columns is None or batch.ndim != 2 or batch.shape[1] != len(columns):
        return batch
    import pandas as pd

    return pd.DataFrame(batch, columns=columns)


def _method(source: Any, name: str) -> Callable[[Array], Any]:
    """Return the method that an output is named after."""
    method = getattr(source, name, None)
    if name == "predict" and hasattr(source, "inplace_predict"):
        method = source.inplace_predict  # of an XGBoost Booster, whose `predict` needs a DMatrix
    if not callable(method) or name.startswith("_"):
        known = [key for key in dir(source) if key[0] != "_" and callable(getattr(source, key))]
        raise ConfigError(
            f"a {type(source).__name__} has no method '{name}', which the output is named after",
            hint=nearest(name, known) or f"its outputs are {', '.join(_METHODS)}",
            field="output",
        )
    call: Callable[[Array], Any] = method
    return call


def _rows(result: Any) -> Array:
    """Return a result with at least one dimension after that of the batch, and text as bytes."""
    array = np.asarray(result)
    if array.dtype.kind in "OSU":
        array = as_array(array, "BYTES", name="predict")
    return array.reshape(-1, 1) if array.ndim == 1 else array


def _sample(source: Any, config: ModelConfig, example: object) -> Array:
    if example is not None:
        return to_numpy(example)
    columns = getattr(source, "n_features_in_", None)
    if columns is None:
        count = getattr(source, "num_feature", None) or getattr(source, "num_features", None)
        columns = count() if callable(count) else None
    if columns is None and len(config.input) == 1 and len(config.input[0].dims) == 1:
        columns = config.input[0].dims[0]
    if columns is None or columns < 1:
        raise ConfigError(
            f"the inputs of a {type(source).__name__} are unknown",
            hint="give an example batch: server.load(..., example=X[:2])",
            field="input",
        )
    return np.zeros((1, int(columns)), np.float32)
