"""Serialize a model of the notebook for a worker process, with the variables that its code uses.

`pack` makes bytes of a class, a function or an object; `unpack` restores it in another process of the same
Python. Objects of the notebook are serialized by value (cloudpickle), objects of modules by name. The worker
imports these modules from the same places as this process.
"""

from __future__ import annotations

import dis
import functools
import io
import linecache
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any, Final, NamedTuple

from nbtriton.common.errors import UnsupportedError, cell_names

_LOCKS: Final = (
    type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event,
    threading.Semaphore, threading.Barrier,
)  # fmt: skip
# Alive in this process only. An `io.StringIO` or `io.BytesIO` is data.
_LIVE: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    (_LOCKS, "a lock"),
    ((socket.socket,), "a socket"),
    ((threading.Thread,), "a thread"),
    ((io.BufferedIOBase, io.RawIOBase, io.TextIOBase), "an open file"),
    ((GeneratorType,), "a generator"),
    ((TracebackType,), "a traceback"),
)
_IN_MEMORY: Final = (io.BytesIO, io.StringIO)
# By module and name: they are imported only on use.
_LIVE_NAMES: Final[Mapping[tuple[str, str], str]] = {
    ("nbtriton.runtime.engine.server", "Server"): "a server of this process",
    ("nbtriton.runtime.engine.server", "ModelHandle"): "a model of a server of this process",
    ("nbtriton.runtime.engine.core.future", "InferenceFuture"): "a request in flight",
    ("sqlite3", "Connection"): "a connection to a database",
}
_MODEL_HINT: Final = (
    "make it in the model's initialize, or keep the model in a thread: --isolation thread"
)
_SERVER_HINT: Final = (
    "a model calls others by pb_utils.InferenceRequest, in a thread as in a process"
)


def pack(source: object) -> bytes:
    """Return a model as bytes, with the current state of its objects of the notebook.

    Parameters
    ----------
    source : object
        A class, a function, or an object with state, such as a torch module or an estimator.

    Raises
    ------
    UnsupportedError
        Its code uses an object of this process: an open file, a lock, a socket, a thread, memory of a GPU, a
        server. The text names the variable and the line that uses it.
    """
    try:
        data, files = _dumps(source)
    except Exception as error:
        raise _refused(source, error) from None
    parcel = (
        sys.version_info[:2],
        _folder(),
        [*sys.path],
        {name: text for name in sorted(files) if (text := _cell(name))},
        data,
    )
    return pickle.dumps(parcel, protocol=5)


def _folder() -> str:
    """Return the folder of the notebook; empty if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - only a text is needed
    except FileNotFoundError:
        return ""


def unpack(data: bytes) -> Any:
    """Restore packed bytes; modules are imported as in the process that packed them.

    Raises
    ------
    UnsupportedError
        Packed by another minor version of Python, whose code differs.
    """
    version, folder, path, cells, packed = pickle.loads(data)  # noqa: S301 - our own bytes
    if version != sys.version_info[:2]:
        theirs, ours = (".".join(map(str, each)) for each in (version, sys.version_info[:2]))
        raise UnsupportedError(
            f"a model of a cell of Python {theirs} cannot run in Python {ours}",
            hint="write it to a file, as %triton_export does, and load that",
        )
    known = {*sys.path}
    # "" is the folder of the notebook, which may differ from the worker's.
    sys.path += [place for one in path if (place := one or folder) not in known]
    for name, text in cells.items():  # for the source lines of tracebacks
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return pickle.loads(packed)  # noqa: S301 - our own bytes


class _LiveError(Exception):
    """An object that lives in this process only; its arguments are its kind and a hint."""


def _dumps(thing: object) -> tuple[bytes, set[str]]:
    """Pickle objects of the notebook by value; return also the files of their code."""
    buffer = io.BytesIO()
    pickler = _pickler_class()(buffer)
    pickler.dump(thing)
    return buffer.getvalue(), pickler.files


@functools.cache
def _pickler_class() -> Any:
    import cloudpickle  # takes 15 ms to import

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Refuses live objects, and supports `functools.cache` of functions of the notebook."""

        def __init__(self, buffer: io.BytesIO) -> None:
            super().__init__(buffer, protocol=5)
            self.files: set[str] = set()

        def reducer_override(self, obj: Any) -> Any:
            _check_live(obj)
            if isinstance(obj, FunctionType):
                self.files.add(obj.__code__.co_filename)
            elif isinstance(obj, functools._lru_cache_wrapper) and not _has_name(obj):  # noqa: SLF001
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    return Pickler


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """Make an empty `functools.cache`."""
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def _has_name(thing: Any) -> bool:
    """Return True for an object of a module, other than the notebook, under its own name."""
    module = getattr(thing, "__module__", None)
    if module in (None, "__main__"):
        return False
    return getattr(sys.modules.get(module), getattr(thing, "__qualname__", ""), None) is thing


def _check_live(thing: Any) -> None:
    """Raise for an object that lives in this process only."""
    for kinds, words in _LIVE:
        if isinstance(thing, kinds) and not isinstance(thing, _IN_MEMORY):
            raise _LiveError(words, _MODEL_HINT)
    for kind in type(thing).__mro__[:-1]:
        found = _LIVE_NAMES.get((kind.__module__, kind.__qualname__))
        if found is not None:
            raise _LiveError(found, _SERVER_HINT if "server" in found else _MODEL_HINT)
    if _on_gpu(thing):
        raise _LiveError("a tensor in the memory of a GPU", _MODEL_HINT)


def _on_gpu(thing: Any) -> bool:
    library = type(thing).__module__.partition(".")[0]
    if library == "cupy":
        return type(thing).__name__ == "ndarray"
    torch = sys.modules.get("torch") if library == "torch" else None
    return torch is not None and isinstance(thing, torch.Tensor) and thing.device.type != "cpu"


# -- the error for what cannot be serialized ------------------------------------------------------


class _Use(NamedTuple):
    """A variable that code uses; `line` is 0 if unknown."""

    name: str
    value: Any
    file: str
    line: int


def _refused(source: object, error: Exception) -> UnsupportedError:
    found = _find(source, set())
    if found is None:
        name = getattr(source, "__name__", None) or type(source).__name__
        what, place = f"'{name}'", ""
    else:
        use, error = found
        what = f"'{use.name}'"
        place = cell_names(f', used in File "{use.file}", line {use.line}') if use.line else ""
        place = place.replace("File ", "", 1)
    if isinstance(error, _LiveError):
        kind, hint = error.args
        direct = found is None or _is_live(use.value)
        words = f"it is {kind}" if direct else f"it holds {kind}"
    else:
        words, hint = f"{type(error).__name__}: {error}", _MODEL_HINT
    return UnsupportedError(f"{what} cannot go to a worker process: {words}{place}", hint=hint)


def _is_live(value: object) -> bool:
    try:
        _check_live(value)
    except _LiveError:
        return True
    return False


def _find(thing: object, seen: set[int]) -> tuple[_Use, Exception] | None:
    """Return the innermost variable that the code of a class or function uses and that fails, and why."""
    seen.add(id(thing))
    for use in _uses(thing):
        if id(use.value) in seen:
            continue
        try:
            _dumps(use.value)
        except Exception as error:
            inner = _find(use.value, seen) if isinstance(use.value, type | FunctionType) else None
            return inner or (use, error)
    return None


def _uses(thing: object) -> Iterator[_Use]:
    """Yield the variables of the notebook that a class or a function uses."""
    if isinstance(thing, FunctionType):
        yield from _uses_of_function(thing)
    elif isinstance(thing, type):
        for base in thing.__bases__:
            if base.__module__ == thing.__module__:
                yield _Use(base.__name__, base, "", 0)
        for name, value in vars(thing).items():
            member = getattr(value, "__func__", value)
            if isinstance(member, property):
                member = member.fget
            if isinstance(member, FunctionType):
                yield from _uses_of_function(member)
            elif not name.startswith("__"):
                yield _Use(f"{thing.__name__}.{name}", value, "", 0)


def _uses_of_function(function: FunctionType) -> Iterator[_Use]:
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for name, place, line in _loads(code):
        if name in cells:
            with suppress(ValueError):  # not assigned yet
                yield _Use(name, cells[name].cell_contents, place, line)
        elif name in function.__globals__:
            value = function.__globals__[name]
            if not isinstance(value, ModuleType):
                yield _Use(name, value, place, line)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield _Use(
            f"a default of {function.__name__}", value, code.co_filename, code.co_firstlineno
        )


def _loads(code: CodeType) -> Iterator[tuple[str, str, int]]:
    """Yield name, file and line of the outer variables that code reads, inner functions included."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            line = step.positions.lineno if step.positions is not None else None
            yield str(step.argval), code.co_filename, line or code.co_firstlineno
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loads(constant)


def _cell(file: str) -> str:
    """Return the text of a cell; empty for code in a file, or without a text."""
    return "" if Path(file).is_file() else "".join(linecache.getlines(file))
