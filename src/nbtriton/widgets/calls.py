"""Calls that show a view: ``nt.watch(server)``, ``nt.dag(server, "m")``, ``nt.timeline``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.checks import NAME, SERVER, check
from nbtriton.lab.explain.timeline import read_timeline
from nbtriton.widgets.dag import DagView, server_graph
from nbtriton.widgets.graphs import with_traffic
from nbtriton.widgets.show import Shown, show_live
from nbtriton.widgets.static import StaticView, dag_view
from nbtriton.widgets.timeline import TimelineView, live_timeline, timeline_view
from nbtriton.widgets.watch import WatchView

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server


def watch(server: Server, *models: str) -> Shown:
    """Show queues, instances, batch sizes and rates live, while other cells run.

    Parameters
    ----------
    server : Server
    *models : str
        By default all models.

    Returns
    -------
    Shown
        The view rests 10 s after the last request and resumes with the next one; ``stop()``
        replaces it with a picture of the last half minute.

    Examples
    --------
    >>> view = nt.watch(server, "double")
    >>> view.stop()
    """
    check({"server": server}, {"server": SERVER})
    for model in models:
        check({"model": model}, {"model": NAME})
        server.config(model)  # raises for an unknown one
    return show_live(WatchView(server, models))


def dag(server: Server, model: str, *, live: bool = False) -> StaticView | Shown:
    """Draw the graph of a model or an ensemble: its steps, its tensors, and where the time goes.

    Each box is filled in proportion to its share of the requests' time, the width of a tensor's
    line shows its bytes, and recorded calls between models (BLS) are dashed. The sentence above
    names the bottleneck. Each model can be opened below: configuration, batch sizes, recent errors.

    Parameters
    ----------
    server : Server
    model : str
    live : bool
        Show the requests that are waiting and running now, until ``stop()``; click on a model, or
        press Enter on it, for its details.

    Examples
    --------
    >>> graph = nt.dag(server, "double")
    >>> print("double" in graph._repr_mimebundle_()["text/plain"])
    True
    """
    check({"server": server, "model": model}, {"server": SERVER, "model": NAME})
    if live:
        return show_live(DagView.of(server, model))
    return dag_view(with_traffic(server, model, server_graph(server, model), whole=True))


def timeline(
    server: Server, model: str, *, span_ms: float | None = None, live: bool = False
) -> TimelineView | Shown:
    """Draw the requests and batches of a model over time, each batch with the reason why it left.

    On a page it can be zoomed and moved with the mouse and the keyboard, and shows the times of
    each request; in a saved file and elsewhere it is a picture.

    Parameters
    ----------
    server : Server
    model : str
        A model, or an ensemble with the models of its steps; also an unloaded one, while the
        recorder remembers it.
    span_ms : float, optional
        How far back; by default as far as the newest 40 batches reach.
    live : bool
        Follow new requests until ``stop()``; the view rests 10 s after the last one.

    Returns
    -------
    TimelineView or Shown
        The former's ``save("trace.json")`` writes all that is recorded as a trace that Perfetto
        (https://ui.perfetto.dev) and ``chrome://tracing`` open.

    Examples
    --------
    >>> _ = server.infer("double", {"IN": ones})
    >>> nt.timeline(server, "double")  # doctest: +ELLIPSIS
    double: 1 batch with 1 row within ...
    """
    if live:
        return show_live(live_timeline(server, model, span_ms=span_ms))
    return timeline_view(read_timeline(server, model, span_ms), server)
