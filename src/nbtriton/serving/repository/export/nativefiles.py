"""Objects of the fil and openvino backends as files for these backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbtriton.model.config import ModelConfig

__all__ = ["files_beside", "save_native"]

# Properties of an object that its file lacks.
_PARAMETERS = ("model_type", "output_class", "threshold")


def files_beside(source: Path) -> tuple[str, ...]:
    """Return the names of the files beside a model's file: the weights of an OpenVINO model."""
    weights = source.with_suffix(".bin")
    return (weights.name,) if source.suffix == ".xml" and weights.is_file() else ()


def save_native(source: Any, completed: ModelConfig, config: ModelConfig, place: Path) -> str:
    """Write an object into a version's directory, and its properties into the configuration.

    Parameters
    ----------
    source : treelite.Model or openvino.Model
        The object that the instances run.
    completed, config : ModelConfig
        The served configuration, and the one to be written.
    place : Path

    Returns
    -------
    str
        The kind of model; empty for another backend.
    """
    if completed.backend == "fil":
        source.serialize(str(place / "checkpoint.tl"))
        for key in _PARAMETERS:
            if key in completed.parameters:
                config.parameters[key].CopyFrom(completed.parameters[key])
        config.ClearField("default_model_filename")
        return "treelite checkpoint"
    if completed.backend == "openvino":
        import openvino

        openvino.save_model(source, place / "model.xml", compress_to_fp16=False)
        config.ClearField("default_model_filename")
        return "OpenVINO"
    return ""
