"""Packages of an extra and their sizes, and an environment that links to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["bytes_of", "environment_of_links", "packages_of"]


def packages_of(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed distributions of requirements and their dependencies, without nbtriton.

    Parameters
    ----------
    requirements : iterable of str
        Such as ``["nbtriton[torch]"]``.

    Raises
    ------
    PackageNotFoundError
        One of them is not installed.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found[name] = distribution(name)
            for text in found[name].requires or ():
                needs = Requirement(text)
                if needs.marker is None or needs.marker.evaluate({"extra": extra}):
                    waiting.append(needs)
    found.pop("nbtriton", None)
    return found


def bytes_of(packages: Mapping[str, Distribution]) -> int:
    """Return the size of the packages' files, bytecode included."""
    return sum(path.stat().st_size for each in packages.values() for path in _files(each))


def environment_of_links(folder: Path, packages: Mapping[str, Distribution]) -> Path:
    """Return the python of a new environment with links to these packages.

    Equivalent to ``pip install`` of the same versions, without downloads or copies.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "lib" / version / "site-packages"
    binaries = folder / "bin"
    for directory in (site, binaries):
        directory.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(sys.base_prefix, 'bin')}\ninclude-system-site-packages = false\n"
    )
    (binaries / "python").symlink_to(Path(sys.base_prefix, "bin", version))
    for each in packages.values():
        for path in _files(each):
            inside = os.path.relpath(path, _site_of(each))
            if inside.startswith(".."):
                continue  # scripts and data files
            target = site / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(path)
    return binaries / "python"


def _files(package: Distribution) -> Iterable[Path]:
    for file in package.files or ():
        path = Path(str(file.locate()))
        if path.is_file():
            yield path


def _site_of(package: Distribution) -> Path:
    return Path(str(package.locate_file("")))
