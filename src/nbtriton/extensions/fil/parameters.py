"""The parameters of a forest, read as by Triton's FIL backend (FL1 to FL3).

``RapidsSharedState::load`` of its shared_state.h, and ``get_config_param`` of RAPIDS-Triton, which reads
numbers and words by a C++ stream: text after the first word does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbtriton.backends.parameters import text_parameter
from nbtriton.common.errors import InternalError, InvalidArgumentError, UnsupportedError, nearest
from nbtriton.model.config import ModelConfig

# The default file name of each `model_type`.
FILENAMES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
_INTEGER = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_FLOAT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ForestParameters:
    """The parameters with an effect on the host.

    Parameters
    ----------
    model_type : str
        A key of `FILENAMES`.
    predict_proba : bool
        Return the probability of each class.
    output_class : bool
        The model is a classifier: without `predict_proba` return the class.
    threshold : float
        A binary classifier returns 1 above it.
    allow_unknown_field : bool
        For XGBoost's JSON and UBJSON.
    threads : int
        Most threads of one batch; -1 for all of the machine's.
    """

    model_type: str
    predict_proba: bool
    output_class: bool
    threshold: float
    allow_unknown_field: bool
    threads: int


def forest_parameters(config: ModelConfig) -> ForestParameters:
    """Return the parameters of a configuration, in Triton's order of reading.

    Raises
    ------
    InternalError, InvalidArgumentError, UnsupportedError
        A wrong or missing parameter, with Triton's text.
    """
    predict_proba = _flag(config, "predict_proba", default=False)
    kind = model_type(config)
    allow_unknown_field = _flag(config, "xgboost_allow_unknown_field", default=False)
    output_class = _flag(config, "output_class", default=None)
    return ForestParameters(
        kind,
        predict_proba,
        output_class,
        _threshold(config) if output_class else 0.5,
        allow_unknown_field,
        _number(config, "cpu_nthread", -1),
    )


def model_type(config: ModelConfig) -> str:
    """Return the type of a model's file, a key of `FILENAMES`.

    Raises
    ------
    UnsupportedError
        An unknown type, with Triton's text.
    """
    words = (text_parameter(config, "model_type") or "").split()
    kind = words[0] if words else "xgboost"
    if kind not in FILENAMES:
        raise UnsupportedError(
            f"{kind} not recognized as a valid serialization format.",
            hint=nearest(kind, FILENAMES) or f"model_type is one of {', '.join(FILENAMES)}",
        )
    return kind


def _flag(config: ModelConfig, key: str, *, default: bool | None) -> bool:
    text = text_parameter(config, key)
    if text is None:
        if default is None:
            raise _missing(key, '"true" for a classifier, "false" for a regression')
        return default
    if text not in ("true", "false"):
        raise InternalError(f"Expected 'true' or 'false' for parameter '{key}', got: '{text}'")
    return text == "true"


def _threshold(config: ModelConfig) -> float:
    text = text_parameter(config, "threshold")
    if text is None:
        raise _missing("threshold", 'a classifier has one: "0.5"')
    match = _FLOAT.match(text)
    if match is None:
        raise InvalidArgumentError("Bad input for parameter threshold", hint=f"found '{text}'")
    return float(match[1])


def _number(config: ModelConfig, key: str, default: int) -> int:
    """Return a whole number; the default for a text that is none, as in Triton."""
    match = _INTEGER.match(text_parameter(config, key) or "")
    return default if match is None else int(match[1])


def _missing(key: str, hint: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Required parameter {key} not found in config",
        hint=f'parameters {{ key: "{key}" value {{ string_value: … }} }}: {hint}',
    )
