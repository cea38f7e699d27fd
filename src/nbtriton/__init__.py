"""nbtriton: Triton Inference Server's runtime inside the notebook kernel.

``%load_ext nbtriton`` brings the magics; everything that they do is one call away in Python::

    import nbtriton as nt

    server = nt.server()
    server.load("max_batch_size: 8", model=double, name="double")
    server.infer("double", {"IN": x})["OUT"]

Nothing heavy is imported before it is used: neither torch nor pandas, anywidget, grpc or IPython.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbtriton.api import Server, server
    from nbtriton.engine import InferenceFuture, InferenceResult, ModelHandle
    from nbtriton.engine.status import status
    from nbtriton.errors import ConfigWarning, TritonError
    from nbtriton.magics import load_ipython_extension, unload_ipython_extension
    from nbtriton.perf import Comparison, PerfReport, PerfRun, compare, perf
    from nbtriton.widgets.calls import dag, watch

__version__ = "0.1.0"

# Where each public name lives; it is imported when it is first asked for.
_PUBLIC = {
    "Comparison": "nbtriton.perf",
    "ConfigWarning": "nbtriton.errors",
    "InferenceFuture": "nbtriton.engine",
    "InferenceResult": "nbtriton.engine",
    "ModelHandle": "nbtriton.engine",
    "PerfReport": "nbtriton.perf",
    "PerfRun": "nbtriton.perf",
    "Server": "nbtriton.api",
    "TritonError": "nbtriton.errors",
    "compare": "nbtriton.perf",
    "dag": "nbtriton.widgets.calls",
    "load_ipython_extension": "nbtriton.magics",
    "perf": "nbtriton.perf",
    "server": "nbtriton.api",
    "status": "nbtriton.engine.status",
    "unload_ipython_extension": "nbtriton.magics",
    "watch": "nbtriton.widgets.calls",
}

__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604 - a literal list of strings plus the map's keys


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'nbtriton' has no attribute '{name}'")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
