"""Modules of a model for libraries that import by name on its behalf.

A pickle names the classes in it by their modules, ``utils.Scaler``; a framework imports the class
that a setting names. Their code knows nothing of the package in which an instance's modules live.
When nobody else finds such a module, the model on whose behalf they ask is the nearest one on the
stack. What stands in `sys.modules` from then on, until no such model is left, shows each model its
own module, also where several look at it at the same time. A module of that name which this process
can import itself comes first: then nobody asks here.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, MethodType, ModuleType
from typing import Any

from nbtriton.backends.tracebacks import public_names

__all__ = ["Lender", "Owner", "take_back"]


class Owner(ABC):
    """Local modules of an instance; they live in a ``package`` of its own."""

    package: str

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether a module, or the package that a dotted name begins with, is local."""

    @abstractmethod
    def import_module(self, name: str) -> ModuleType:
        """Import a module by its own name."""


class Lender:
    """Finds, after all other finders, modules of the model that asks."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        owner = _asking()
        if owner is None or name.startswith(f"{owner.package}."):
            return None
        own = _own_name(name)
        if own:
            full = f"{owner.package}.{own}"
            if not owner.has(own) or (full not in sys.modules and find_spec(full) is None):
                return None
        # A package without folders: what is in it is asked for here.
        return ModuleSpec(name, _Lending(owner), is_package=True)


def take_back(owner: Owner) -> None:
    """Take out of `sys.modules` what was lent by this instance and by no other one."""
    # A copy is made in one go; while a list is, the garbage collector may end another instance.
    for name, module in sys.modules.copy().items():
        if type(module) is _Lent:
            owners = object.__getattribute__(module, "_owners")
            owners.discard(owner)
            if not owners:
                sys.modules.pop(name, None)


class _Lending(Loader):
    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if own := _own_name(spec.name):
            self._owner.import_module(own)
        return _Lent(spec.name, self._owner)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module itself was executed under its full name."""

    def get_data(self, path: str) -> bytes:
        """Read a file beside the module, for `pkgutil.get_data`."""
        return Path(path).read_bytes()


class _Lent(ModuleType):
    """A name, under which every model that asks finds its own module."""

    def __init__(self, name: str, owner: Owner) -> None:
        super().__init__(name)
        self._owners = {owner}

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if name in ("__class__", "__name__", "__path__"):
            return own(name)
        module = _own_name(own("__name__"))
        asking = _asking()
        if asking is not None and asking.has(module):
            own("_owners").add(asking)
            return getattr(asking.import_module(module), name)
        if name.startswith("__"):  # imports look at them, and those who go through all modules
            return own(name)
        if asking is not None:
            raise ModuleNotFoundError(f"No module named '{module}'", name=module)
        # The notebook, which could not import it before: perhaps it can by now.
        sys.modules.pop(module, None)
        return getattr(importlib.import_module(module), name)


def _own_name(name: str) -> str:
    """Return what a model calls a module; the full name is one that an instance has pickled.

    Empty for the package of an instance itself, which has gone.
    """
    return public_names(f"{name}.").removesuffix(".")


def _asking() -> Owner | None:
    """Return the nearest model on the stack: its code has an ``__import__`` of its own."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, but for the underscore
    while frame is not None:
        found = frame.f_builtins.get("__import__")
        if type(found) is MethodType and isinstance(found.__self__, Owner):
            return found.__self__
        frame = frame.f_back
    return None
