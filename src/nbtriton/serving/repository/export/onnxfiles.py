"""External data files of an ONNX model."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

__all__ = ["external_files"]

# StringStringEntryProto { key: "location", value: a path of up to 127 bytes } as protobuf writes it.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])")


def external_files(path: Path) -> list[str]:
    """Return the existing files that an ONNX file refers to, relative to its folder.

    Parameters
    ----------
    path : Path
        Other files and directories have none.
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
