"""When what a model is made of was last changed (L8)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["newest", "stamp_ns"]


def newest(directory: Path) -> int:
    """Return the newest modification time in a directory and all below it, in nanoseconds (L8)."""
    stamp = directory.stat().st_mtime_ns
    for folder, folders, files in os.walk(directory):
        for child in (*folders, *files):
            try:
                stamp = max(stamp, os.stat(os.path.join(folder, child)).st_mtime_ns)  # noqa: PTH116, PTH118 - a walk of thousands of files
            except OSError:  # removed while we walked
                continue
    return stamp


def stamp_ns(source: object) -> int:
    """Return when a model's file was changed, or its version's directory; 0 if it has neither."""
    if not isinstance(source, Path):
        return 0
    place = source.parent if source.parent.name.isdigit() else source
    try:
        return newest(place)
    except OSError:
        return 0
