"""nbtriton: Triton Inference Server's runtime inside the notebook kernel.

``%load_ext nbtriton`` brings the magics; everything that they do is one call away in Python::

    import nbtriton as nt

    server = nt.server()
    server.load("max_batch_size: 8", model=double, name="double")
    server.infer("double", {"IN": x})["OUT"]

===========================================  ===================================================
`server`, `Server`                           the server that the magics use, and one of your own
`perf`, `compare`                            measure: load, latency, throughput
`profile`, `whatif`, `tune`                  predict, and find the best configuration
`why`, `doctor`                              the reasons behind batches and delays; what is wrong
`watch`, `dag`, `timeline`, `status`         what a server does, as views
`lessons`, `step`, `record`, `replay`, …     what extensions add
`errors`, `types`                            what calls raise, and what they return
===========================================  ===================================================

Nothing heavy is imported before it is used: neither torch nor pandas, anywidget, grpc or IPython.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbtriton.common import __version__ as __version__
from nbtriton.common import entries

if TYPE_CHECKING:
    from nbtriton import errors as errors
    from nbtriton import types as types
    from nbtriton.common.errors import TritonError as TritonError
    from nbtriton.extensions import lessons as lessons
    from nbtriton.extensions.autoscale import autoscale as autoscale
    from nbtriton.extensions.capacity import capacity as capacity
    from nbtriton.extensions.chaos import chaos as chaos
    from nbtriton.extensions.comparison import compare as compare
    from nbtriton.extensions.copies import copies as copies
    from nbtriton.extensions.doctor import doctor as doctor
    from nbtriton.extensions.environments import environment as environment
    from nbtriton.extensions.recordings import record as record
    from nbtriton.extensions.recordings import replay as replay
    from nbtriton.extensions.remote import remote as remote
    from nbtriton.extensions.show.view import show as show
    from nbtriton.extensions.steps import step as step
    from nbtriton.extensions.tuning import tune as tune
    from nbtriton.extensions.twin import twin as twin
    from nbtriton.lab.explain.explanation import why as why
    from nbtriton.lab.perf.api import perf as perf
    from nbtriton.lab.simulate.prediction import whatif as whatif
    from nbtriton.lab.simulate.profiling import profile as profile
    from nbtriton.magics import load_ipython_extension as load_ipython_extension
    from nbtriton.magics import unload_ipython_extension as unload_ipython_extension
    from nbtriton.runtime.engine.events import events as events
    from nbtriton.runtime.engine.status import status as status
    from nbtriton.serving.clients.shared_memory import SharedMemoryPool as SharedMemoryPool
    from nbtriton.serving.server import Server as Server
    from nbtriton.serving.server import server as server
    from nbtriton.widgets.calls import dag as dag
    from nbtriton.widgets.calls import timeline as timeline
    from nbtriton.widgets.calls import watch as watch
    from nbtriton.widgets.plots import plot as plot

    # Whether the core that runs is compiled.
    compiled: bool

# Where each public name lives; it is imported when it is first asked for.
_PUBLIC = {
    "Server": "nbtriton.serving.server",
    "SharedMemoryPool": "nbtriton.serving.clients.shared_memory",
    "TritonError": "nbtriton.common.errors",
    "dag": "nbtriton.widgets.calls",
    "events": "nbtriton.runtime.engine.events",
    "load_ipython_extension": "nbtriton.magics",
    "perf": "nbtriton.lab.perf.api",
    "plot": "nbtriton.widgets.plots",
    "profile": "nbtriton.lab.simulate.profiling",
    "server": "nbtriton.serving.server",
    "status": "nbtriton.runtime.engine.status",
    "timeline": "nbtriton.widgets.calls",
    "unload_ipython_extension": "nbtriton.magics",
    "watch": "nbtriton.widgets.calls",
    "whatif": "nbtriton.lab.simulate.prediction",
    "why": "nbtriton.lab.explain.explanation",
}

__all__ = [  # noqa: PLE0604 - strings
    *(name for name in _PUBLIC if not name.endswith("_extension")), *entries.own_places("views"), "errors", "types",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "compiled":
        from nbtriton.common.packages import core_is_compiled

        return core_is_compiled()
    if name in {"errors", "types"}:
        return importlib.import_module(f"nbtriton.{name}")
    module = _PUBLIC.get(name)
    if module is not None:
        return getattr(importlib.import_module(module), name)
    view = None if name.startswith("_") else entries.place_of("views", name)
    if view is None:
        raise AttributeError(f"module 'nbtriton' has no attribute '{name}'")
    return entries.load(view)


def __dir__() -> list[str]:
    return sorted(__all__)
