"""What packages add to nbtriton: each kind is a group of entry points, and an entry is a name with its place.

``nbtriton.backends``, ``nbtriton.magics`` and so on for each `Kind`; CONTRIBUTING.md explains what
an entry of each kind is. nbtriton's own extensions are entries as
well, from a table in `nbtriton.extensions` that is also found if nothing is installed; without that
folder, everything else works.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nbtriton.common.errors import UnsupportedError

Kind: TypeAlias = Literal[
    "backends",
    "magics",
    "endpoints",
    "commands",
    "views",
    "verifiers",
    "models",
    "tracers",
    "isolations",
    "platforms",
    "devices",
    "stand_ins",
]

# The core's own entries of each kind.
CORE: Mapping[str, Mapping[str, str]] = {
    "backends": {
        "python": "nbtriton.backends.python:PythonBackend",
    }
}


def own_places(kind: Kind) -> dict[str, str]:
    """Return the places of nbtriton's own entries of a kind by name, as ``module:attribute``."""
    own: Mapping[str, Mapping[str, str]] = {}
    with contextlib.suppress(ImportError):  # the core alone
        own = importlib.import_module("nbtriton.extensions").ENTRY_POINTS
    return {**CORE.get(kind, {}), **own.get(kind, {})}


def places(kind: Kind) -> dict[str, str]:
    """Return the places of all entries of a kind, by name: nbtriton's own, then those of other packages."""
    return dict(_places(kind))


def _places(kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield name and place of each entry; other packages are looked at only if nbtriton's own entries do not do."""
    found = own_places(kind)
    yield from list(found.items())
    times = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            times.append((folder, Path(folder).stat().st_mtime_ns))
    for point in _entry_points(tuple(times)).select(group=f"nbtriton.{kind}"):
        # An installation of nbtriton may be older than the source that runs.
        if point.name not in found and not point.value.startswith("nbtriton."):
            found[point.name] = point.value
            yield point.name, point.value


@lru_cache(maxsize=1)
def _entry_points(_folders: object) -> Any:
    """Return the entries of all packages, read again once the folders of packages have changed: 230 take 20 ms."""
    from importlib.metadata import entry_points  # 28 ms, a fifth of the whole import

    return entry_points()


def place_of(kind: Kind, name: str) -> str | None:
    """Return the place of an entry; None if there is none of this name."""
    return own_places(kind).get(name) or places(kind).get(name)


def load(place: str) -> Any:
    """Return the object at a place, or the module where the place names no attribute.

    Raises
    ------
    ImportError, AttributeError
        There is no such object, or its module cannot be imported.
    """
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def find(kind: Kind, name: str, missing: str, hint: str = "") -> Any:
    """Return the object of an entry; raises UnsupportedError with this text where there is none."""
    place = place_of(kind, name)
    if place is None:
        raise UnsupportedError(missing, hint=hint)
    return load(place)


def working(kind: Kind) -> Iterator[tuple[str, Any]]:
    """Yield the name and the object of each entry of a kind; one that cannot be loaded is a warning."""
    for name, place in _places(kind):
        try:
            found = load(place)
        except Exception as error:
            warnings.warn(
                f"the extension '{name}' ({place}) adds nothing to nbtriton.{kind}: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
        else:
            yield name, found
