"""What a person asks to see, by a call: ``nt.watch(server)`` and ``nt.dag(server, "m")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.widgets.dag import DagView, server_graph
from nbtriton.widgets.show import Shown, show_live
from nbtriton.widgets.static import StaticView, dag_view
from nbtriton.widgets.watch import WatchView

if TYPE_CHECKING:
    from nbtriton.engine import Server

__all__ = ["dag", "watch"]


def watch(server: Server, *names: str) -> Shown:
    """Show queues, instances, batch sizes and rates live, while other cells run.

    Parameters
    ----------
    server : Server
    *names : str
        By default all models.

    Returns
    -------
    Shown
        ``finish()`` leaves a picture of the last half minute in its place.
    """
    for name in names:
        server.config(name)  # raises for an unknown one
    return show_live(WatchView(server, names))


def dag(server: Server, name: str, *, live: bool = False) -> StaticView | Shown:
    """Draw the graph of an ensemble: its models and the tensors between them.

    Parameters
    ----------
    server : Server
    name : str
    live : bool
        With the requests that wait and run now, until ``finish()``.
    """
    if live:
        return show_live(DagView.of(server, name))
    return dag_view(server_graph(server, name))
