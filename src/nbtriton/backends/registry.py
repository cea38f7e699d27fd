"""The registry of backends, by the name in a configuration or by a Python object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from nbtriton.backends.base import BACKEND_DIRECTORY, WAY_OUT, Backend
from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError, nearest

__all__ = ["BackendSettings", "backend_for", "find_backend"]

# By the backend's name; those of the empty name are for all.
BackendSettings: TypeAlias = Mapping[str, Mapping[str, str]]

_ONNX = 'export the model to ONNX and use backend: "onnxruntime"'
# Triton's other backends, with alternatives.
_ELSEWHERE = {
    "ensemble": 'an ensemble has platform: "ensemble" and no backend',
    "tensorrt": "a TensorRT plan runs on the GPU it was built for, and only there; load the model it "
    f'was built from: {_ONNX}, or the torch module and backend: "pytorch"',
    "dali": "DALI pipelines do not run here: do the same steps in a model.py with "
    'backend: "python", with Pillow, OpenCV or torchvision',
    "vllm": 'call vllm in a model.py with backend: "python"',
    "tensorrtllm": 'call the library in a model.py with backend: "python"',
}


def find_backend(name: str, settings: BackendSettings = MappingProxyType({})) -> type[Backend]:
    """Return the backend of this name.

    Parameters
    ----------
    name : str
        As in ``backend`` of a configuration: ``"python"``, ``"pytorch"``, ``"onnxruntime"``, or
        the name of an entry point in the group ``nbtriton.backends``, or of a folder with a
        ``model.py`` in the backend directory: a Python-based backend.
    settings : mapping of str to mapping
        By backend; ``backend-directory`` of the empty name is the folder of Python-based backends.

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
        hint=_hint(name),
    )


def _hint(name: str) -> str:
    hint = _ELSEWHERE.get(name) or nearest(name, entries.places("backends"))
    if name == "ensemble" or hint.startswith("did you mean"):
        return hint
    return f"{hint}; {WAY_OUT}"


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
