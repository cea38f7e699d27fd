"""Objects that predict: estimators (scikit-learn's interface) and Hugging Face pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.backends.signature import complete_signature, example_spec
from nbtriton.backends.tracebacks import user_code
from nbtriton.common.errors import ConfigError, InternalError, InvalidArgumentError, nearest
from nbtriton.model.config import ModelConfig, output_specs
from nbtriton.model.tensors import Array, as_array, datatype_of, to_numpy

# In this order; any other method of an estimator is an output if the configuration names it.
_METHODS = ("predict", "predict_proba")
_INPUT = "INPUT"
_TEXT = "TEXT"


def is_predictor(source: object) -> bool:
    """Return True for an object with ``predict`` or ``predict_proba``, and for a pipeline."""
    if isinstance(source, type):
        return False
    return is_pipeline(source) or any(callable(getattr(source, name, None)) for name in _METHODS)


def is_pipeline(source: object) -> bool:
    """Return True for a ``transformers`` pipeline, or an object with its interface."""
    return callable(source) and all(hasattr(source, name) for name in ("task", "tokenizer"))


def complete_predictor(source: Any, config: ModelConfig, example: object) -> ModelConfig:
    """Fill a configuration from a predictor's results for a sample.

    An estimator has one input, ``INPUT``, and an output by the name of each of its methods ``predict`` and
    ``predict_proba``. A pipeline has one input ``TEXT``, and an output by each key of its returned dicts.

    Parameters
    ----------
    source : object
    config : ModelConfig
    example : array, optional
        A batch; by default zeros with the estimator's number of training columns, or a word.

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
    name = config.input[0].name if len(config.input) == 1 else _default_input(source)
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
    if not is_pipeline(source):
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
    if is_pipeline(source):
        return _pipeline_results(source, batch, names)
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


def _pipeline_results(source: Any, batch: Array, names: Sequence[str]) -> dict[str, Array]:
    texts = [item.decode() for item in batch.reshape(-1).tolist()]
    rows = source(texts)
    lists = [row if isinstance(row, list) else [row] for row in rows]
    if len(lists) != len(texts) or not all(isinstance(d, Mapping) for row in lists for d in row):
        raise InternalError(
            f"the pipeline '{source.task}' did not return a dict, or a list of dicts, for each text",
            hint="write a function that calls the pipeline and returns tensors",
        )
    keys = names or list(dict.fromkeys(key for row in lists for d in row for key in d))
    return {key: _column(key, [[d.get(key) for d in row] for row in lists]) for key in keys}


def _column(key: str, values: list[list[Any]]) -> Array:
    """Return one key of all dicts: text as bytes, numbers by NumPy's own conversion."""
    if any(isinstance(value, str) for row in values for value in row):
        return as_array(values, "BYTES", name=key)
    try:
        array = np.asarray(values)
        datatype_of(array)
    except (ValueError, InvalidArgumentError):
        raise InternalError(
            f"the values of '{key}' do not form a tensor: {values!r:.80}",
            hint="leave the output out of the configuration, or write a function that calls the "
            "pipeline",
        ) from None
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _default_input(source: Any) -> str:
    return _TEXT if is_pipeline(source) else _INPUT


def _sample(source: Any, config: ModelConfig, example: object) -> Array:
    if example is not None:
        return to_numpy(example)
    if is_pipeline(source):
        return np.array([[b"text"]], object)
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
