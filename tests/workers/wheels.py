"""Wheels of tiny packages, written by hand: no build and no network."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

__all__ = ["write_numpy_wheel", "write_wheel"]


def write_numpy_wheel(folder: Path) -> Path:
    """Write a wheel that leads to this process's NumPy."""
    real = folder / "real"
    real.mkdir(parents=True)
    packages = Path(np.__file__).parents[1]
    for found in (packages / "numpy", *packages.glob("numpy.libs")):
        (real / found.name).symlink_to(found)
    return write_wheel(
        folder,
        "numpy",
        np.__version__,
        f"import sys; sys.path.append({str(real)!r})\n",
        file="this_numpy.pth",
    )


def write_wheel(folder: Path, name: str, version: str, source: str, *, file: str = "") -> Path:
    """Write a wheel with one module, or another file."""
    info = f"{name}-{version}.dist-info"
    files = {
        file or f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel
