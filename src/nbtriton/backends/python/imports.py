"""Import ``model.py`` separately for every instance, and the modules beside it once for all of them.

In Triton each instance is a separate process. In a thread, modules work as in any program: those beside
``model.py`` are in `sys.modules` under their own names, where import statements, `importlib` and `pickle`
find them. A model's folders are at the end of `sys.path` while it is loaded (PB1).

One name means one module in a process. If two models each have a ``utils.py``, both import their
own while they are loaded, when nearly all imports run; afterwards the name refers to the first
model's. Later imports, such
as those in ``execute`` or of a pickle, need a process (`LocalModules.clashes`).
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from weakref import WeakSet

from nbtriton.backends.forking import per_process
from nbtriton.backends.tracebacks import PRIVATE_PACKAGE

# Every model has the first, which is imported by its path. A copy of Triton's own modules beside a model
# would look for Triton's process.
_NEVER = ("model", "triton_python_backend_utils", "c_python_backend_utils")
_SUFFIXES = (".py", *EXTENSION_SUFFIXES)

_numbers = itertools.count(1)
# One load at a time, as names change their modules. It also keeps a second thread out of packages with
# circular imports, such as torch, which would see partial modules instead of waiting.
_loading = per_process(threading.RLock)
_live: list[LocalModules] = []
_claims: WeakSet[LocalModules] = WeakSet()
_appended: set[str] = set()  # folders on `sys.path` for models


class LocalModules:
    """The modules in a model's folders, shared by the instances of one loaded version.

    Parameters
    ----------
    version : int
        ``model.py`` is imported as ``<version>.model`` of a package per instance.
    directories : sequence of Path
        The version directory, then the model directory.
    """

    def __init__(self, version: int, directories: Sequence[Path]) -> None:
        self._version = version
        # In the form of `__file__`: absolute, with symbolic links; without `..`, as `_is_inside` compares.
        self.directories = [os.path.normpath(each.absolute()) for each in directories]
        self._inside = tuple(directory + os.sep for directory in self.directories)
        # Installed modules win over local ones.
        self.names = {name for name in _names_in(self.directories) if not _is_installed(name)}
        self._modules: dict[str, ModuleType] = {}
        self._instances: set[str] = set()

    def load(self, path: Path) -> ModuleType:
        """Import a file, and its own imports, for one instance, which later passes it to `release`.

        Raises
        ------
        Exception
            An error of the file; `sys.modules` is restored.
        """
        package = f"{PRIVATE_PACKAGE}{next(_numbers)}"
        parent = f"{package}.{self._version}"
        name = f"{parent}.{path.stem}"
        spec = spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        with _loading():
            self._acquire(package)
            try:
                with self._own_names():
                    for folder, content in ((package, []), (parent, self.directories[:1])):
                        sys.modules[folder] = ModuleType(folder)
                        sys.modules[folder].__path__ = content
                    sys.modules[name] = module
                    spec.loader.exec_module(module)
            except BaseException:
                self.release(module)
                raise
        return module

    def release(self, module: ModuleType) -> None:
        """Remove the module of an instance, and with the last one those beside it; idempotent."""
        package = module.__name__.partition(".")[0]
        with _loading():
            # A copy: another thread may import concurrently.
            _replace([name for name in sys.modules.copy() if name.partition(".")[0] == package], {})
            if package not in self._instances:
                return
            self._instances.remove(package)
            if self._instances:
                return
            _live.remove(self)
            self._modules = {}
            # A newer load of the same folders may own these names now.
            left = [one for one in self._among(sys.modules.copy()).items() if self.holds(one[1])]
            _replace([name for name, m in left if not any(o.holds(m) for o in _live)], {})
            used = {directory for other in _live for directory in other.directories}
            for directory in _appended.intersection(self.directories) - used:
                _appended.remove(directory)
                if directory in sys.path:
                    sys.path.remove(directory)

    def clashes(self) -> dict[str, str]:
        """Return the names in the model's folders that mean another module in this process.

        Returns
        -------
        dict of str to str
            Names, with the other module's file.
        """
        elsewhere = [
            entry
            for entry in sys.path
            if os.path.normpath(Path(entry).absolute()) not in self.directories
        ]
        clashes = {}
        for name in sorted(self.names):
            module, spec = sys.modules.get(name), PathFinder.find_spec(name, elsewhere)
            if module is not None and not self.holds(module):
                clashes[name] = _place_of(module) or repr(module)
            elif spec is not None and spec.origin and not self._is_inside(spec.origin):
                clashes[name] = spec.origin
        return clashes

    def claim(self) -> dict[str, str]:
        """Return the clashes, including those with models that are being loaded.

        Without any, the names are claimed while this object lives: of two concurrent loads one is the first.
        """
        with _loading():
            clashes = self.clashes()
            for other in _claims:
                if other.directories[0] != self.directories[0]:
                    clashes |= dict.fromkeys(self.names & other.names, other.directories[0])
            if not clashes:
                _claims.add(self)
            return clashes

    def _acquire(self, instance: str) -> None:
        if not self._instances:
            _live.append(self)
        self._instances.add(instance)
        for directory in self.directories:
            if directory not in sys.path:
                sys.path.append(directory)
                _appended.add(directory)
            # The finder's directory cache may lack a newly written file.
            sys.path_importer_cache.pop(directory, None)

    @contextmanager
    def _own_names(self) -> Iterator[None]:
        """Make the names of these modules refer to these modules on this thread."""
        known = sys.modules.copy()
        before, clashes = self._among(known), self.clashes()
        _replace(before, self._modules)
        finder = _Finder(self.names, self.directories)
        sys.meta_path.insert(0, finder)
        try:
            yield
        except BaseException:
            _replace(self._among(sys.modules.copy()), before)
            raise
        finally:
            sys.meta_path.remove(finder)
        modules = sys.modules.copy().items()
        self._modules = self._among(
            {name: one for name, one in modules if name in before or known.get(name) is not one}
        )
        # Modules of an earlier load are replaced; another model's, and the notebook's, are not.
        _replace(
            [name for name in self._modules if name.partition(".")[0] in clashes],
            {n: module for n, module in before.items() if n.partition(".")[0] in clashes},
        )

    def _among(self, modules: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
        """Return the modules with a name of these, or in their folders.

        Where a package has a file, its modules are beside it: of some thousand modules few are looked at.
        """
        tops: dict[str, bool | None] = {}
        found = {}
        for name, module in modules.items():
            top = name.partition(".")[0]
            if top not in tops:
                package = sys.modules.get(top)
                has_file = isinstance(package, ModuleType) and vars(package).get("__file__")
                tops[top] = top in self.names or (self.holds(package) if has_file else None)
            held = tops[top]
            if self.holds(module) if held is None else held:
                found[name] = module
        return found

    def holds(self, module: object) -> bool:
        """Return whether a module is in the model's folders."""
        return self._is_inside(_place_of(module))

    def _is_inside(self, place: str) -> bool:
        if ".." in place:  # a script was started by such a path
            place = os.path.normpath(place)
        return place.startswith(self._inside)


def model_folders() -> frozenset[str]:
    """Return the entries of `sys.path` that were added for models."""
    return frozenset(_appended)


class _Finder:
    """Finds the modules of the model that this thread loads, before those of other folders."""

    def __init__(self, names: set[str], directories: list[str]) -> None:
        self._names = names
        self.directories = directories
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if threading.get_ident() != self._thread or top not in self._names:
            return None
        spec = PathFinder.find_spec(name, self.directories if path is None else path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _SourceLoader(spec.loader.name, str(spec.loader.path))
        return spec


class _SourceLoader(SourceFileLoader):
    """Compiles the source each time: a bytecode cache misses edits within one second."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _names_in(directories: Sequence[str]) -> set[str]:
    """Return the names of the modules, and of the packages with an ``__init__.py``, in some folders."""
    names: set[str] = set()
    for directory in directories:
        for entry in Path(directory).iterdir() if Path(directory).is_dir() else ():
            name, dot, suffix = entry.name.partition(".")
            if dot + suffix in _SUFFIXES or (entry / "__init__.py").is_file():
                names.add(name)
    return names.difference(_NEVER)


def _is_installed(name: str) -> bool:
    """Return whether a name belongs to the standard library or an installed package."""
    installed = [e for e in sys.path if Path(e).name in ("site-packages", "dist-packages")]
    return name in sys.stdlib_module_names or PathFinder.find_spec(name, installed) is not None


def _place_of(module: object) -> str:
    """Return the file of a module, or the folder of a package without one; empty for others."""
    known = vars(module) if isinstance(module, ModuleType) else {}
    if known.get("__name__") == "__main__":
        return ""
    place = known.get("__file__") or next(iter(known.get("__path__") or ()), "")
    return place if isinstance(place, str) else ""


def _replace(names: Iterable[str], modules: Mapping[str, ModuleType]) -> None:
    """Remove some names from `sys.modules`, then add modules."""
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(modules)
