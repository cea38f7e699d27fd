"""``sys`` and ``importlib`` as a model sees them: some of their names are its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from types import ModuleType
from typing import Any

__all__ = ["ModulesView", "view_of"]


def view_of(module: ModuleType, **own: Any) -> ModuleType:
    """Return a view of a module in which some names have other values.

    Those are set and changed in the view alone; everything else is the module's.
    """
    return _View(module, own)


class _View(ModuleType):
    def __init__(self, module: ModuleType, own: dict[str, Any]) -> None:
        vars(self).clear()  # __spec__ and its like are the module's
        vars(self).update(own, __wrapped__=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__wrapped__"], name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:
            setattr(vars(self)["__wrapped__"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(vars(self)["__wrapped__"], name)

    def __dir__(self) -> list[str]:
        return dir(vars(self)["__wrapped__"])


class ModulesView(MutableMapping[str, Any]):
    """`sys.modules` in which the modules of one package stand under their own names.

    Parameters
    ----------
    package : str
        What is set here becomes a module of it, known to nobody else.
    others : set of str
        Names of modules that are not of the package; those that are set here leave it.
    """

    def __init__(self, package: str, others: set[str]) -> None:
        self._prefix = f"{package}."
        self._others = others

    def __getitem__(self, name: str) -> Any:
        return sys.modules[self._full(name)]

    def __setitem__(self, name: str, module: Any) -> None:
        full = name if name.startswith(self._prefix) else self._prefix + name
        sys.modules[full] = module
        self._others.discard(name.partition(".")[0])

    def __delitem__(self, name: str) -> None:
        del sys.modules[self._full(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.removeprefix(self._prefix) for name in list(sys.modules)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _full(self, name: str) -> str:
        full = self._prefix + name
        return full if full in sys.modules else name
