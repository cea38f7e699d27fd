"""Import ``model.py`` and the modules beside it, afresh for every instance.

In Triton each instance is a process: its modules are its own, and a ``utils.py`` of one model is
unknown to all others. Here all share one interpreter. So the modules of an instance live under a
package of its own (``nbtriton_model_7_3fa52c.utils``), and its code imports them by their own names:

* the import statements of its modules go through their ``__builtins__``, which Python looks at for
  each of them, in whatever thread and at whatever time they run;
* what it sees as ``importlib`` and ``sys`` is a view with its own ``import_module``, ``path`` and
  ``modules`` (`views`);
* libraries that import by name on its behalf, as pickle does, are lent what they ask for (`lending`).

Under their full names they are in `sys.modules` as all others are, for whoever looks up the module
of a class there: pickle, dataclasses, `typing.get_type_hints`, torch.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import itertools
import secrets
import site
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from nbtriton.backends.forking import after_fork
from nbtriton.backends.python.isolation.lending import Lender, Owner, take_back
from nbtriton.backends.python.isolation.views import ModulesView, view_of
from nbtriton.backends.tracebacks import PRIVATE_PACKAGE

__all__ = ["LocalModules"]

# A copy of Triton's that stands beside a model would look for the process that it runs in.
_OURS = ("triton_python_backend_utils", "c_python_backend_utils")

# What a model pickles may be read in another process, where the same number is another model's.
_PROCESS = secrets.token_hex(3)
_numbers = itertools.count(1)
_live: dict[str, LocalModules] = {}
_lock = threading.Lock()
# One thread after the other imports what is installed: two that meet in a package whose modules
# import each other, as torch's do, would be given half of them rather than wait for each other.
_importing = threading.RLock()


def _unlock() -> None:
    global _lock, _importing
    _lock, _importing = threading.Lock(), threading.RLock()


after_fork(_unlock)


class LocalModules(Owner):
    """The modules of one instance that come from its model's folders.

    Parameters
    ----------
    version : int
        The module is imported as ``<version>.<stem>`` of the instance's package.
    directories : sequence of Path
        The version directory, then the model directory. Installed modules win over theirs; what
        merely happens to be on the path of this process, as the notebook's folder is, does not.
    """

    def __init__(self, version: int, directories: Sequence[Path]) -> None:
        self.package = f"{PRIVATE_PACKAGE}{next(_numbers)}_{_PROCESS}"
        self._version = f"{self.package}.{version}"
        self._directories = [str(directory) for directory in directories]
        self._installed = [entry for entry in sys.path if _is_installed(entry)]
        # Names that are not the model's own: what they name is where it is for everyone.
        self._global = set(_OURS)
        sys_view = view_of(
            sys,
            argv=[""],
            path=[*self._installed, *self._directories],
            modules=ModulesView(self.package, self._global),
        )
        self._views: dict[str, Any] = {
            "sys": sys_view,
            "importlib": view_of(
                importlib, import_module=self.import_module, __import__=self._import
            ),
        }
        self.builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}
        for name, path in ((self.package, []), (self._version, self._directories[:1])):
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = path
        self._forget_folders()
        with _lock:
            if not _live:
                sys.meta_path.insert(0, _finder)
                sys.meta_path.append(_lender)
            _live[self.package] = self

    def load(self, path: Path) -> ModuleType:
        """Import a file as the model's own module.

        Raises
        ------
        Exception
            Whatever the file raises.
        """
        name = f"{self._version}.{path.stem}"
        spec = spec_from_file_location(name, path, loader=_Loader(name, str(path), self.builtins))
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot import {path}")
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def close(self) -> None:
        """Take all of them out of `sys.modules`; may be called more than once."""
        with _lock:
            if _live.pop(self.package, None) is not None and not _live:
                for finder in (_finder, _lender):
                    with contextlib.suppress(ValueError):  # somebody has put another list there
                        sys.meta_path.remove(finder)
        for name in list(sys.modules):
            if name.partition(".")[0] == self.package:
                sys.modules.pop(name, None)
        take_back(self)
        self._forget_folders()

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import as `importlib.import_module` does, local modules by their own names."""
        if name.startswith(".") and package:
            name = importlib.util.resolve_name(name, package)
        if name in self._views:
            view: ModuleType = self._views[name]
            return view
        if self.has(name):
            return importlib.import_module(f"{self.package}.{name}")
        with _turn(name):
            return importlib.import_module(name)

    def has(self, name: str) -> bool:
        """Return whether a module, or the package that a dotted name begins with, is local.

        It is if `sys.path` as the model knows it leads to it before it leads to an installed one.
        A folder without ``__init__.py`` comes after everything else, as it does for Python.
        """
        top = name.partition(".")[0]
        if f"{self.package}.{top}" in sys.modules:
            return True
        if top in self._global or top in sys.builtin_module_names:
            return False
        own = PathFinder.find_spec(top, self._own_path())
        if own is None:
            return False
        path = self._views["sys"].path
        first = PathFinder.find_spec(top, path if own.origin else [*sys.path, *path])
        return first is not None and first.origin == own.origin

    def find(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Find a module of the instance's package by its full name; `path` as finders get it."""
        if name.count(".") == 1:
            path = self._own_path()
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, str(spec.loader.path), self.builtins)
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
        if (name in self._global and not level) or fromlist == []:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        top = name.partition(".")[0]
        if level == 0 and top in self._views:
            module = builtins.__import__(name, globals, locals, fromlist or ())
            view: ModuleType = self._views[top]
            return module if fromlist and name != top else view
        if level or not self.has(top):
            with _turn(name) if level == 0 else contextlib.nullcontext():
                module = builtins.__import__(name, globals, locals, fromlist or (), level)
            if level == 0:
                self._global.add(top)
            return module
        module = builtins.__import__(
            f"{self.package}.{name}", globals, locals, fromlist or ("__name__",)
        )
        return module if fromlist else sys.modules[f"{self.package}.{top}"]

    def _own_path(self) -> list[str]:
        """The folders of the model, and what it added to its `sys.path` itself."""
        path = self._views["sys"].path
        return [entry for entry in path if isinstance(entry, str) and entry not in self._installed]

    def _forget_folders(self) -> None:
        # A file that was written a moment ago may be missing in what finders remember of a folder.
        for place in list(sys.path_importer_cache):
            if any(f"{place}/".startswith(f"{directory}/") for directory in self._directories):
                sys.path_importer_cache.pop(place, None)


def _turn(name: str) -> contextlib.AbstractContextManager[object]:
    """Return what to hold while a module is imported that is no model's."""
    return contextlib.nullcontext() if name in sys.modules else _importing


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
        modules = _live.get(name.partition(".")[0])
        return None if modules is None else modules.find(name, path)


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
_lender = Lender()
