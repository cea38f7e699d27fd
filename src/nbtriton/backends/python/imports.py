"""Import ``model.py`` and the modules beside it, afresh for every instance.

In Triton each instance is a process: its modules are its own, and a ``utils.py`` of one model is
unknown to all others. Here all share one interpreter, so a model's local modules live in a table
of the instance and are in `sys.modules` only while one of its import statements runs.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = ["LocalModules"]

# One for the process: sys.modules is, and so is what stands in it for a moment.
_lock = threading.RLock()


class LocalModules:
    """The modules of one instance that come from its model's folders.

    Parameters
    ----------
    version : int
        The module is imported as ``<version>.<stem>``, which some models rely on.
    directories : sequence of Path
        The version directory, then the model directory. Installed modules win over theirs.
    """

    def __init__(self, version: int, directories: Sequence[Path]) -> None:
        self._directories = [str(directory) for directory in directories]
        self._package = str(version)
        self._modules: dict[str, ModuleType] = {}
        self._depth = 0
        package = ModuleType(self._package)
        package.__path__ = [self._directories[0]]
        self._modules[self._package] = package
        self.builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}

    def load(self, path: Path) -> ModuleType:
        """Import a file as the model's own module.

        Raises
        ------
        Exception
            Whatever the file raises.
        """
        name = f"{self._package}.{path.stem}"
        spec = spec_from_file_location(name, path, loader=_Loader(name, str(path), self.builtins))
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot import {path}")
        with self._installed():
            module = module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return module

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level == 0 and top in sys.modules and top not in self._modules:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        with self._installed():
            return builtins.__import__(name, globals, locals, fromlist or (), level)

    @contextmanager
    def _installed(self) -> Iterator[None]:
        with _lock:
            if self._depth:
                yield
                return
            hidden = {name: sys.modules[name] for name in self._modules if name in sys.modules}
            known = set(sys.modules)
            finder = _Finder(self._directories, self.builtins)
            sys.modules.update(self._modules)
            sys.meta_path.insert(0, finder)
            self._depth += 1
            # A folder that was written a moment ago may be missing in the finders' caches.
            importlib.invalidate_caches()
            try:
                yield
            finally:
                self._depth -= 1
                sys.meta_path.remove(finder)
                for name in [n for n in list(sys.modules) if n not in known or n in self._modules]:
                    if name in self._modules or self._is_local(sys.modules[name]):
                        self._modules[name] = sys.modules.pop(name)
                sys.modules.update(hidden)

    def _is_local(self, module: ModuleType) -> bool:
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if isinstance(loader, _Loader):
            return True
        file = getattr(module, "__file__", None)
        places = [file] if file else list(getattr(module, "__path__", ()))
        return any(
            str(place).startswith(directory + "/")
            for place in places
            for directory in self._directories
        )


class _Finder:
    """Finds modules in a model's folders, after everything that is installed."""

    def __init__(self, directories: list[str], namespace: dict[str, Any]) -> None:
        self._directories = directories
        self._namespace = namespace

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            if name in sys.builtin_module_names or PathFinder.find_spec(name, None, target):
                return None
            path = self._directories
        elif not any(str(p).startswith(d) for p in path for d in self._directories):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, str(spec.loader.path), self._namespace)
        return spec


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
