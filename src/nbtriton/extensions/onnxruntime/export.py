"""ONNX models in a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbtriton.model.config import ModelConfig
from nbtriton.serving.repository.export.model_writer import Exporter


class OnnxExporter(Exporter):
    """Writes ONNX files."""

    def default_file(self, config: ModelConfig) -> str:  # noqa: ARG002 - it is the same for all
        """Return the name of the model."""
        return "model.onnx"

    def write(self, source: Any, completed: ModelConfig, config: ModelConfig, place: Path) -> str:  # noqa: ARG002
        """Write the bytes of a model."""
        (place / "model.onnx").write_bytes(source)
        return "ONNX"
