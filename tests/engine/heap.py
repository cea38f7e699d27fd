"""What the garbage collector sees, held beside the references that there are."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import Any

__all__ = ["is_compiled", "overcounted"]


def is_compiled(kind: type) -> bool:
    """Return whether mypyc has compiled a class."""
    name = str(kind.__module__)  # of some classes it is None, or something else
    file = str(getattr(sys.modules.get(name), "__file__", ""))
    return name.startswith("nbtriton.") and file.endswith((".so", ".pyd"))


def overcounted() -> tuple[list[str], set[str]]:
    """Return what the collector finds more often than it is referred to, and the classes looked at.

    The collector takes an object for garbage when the references that it finds among the objects it looks at are
    all that there are. One that it finds twice stands for another one that it does not see, and what is alive is
    cleared. Looked at is what instances of compiled classes refer to.
    """
    gc.collect()
    gc.disable()  # what is counted stays
    try:
        probe: list[Any] = []
        everything = gc.get_objects()  # without this list
        found: Counter[int] = Counter()
        targets: dict[int, Any] = {id(probe): probe}
        owners: dict[int, set[str]] = {}
        for one in everything:
            referents = gc.get_referents(one)
            found.update(map(id, referents))
            if is_compiled(type(one)):
                name = f"{type(one).__module__}.{type(one).__qualname__}"
                for referent in referents:
                    if gc.is_tracked(referent):
                        targets[id(referent)] = referent
                        owners.setdefault(id(referent), set()).add(name)
        listed = Counter(map(id, everything))
        del one, referents
        references = {}
        for key, target in targets.items():
            # Without the list of everything; the others that this function holds are those of the probe.
            references[key] = sys.getrefcount(target) - listed[key]
        del target
        own = references[id(probe)] - 1
        return (
            [
                f"{type(targets[key]).__qualname__} of {sorted(names)}: "
                f"found {found[key]} times, {references[key] - own} references"
                for key, names in owners.items()
                if found[key] > references[key] - own
            ],
            {name for names in owners.values() for name in names},
        )
    finally:
        gc.enable()
