"""A module's source and weights in files, read as by the Python runtime of Triton's PyTorch backend (PT2)."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

from nbtriton.backends.tracebacks import PRIVATE_PACKAGE
from nbtriton.common.errors import InternalError

__all__ = ["find_source", "module_of"]

_NAMES = ("model.py", "model.pt")
_numbers = itertools.count(1)


def find_source(path: Path) -> Path:
    """Return a file, or the one of a version's directory: ``model.py``, else ``model.pt``.

    Raises
    ------
    InternalError
        Neither exists.
    """
    # A file that the configuration names comes before the others.
    folder = path if path.is_dir() else path.parent
    for file in ([] if path.is_dir() else [path]) + [folder / name for name in _NAMES]:
        if file.is_file():
            return file
    names = [*([] if path.is_dir() else [path.name]), *_NAMES]
    raise InternalError(f"No model found in {folder}/{names}")


def module_of(path: Path) -> Any:
    """Return the module of the class in a ``.py`` file, with the weights of the ``.pt`` file beside it.

    Raises
    ------
    InternalError
        The file has no such class.
    """
    import torch

    spec = importlib.util.spec_from_file_location(f"{PRIVATE_PACKAGE}torch_{next(_numbers)}", path)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    classes = [
        one
        for _, one in sorted(vars(code).items())
        if isinstance(one, type) and issubclass(one, torch.nn.Module)
    ]
    # Before imported ones.
    classes.sort(key=lambda one: one.__module__ != code.__name__)
    if not classes:
        raise InternalError("Cannot find a subclass of torch.nn.Module")
    module = classes[0]()
    weights = path.with_suffix(".pt")
    if weights.is_file():
        module.load_state_dict(torch.load(weights, map_location="cpu"))
    return module
