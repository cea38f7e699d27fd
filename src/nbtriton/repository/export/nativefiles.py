"""Objects of the fil and openvino backends as the files that these backends read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbtriton.config import ModelConfig

__all__ = ["files_beside", "save_native"]

# What an object says by itself and a file does not.
_PARAMETERS = ("model_type", "output_class", "threshold")


def files_beside(source: Path) -> tuple[str, ...]:
    """Return the names of the files that belong to a model's file: the weights of an OpenVINO model."""
    weights = source.with_suffix(".bin")
    return (weights.name,) if source.suffix == ".xml" and weights.is_file() else ()


def save_native(source: Any, completed: ModelConfig, config: ModelConfig, place: Path) -> str:
    """Write an object into a version's directory, and what its file needs into the configuration.

    Parameters
    ----------
    source : treelite.Model or openvino.Model
        What the instances run.
    completed, config : ModelConfig
        As it is served, and as it will be written.
    place : Path

    Returns
    -------
    str
        The kind of model; empty if the backend is another one.
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
