"""The files of one backend's models: the group ``nbtriton.exporters``, by the backend's name."""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbtriton.common import entries
from nbtriton.model.config import ModelConfig

_FILES = {"python": "model.py", "pytorch": "model.pt"}
# StringStringEntryProto { key: "location", value: a path of up to 127 bytes } as protobuf writes it.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])")


class Exporter:
    """The files that an export writes for a backend's models; these methods are for backends without an exporter."""

    def default_file(self, config: ModelConfig) -> str:
        """Return the name that a model's file has without ``default_model_filename``; empty if there is none."""
        return _FILES.get(config.backend, "")

    def files_beside(self, path: Path) -> Sequence[str]:
        """Return the names of the files that a model's file refers to, relative to its folder."""
        return _external_files(path)

    def write(self, source: Any, completed: ModelConfig, config: ModelConfig, place: Path) -> str:  # noqa: ARG002
        """Write an object into a version's directory, and its properties into the configuration.

        Parameters
        ----------
        source : object
            What the instances run; see `Backend.served`.
        completed, config : ModelConfig
            The served configuration, and the one to be written.
        place : Path

        Returns
        -------
        str
            The kind of model; empty if it is not the exporter's to write.
        """
        return ""


def exporter_of(backend: str) -> Exporter:
    """Return the exporter of a backend's models."""
    place = entries.place_of("exporters", backend)
    found: Exporter = Exporter() if place is None else entries.load(place)()
    return found


def _external_files(path: Path) -> list[str]:
    """Return the existing files that an ONNX file refers to, relative to its folder.

    Parameters
    ----------
    path : Path
        Other files and directories refer to none.
    """
    if path.suffix != ".onnx" or not path.is_file() or not path.stat().st_size:
        return []
    locations: dict[str, None] = {}
    folder = path.parent.resolve()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _LOCATION.finditer(data):
            name = data[match.end() : match.end() + match[1][0]].decode(errors="replace")
            # ONNX Runtime refuses files outside the model's folder, too.
            if "\0" not in name and (folder / name).resolve().is_relative_to(folder):
                locations[name] = None
    return [name for name in locations if (folder / name).is_file()]
