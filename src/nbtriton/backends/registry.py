"""The registry of backends, by the name in a configuration or by a Python object.

A configuration may also name the library of its backend (``runtime``), which is looked up as in Triton.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from nbtriton.backends.base import BACKEND_DIRECTORY, WAY_OUT, Backend
from nbtriton.common import entries
from nbtriton.common.errors import (
    ConfigError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    nearest,
)
from nbtriton.common.foreign import CPP_BACKEND, FOREIGN_BACKENDS, cpp_backend_in

if TYPE_CHECKING:
    from nbtriton.model.config import ModelConfig


# Triton's default of --backend-directory.
_BACKENDS = "/opt/tritonserver/backends"
_IN_PYTHON = "model.py"


def check_runtime(
    config: ModelConfig, backend: type[Backend], source: object, settings: BackendSettings
) -> None:
    """Check that the library named in a configuration exists, if it names one.

    Triton looks for it in the version's directory, the model's, and the backend's.

    Raises
    ------
    ConfigError
        It does not exist, with Triton's text.
    NotFoundError
        It is the model's own, which cannot be loaded here.
    """
    name = str(config.runtime)
    if not name:
        return
    home = Path(settings.get("", {}).get(BACKEND_DIRECTORY, _BACKENDS), backend.name)
    allowed = backend.runtimes()
    hint = "remove runtime, or name " + " or ".join(allowed)
    if name == _IN_PYTHON and name not in allowed:
        raise ConfigError(
            f"unable to find Python backend based backend library '{name}' for model "
            f"'{config.name}', searched: '{home / name}'",
            field="runtime",
            hint=hint,
        )
    if name == _IN_PYTHON:
        return
    searched = _directories(source)
    for folder in searched:
        _refuse_own(f"{folder}/{name}", folder, name, str(config.name), hint)
    path = os.path.normpath(f"{home}/{name}")
    if not any(path == str(home / library) for library in allowed):
        places = "".join(f"'{folder}' " for folder in (*searched, home))
        raise ConfigError(
            f"unable to find backend library '{name}' for model '{config.name}', searched: {places}",
            field="runtime",
            hint=hint,
        )


def _directories(source: object) -> tuple[Path, ...]:
    if not isinstance(source, Path):
        return ()
    version = source if source.is_dir() else source.parent
    return (version, version.parent) if version.name.isdigit() else (version,)


def _refuse_own(path: str, folder: Path, name: str, model: str, hint: str) -> None:
    """Refuse a library in the version's or the model's directory."""
    if not Path(path).exists():
        return
    if not os.path.realpath(path).startswith(os.path.realpath(folder)):
        raise ConfigError(
            f"backend library name '{name}' escapes backend directory '{folder}', for model "
            f"'{model}', check model config runtime field",
            field="runtime",
            hint=hint,
        )
    if Path(path).is_dir():
        reason = "cannot read file data: Is a directory"
    else:
        reason, hint = "C++ libraries cannot be loaded here", str(CPP_BACKEND)
    raise NotFoundError(f"unable to load shared library: {path}: {reason}", hint=hint)


# By the backend's name; those of the empty name are for all.
BackendSettings: TypeAlias = Mapping[str, Mapping[str, str]]


def find_backend(
    name: str, settings: BackendSettings = MappingProxyType({}), source: object = None
) -> type[Backend]:
    """Return the backend of this name.

    Parameters
    ----------
    name : str
        As in ``backend`` of a configuration: ``"python"``, ``"pytorch"``, ``"onnxruntime"``, or
        the name of an entry point in the group ``nbtriton.backends``, or of a folder with a
        ``model.py`` in the backend directory: a Python-based backend.
    settings : mapping of str to mapping
        By backend; ``backend-directory`` of the empty name is the folder of Python-based backends.
    source : object, optional
        The model's source, for advice about what lies beside it.

    Raises
    ------
    InvalidArgumentError
        It does not exist (V36), with the nearest name.
    UnsupportedError
        It exists and cannot be imported.

    Examples
    --------
    >>> find_backend("onnxruntime").__name__
    'OnnxRuntimeBackend'
    """
    place = entries.place_of("backends", name)
    if place is not None:
        return _load(name, place)
    code = Path(settings.get("", {}).get(BACKEND_DIRECTORY, ""), name, "model.py")
    if BACKEND_DIRECTORY in settings.get("", {}) and code.is_file():
        python: Any = find_backend("python")
        based: type[Backend] = python.based_on(name, code)
        return based
    raise InvalidArgumentError(
        f"unable to find backend library for backend '{name}', try specifying runtime on the "
        "model configuration.",
        hint=_hint(name, source),
    )


def _hint(name: str, source: object) -> str:
    if name == "ensemble":
        return 'an ensemble has platform: "ensemble" and no backend'
    if name in FOREIGN_BACKENDS:
        hint = str(FOREIGN_BACKENDS[name])
    elif cpp_backend_in(_directories(source)):
        hint = str(CPP_BACKEND)
    else:
        hint = nearest(name, entries.places("backends"))
    return hint if hint.startswith("did you mean") else f"{hint}; {WAY_OUT}"


def backend_for(source: object) -> type[Backend]:
    """Return the backend that runs a source.

    Parameters
    ----------
    source : object
        A class, an ``nn.Module``, a function or a path, as in `ModelContext`.

    Raises
    ------
    InvalidArgumentError
        No backend does.

    Examples
    --------
    >>> backend_for(lambda IN: IN).__name__
    'PythonBackend'
    """
    for _, backend in entries.working("backends"):
        if backend.accepts(source):
            found: type[Backend] = backend
            return found
    what = source.__name__ if isinstance(source, type) else type(source).__name__
    raise InvalidArgumentError(
        f"no backend runs {source!r}" if len(repr(source)) < 80 else f"no backend runs a {what}",
        hint="give a class with an execute method, a torch.nn.Module, a function with annotated "
        "tensors, or a path to model.py, model.pt or model.onnx",
    )


def _load(name: str, place: str) -> type[Backend]:
    try:
        backend: type[Backend] = entries.load(place)
    except ImportError as error:
        raise UnsupportedError(
            f"backend '{name}' cannot be imported: {error}",
            hint=f"install what {place.partition(':')[0]} needs",
        ) from error
    return backend
