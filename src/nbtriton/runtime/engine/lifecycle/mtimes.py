"""Modification times of the files that a model is made of (L8)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["latest_mtime_ns", "source_mtime_ns"]


def latest_mtime_ns(directory: Path) -> int:
    """Return the latest modification time of a directory and everything below it (L8)."""
    latest = directory.stat().st_mtime_ns
    for folder, folders, files in os.walk(directory):
        for child in (*folders, *files):
            try:
                latest = max(latest, os.stat(os.path.join(folder, child)).st_mtime_ns)  # noqa: PTH116, PTH118 - a walk of thousands of files
            except OSError:  # removed while we walked
                continue
    return latest


def source_mtime_ns(source: object) -> int:
    """Return when a model's file, or its version's directory, was modified; 0 without either."""
    if not isinstance(source, Path):
        return 0
    place = source.parent if source.parent.name.isdigit() else source
    try:
        return latest_mtime_ns(place)
    except OSError:
        return 0
