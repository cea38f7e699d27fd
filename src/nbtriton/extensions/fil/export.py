"""Tree models in a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbtriton.extensions.fil.forest import FILENAMES, model_type
from nbtriton.model.config import ModelConfig
from nbtriton.serving.repository.export.model_writer import Exporter

# Properties of an object that its file lacks.
_PARAMETERS = ("model_type", "output_class", "threshold")


class FilExporter(Exporter):
    """Writes treelite's checkpoints."""

    def default_file(self, config: ModelConfig) -> str:
        """Return the name for the model's type."""
        return FILENAMES[model_type(config)]

    def write(self, source: Any, completed: ModelConfig, config: ModelConfig, place: Path) -> str:
        """Write a ``treelite.Model``."""
        source.serialize(str(place / FILENAMES["treelite_checkpoint"]))
        for key in _PARAMETERS:
            if key in completed.parameters:
                config.parameters[key].CopyFrom(completed.parameters[key])
        return "treelite checkpoint"
