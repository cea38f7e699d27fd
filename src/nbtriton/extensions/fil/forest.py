"""A tree model on the host: treelite's GTIL, with parameters and output conversions of Triton's FIL backend (FL1 to FL3).

The parameters are read as in ``RapidsSharedState::load`` of its shared_state.h, and ``get_config_param`` of RAPIDS-Triton,
which reads numbers and words by a C++ stream: text after the first word does not count.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
    nearest,
)
from nbtriton.common.packages import imported
from nbtriton.model.config import ModelConfig
from nbtriton.model.config.parameters import text_parameter

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
    threshold = _threshold(config) if output_class else 0.5
    threads = _number(config, "cpu_nthread", -1)
    return ForestParameters(
        kind, predict_proba, output_class, threshold, allow_unknown_field, threads
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


# Estimators of these packages, and their subclasses, are accepted as objects.
_PLACE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+:\d+: ")
# treelite's task numbers of classifiers: with two classes, and with more.
_CLASSIFIERS = (0, 2)
_PACKAGES = ("treelite", "xgboost", "lightgbm", "sklearn")


def import_treelite() -> Any:
    """Return the module.

    Raises
    ------
    UnsupportedError
        It is not installed, or does not start.
    """
    return imported("backend 'fil'", "treelite")


def is_forest(source: object) -> bool:
    """Return True for an object that may be a tree model: a fitted estimator, a booster, treelite's model."""
    if isinstance(source, type):
        return False
    packages = {base.__module__.partition(".")[0] for base in type(source).__mro__}
    return not packages.isdisjoint(_PACKAGES)


def treelite_model(source: object) -> Any:
    """Return an object of a notebook as treelite's model.

    Parameters
    ----------
    source : object
        ``treelite.Model``, ``xgboost.Booster`` or estimator, ``lightgbm.Booster`` or estimator, or
        a tree ensemble of scikit-learn.

    Raises
    ------
    UnsupportedError
        treelite cannot read it.
    """
    treelite = import_treelite()
    if isinstance(source, treelite.Model):
        # The returned header decides.
        return treelite.Model.deserialize_bytes(source.serialize_bytes())
    try:
        return _imported(treelite, source)
    except Exception as error:
        raise UnsupportedError(
            f"a {type(source).__name__} is no tree model that treelite reads: {_text(error)}",
            hint="fitted forests and boosted trees of XGBoost, LightGBM and scikit-learn, and "
            "treelite.Model",
        ) from None


def _imported(treelite: Any, source: Any) -> Any:
    for package, wrapper, attribute, read in (
        ("xgboost", "XGBModel", "get_booster", "from_xgboost"),
        ("lightgbm", "LGBMModel", "booster_", "from_lightgbm"),
    ):
        module = sys.modules.get(package)
        if module is None:
            continue
        if isinstance(source, getattr(module, wrapper, ())):
            method = getattr(source, attribute)
            source = method() if callable(method) else method
        if isinstance(source, module.Booster):
            return getattr(treelite.frontend, read)(source)
    return treelite.sklearn.import_model(source)


def load(source: Path, parameters: ForestParameters) -> Any:
    """Return the model of a file, or of the default file in a version's directory.

    Raises
    ------
    UnavailableError
        The file does not exist.
    UnknownError
        treelite cannot read it, with its text.
    """
    treelite = import_treelite()
    kind = parameters.model_type
    path = model_file(source, kind)
    if not path.is_file():
        raise UnavailableError(
            f"Could not open model file {path}",
            hint=f"model_type {kind} is read from {FILENAMES[kind]}, or from default_model_filename",
        )
    frontend = treelite.frontend
    try:
        if kind == "treelite_checkpoint":
            return treelite.Model.deserialize(str(path))
        if kind == "lightgbm":
            return frontend.load_lightgbm_model(str(path))
        if kind == "xgboost":
            return frontend.load_xgboost_model_legacy_binary(str(path))
        return frontend.load_xgboost_model(
            str(path),
            format_choice="json" if kind == "xgboost_json" else "ubjson",
            allow_unknown_field=parameters.allow_unknown_field,
        )
    except Exception as error:
        raise UnknownError(
            _text(error),
            hint=f"model_type is {kind}, and {path.name} is read by treelite {treelite.__version__}",
        ) from None


def is_classifier(model: Any) -> bool:
    """Return True if treelite's model is a classifier."""
    return int(model.get_header_accessor().get_field("task_type")[0]) in _CLASSIFIERS


def model_file(source: Path, model_type: str) -> Path:
    """Return a file, or the file of a model type in a version's directory."""
    return source / FILENAMES[model_type] if source.is_dir() else source


def _text(error: Exception) -> str:
    """Return treelite's message without the time and the source line."""
    return _PLACE.sub("", str(error).strip()) or type(error).__name__


class Forest:
    """A model that threads may run concurrently.

    Parameters
    ----------
    model : treelite.Model
    parameters : ForestParameters

    Attributes
    ----------
    features, classes : int
        Numbers of inputs of a row, and of treelite's results: 1 for a regression and mostly for two classes.
    """

    def __init__(self, model: Any, parameters: ForestParameters) -> None:
        treelite = import_treelite()
        header = model.get_header_accessor()
        if int(header.get_field("num_target")[0]) != 1:
            raise UnknownError(
                "Multi-target model not supported", hint="split it into a model a target"
            )
        self.features = int(model.num_feature)
        self.classes = int(header.get_field("num_class")[0])
        if self.classes > 1 and (parameters.predict_proba or parameters.output_class):
            # As in Triton's backend, for any training objective (FL7).
            by_leaf = int(header.get_field("leaf_vector_shape")[1]) > 1
            softmax = parameters.predict_proba and not by_leaf
            header.set_field("postprocessor", "softmax" if softmax else "identity_multiclass")
        self._model = model
        self._predict = treelite.gtil.predict
        self._parameters = parameters

    @property
    def width(self) -> int:
        """The number of elements of a row's output."""
        parameters = self._parameters
        if parameters.predict_proba:
            return max(2, self.classes)
        return 1 if parameters.output_class else self.classes

    def predict(self, rows: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.float32]:
        """Return the output of rows.

        Parameters
        ----------
        rows : ndarray of float32, shape (rows, features)
        width : int
            Of the configured output; with 1, probabilities are those of class 1 alone.

        Returns
        -------
        ndarray of float32, shape (rows, width)
        """
        parameters = self._parameters
        if rows.ndim != 2 or rows.shape[1] != self.features:
            # treelite would read past the end of a row.
            raise InvalidArgumentError(
                f"rows of {rows.shape[-1]} features, the model has {self.features}"
            )
        results = self._predict(self._model, rows, nthread=parameters.threads)
        classes: npt.NDArray[np.float32] = results[:, 0, :].astype(np.float32, copy=False)
        if self.classes == 1:
            if parameters.predict_proba:
                return classes if width == 1 else np.concatenate((1 - classes, classes), axis=1)
            if parameters.output_class:
                classes = (classes > np.float32(parameters.threshold)).astype(np.float32)
        elif parameters.output_class and not parameters.predict_proba:
            classes = classes.argmax(axis=1, keepdims=True).astype(np.float32)
        return classes
