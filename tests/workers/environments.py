"""Environments for tests: a virtual environment with this Python's NumPy, made without a network."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

__all__ = ["make_environment", "pack"]


def make_environment(folder: Path, *, numpy: bool = True, packages: Path | None = None) -> Path:
    """Make a virtual environment; its NumPy is that of a folder, by default this process's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    if numpy:
        packages = packages or Path(np.__file__).parents[1]
        (site,) = folder.glob("lib/python3*/site-packages")
        for found in (packages / "numpy", *packages.glob("numpy.libs")):
            (site / found.name).symlink_to(found)
    return folder


def pack(folder: Path, archive: Path, mode: str = "w:gz") -> Path:
    """Pack what is in a folder, as conda-pack and venv-pack do."""
    with tarfile.open(archive, mode) as file:
        for path in folder.iterdir():
            file.add(path, path.name)
    return archive
