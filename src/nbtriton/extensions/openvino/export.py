"""Models of OpenVINO in a repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbtriton.extensions.openvino.configuration import import_openvino
from nbtriton.model.config import ModelConfig
from nbtriton.serving.repository.export.model_writer import Exporter


class OpenVinoExporter(Exporter):
    """Writes OpenVINO's own format: a model, and its weights beside it."""

    def default_file(self, config: ModelConfig) -> str:  # noqa: ARG002 - it is the same for all
        """Return the name of the model."""
        return "model.xml"

    def files_beside(self, path: Path) -> Sequence[str]:
        """Return the weights of a model, or what an ONNX file refers to."""
        weights = path.with_suffix(".bin")
        if path.suffix == ".xml":
            return (weights.name,) if weights.is_file() else ()
        return super().files_beside(path)

    def write(self, source: Any, completed: ModelConfig, config: ModelConfig, place: Path) -> str:  # noqa: ARG002
        """Write an ``openvino.Model``."""
        import_openvino().save_model(source, place / "model.xml", compress_to_fp16=False)
        return "OpenVINO"
