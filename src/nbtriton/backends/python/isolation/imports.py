"""Import ``model.py`` and the modules beside it, afresh for every instance.

In Triton each instance is a process: its modules are its own, and a ``utils.py`` of one model is
unknown to all others. Here all share one interpreter. So the modules of an instance live in a
package of its own (``nbtriton_model_3fa52c01_7.utils``), and the import statements and ``__import__``
calls of its code find them by their own names, in any thread and at any time: Python looks
``__import__`` up in the ``__builtins__`` of the calling module, which are the instance's.

Everything else of the import system is the process's: `sys`, `importlib`, and libraries that import
by name on a model's behalf, as pickle does, know these modules by their full names only.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import itertools
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2s
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from nbtriton.backends.forking import per_process
from nbtriton.backends.tracebacks import PRIVATE_PACKAGE

__all__ = ["LocalModules"]

# A copy of Triton's own module beside a model would look for the process that it runs in.
_OURS = ("triton_python_backend_utils", "c_python_backend_utils")

_numbers = itertools.count(1)
_live: dict[str, LocalModules] = {}
_lock = per_process(threading.Lock)
# One thread at a time imports installed packages. Two threads that meet in a package whose modules
# import each other, as torch's do, would get half of them rather than wait for each other.
_importing = per_process(threading.RLock)


class LocalModules:
    """The modules of one instance that come from its model's folders.

    Parameters
    ----------
    version : int
        The module is imported as ``<version>.<stem>`` of the instance's package.
    directories : sequence of Path
        The version directory, then the model directory. Installed modules win over theirs; modules
        on the path of this process alone, such as those in the notebook's folder, do not.

    Attributes
    ----------
    package : str
        Its name begins with `family`, which all instances of a model have in common, also in
        another process: a pickle of one is read by another.
    """

    def __init__(self, version: int, directories: Sequence[Path]) -> None:
        # As `__file__` has them: absolute, and symbolic links as they are.
        self._directories = [str(directory.absolute()) for directory in directories]
        digest = blake2s(os.fsencode(self._directories[-1]), digest_size=4).hexdigest()
        self.family = f"{PRIVATE_PACKAGE}{digest}_"
        self.package = f"{self.family}{next(_numbers)}"
        self._version = f"{self.package}.{version}"
        self._installed = {entry for entry in sys.path if _is_installed(entry)}
        self._global = set(_OURS)  # names that were found to be no module of the model
        self._builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}
        for name, path in ((self.package, []), (self._version, self._directories[:1])):
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = path
        self._forget_folders()
        with _lock():
            if not _live:
                sys.meta_path.insert(0, _finder)
            _live[self.package] = self

    def load(self, path: Path) -> ModuleType:
        """Import a file as the model's own module.

        Raises
        ------
        Exception
            What the file raises.
        """
        name = f"{self._version}.{path.stem}"
        loader = _Loader(name, str(path), self._builtins)
        spec = spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = sys.modules[name] = module_from_spec(spec)
        loader.exec_module(module)
        return module

    def close(self) -> None:
        """Remove all of them from `sys.modules`, under any name; idempotent."""
        with _lock():
            if _live.pop(self.package, None) is not None and not _live:
                with contextlib.suppress(ValueError):  # the list may have been replaced
                    sys.meta_path.remove(_finder)
        modules = sys.modules.copy()
        own = {id(m) for name, m in modules.items() if name.partition(".")[0] == self.package}
        for name, module in modules.items():
            if id(module) in own:
                sys.modules.pop(name, None)
        self._forget_folders()

    def find(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Find a module of the instance's package by its full name; `path` as finders get it."""
        if name.count(".") == 1:
            path = self._path(self._is_inside)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, str(spec.loader.path), self._builtins)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        # An empty list: C code that looks for the module in sys.modules afterwards, as pickle's does.
        if level or fromlist == [] or name in _OURS:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        top = name.partition(".")[0]
        if self._has(top):
            module = builtins.__import__(
                f"{self.package}.{name}", globals, locals, fromlist or ("__name__",)
            )
            return module if fromlist else sys.modules[f"{self.package}.{top}"]
        with contextlib.nullcontext() if name in sys.modules else _importing():
            module = builtins.__import__(name, globals, locals, fromlist or ())
        self._global.add(top)
        return module

    def _has(self, top: str) -> bool:
        """Return whether a top-level module or package is local.

        It is if the model's path leads to it before it leads to an installed one. A folder without
        ``__init__.py`` comes after everything else, as it does for Python.
        """
        if f"{self.package}.{top}" in sys.modules:
            return True
        if top in self._global or top in sys.builtin_module_names:
            return False
        own = PathFinder.find_spec(top, self._path(self._is_inside))
        if own is None:
            return False
        path = self._path(lambda entry: entry in self._installed or self._is_inside(entry))
        first = PathFinder.find_spec(top, path if own.origin else [*sys.path, *path])
        return first is not None and first.origin == own.origin

    def _path(self, chosen: Callable[[str], bool]) -> list[str]:
        """Return the chosen places of `sys.path`, then the model's own folders."""
        return [*filter(chosen, sys.path), *self._directories]

    def _is_inside(self, entry: str) -> bool:
        """Return whether a place is one of the model's own folders, or in one."""
        return any(f"{entry}/".startswith(f"{directory}/") for directory in self._directories)

    def _forget_folders(self) -> None:
        # The finders' cache of a folder may lack a file that was written a moment ago.
        for place in filter(self._is_inside, list(sys.path_importer_cache)):
            sys.path_importer_cache.pop(place, None)


def _is_installed(entry: str) -> bool:
    """Return whether a place of `sys.path` holds the standard library or installed packages."""
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return (
        any(f"{entry}/".startswith(f"{library}/") for library in libraries)
        or Path(entry).name in ("site-packages", "dist-packages")
        or entry == site.getusersitepackages()
        or entry.endswith(".zip")
    )


class _Finder:
    """Finds the modules of instances by their full names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, own = name.partition(".")
        if not package.startswith(PRIVATE_PACKAGE):
            return None
        live = _live.copy()
        if package in live:
            return live[package].find(name, path)
        # Of an instance that was closed, or of another process: read from a pickle.
        for modules in reversed(live.values()):
            if package.startswith(modules.family):
                current = f"{modules.package}.{own}".removesuffix(".")
                return ModuleSpec(name, _Alias(current), is_package=True)
        return None


class _Alias(Loader):
    """Gives one module a second name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        # Documented: a module may replace itself in sys.modules while it is loaded.
        sys.modules[module.__name__] = importlib.import_module(self._name)


class _Loader(SourceFileLoader):
    """Compiles the source each time: a bytecode cache misses edits within one second."""

    def __init__(self, name: str, path: str, namespace: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._namespace = namespace

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._namespace
        super().exec_module(module)


_finder = _Finder()
