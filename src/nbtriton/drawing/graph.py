"""Directed acyclic graphs of models and tensors, and chains that are drawn as one box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.drawing.numbers import byte_size, counted, mean_size

# Up to this many models, each is drawn as a box with its tensors.
_UNFOLDED = 6
# Shorter chains are not worth folding.
_SHORTEST_CHAIN = 3


@dataclass(frozen=True, slots=True)
class Traffic:
    """Totals of the requests to a model.

    Attributes
    ----------
    share : float
        Share of the requests' total time that they waited and computed here, 0 to 1.
    infer_per_s : float
    inferences, executions, failed : int
        Totals since its first load.
    batch_sizes : tuple of (int, int)
        Executions by the number of rows.
    errors : tuple of str
        The latest error messages, newest first.
    running, waiting : int
        Requests in flight now.
    """

    share: float = 0.0
    infer_per_s: float = 0.0
    inferences: int = 0
    executions: int = 0
    failed: int = 0
    batch_sizes: tuple[tuple[int, int], ...] = ()
    errors: tuple[str, ...] = ()
    running: int = 0
    waiting: int = 0

    @property
    def mean_batch(self) -> float:
        """Rows per execution; 0 before the first one."""
        return mean_size(dict(self.batch_sizes))


@dataclass(frozen=True, slots=True)
class Node:
    """A model, or an input or output of the whole.

    Attributes
    ----------
    id : str
        Unique in the graph.
    label, sublabel : str
        Its texts.
    kind : str
        ``"input"``, ``"model"``, ``"output"``, ``"called"`` (a model that another one was seen to
        call), or ``"chain"`` (made by `folded`).
    details : tuple of (str, str)
        More names and values, for a tooltip.
    inputs, outputs : tuple of str
        Names of its tensors, drawn as ports on its left and right side.
    group : str
        The nested ensemble that it belongs to.
    traffic : Traffic or None
        None if it is not watched.
    members : tuple of Node
        Of a chain, in its order.
    """

    id: str
    label: str
    kind: str = "model"
    sublabel: str = ""
    details: tuple[tuple[str, str], ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    group: str = ""
    traffic: Traffic | None = None
    members: tuple[Node, ...] = ()

    @property
    def is_model(self) -> bool:
        """True for a node that executes."""
        return self.kind in ("model", "called")


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor from one node to another: its label is ``NAME DTYPE[SHAPE]``.

    Attributes
    ----------
    kind : str
        ``"tensor"``, or ``"call"`` from a model to one that it was seen to call.
    row_bytes : float or None
        Size of the tensor for one row of a batch; None if it varies.
    bytes_per_s : float or None
    calls : int
        How often the call was observed.
    """

    source: str
    target: str
    label: str = ""
    source_port: str = ""
    target_port: str = ""
    kind: str = "tensor"
    row_bytes: float | None = None
    bytes_per_s: float | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and the tensors between them; `finding` is a sentence about its traffic."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    title: str = ""
    finding: str = ""

    def node(self, node_id: str) -> Node:
        """Return the node of this id."""
        return next(node for node in self.nodes if node.id == node_id)


def topological(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes so that every edge goes forward, otherwise in the order given.

    Raises
    ------
    InvalidArgumentError
        The graph has a cycle, or an edge ends at no node.
    """
    known = {node.id for node in graph.nodes}
    for edge in graph.edges:
        for end in (edge.source, edge.target):
            if end not in known:
                raise InvalidArgumentError(f"edge '{edge.label}' ends at unknown node '{end}'")
    waiting = {
        node.id: {e.source for e in graph.edges if e.target == node.id} for node in graph.nodes
    }
    done: list[Node] = []
    left = list(graph.nodes)
    while left:
        ready = next((node for node in left if not waiting[node.id]), None)
        if ready is None:
            names = ", ".join(f"'{node.label}'" for node in left)
            raise InvalidArgumentError(f"the graph has a cycle through {names}")
        left.remove(ready)
        done.append(ready)
        for sources in waiting.values():
            sources.discard(ready.id)
    return tuple(done)


def edge_text(edge: Edge) -> str:
    """Return the text at an edge: its label, and the size of a row if it is known."""
    if edge.kind == "call" and edge.calls:
        return counted(edge.calls, "call")
    return f"{edge.label} · {byte_size(edge.row_bytes)}" if edge.row_bytes else edge.label


def out_key(edge: Edge) -> str:
    """Return the name of the port at which an edge leaves its source."""
    return edge.source_port or edge.label


def in_key(edge: Edge) -> str:
    """Return the name of the port at which an edge reaches its target."""
    return edge.target_port or f"{edge.source}\0{out_key(edge)}"


def folded(graph: Graph) -> Graph:
    """Return the graph with its chains of models as one node each, if it has many models.

    In a chain each model gets all its inputs from the previous model, and passes all its outputs to
    the next.
    """
    if sum(node.is_model for node in graph.nodes) <= _UNFOLDED:
        return graph
    following = {
        node.id: {e.target for e in graph.edges if e.source == node.id} for node in graph.nodes
    }
    before = {
        node.id: {e.source for e in graph.edges if e.target == node.id} for node in graph.nodes
    }
    nodes = {node.id: node for node in graph.nodes}

    def joins(one: str, other: str) -> bool:
        same = nodes[one].group == nodes[other].group
        models = nodes[one].kind == nodes[other].kind == "model"
        return models and same and following[one] == {other} and before[other] == {one}

    home: dict[str, Node] = {}
    for node in topological(graph):
        if node.id in home:
            continue
        chain = [node.id]
        while (
            (after := following[chain[-1]])
            and len(after) == 1
            and joins(chain[-1], next(iter(after)))
        ):
            chain.append(next(iter(after)))
        if len(chain) < _SHORTEST_CHAIN:
            continue
        members = tuple(nodes[one] for one in chain)
        folded_node = Node(
            f"chain:{chain[0]}", f"{len(chain)} steps, one after the other", "chain",
            group=node.group, members=members,
        )  # fmt: skip
        home |= dict.fromkeys(chain, folded_node)
    kept: dict[str, Node] = {}
    for node in graph.nodes:
        here = home.get(node.id, node)
        kept[here.id] = here
    edges = tuple(
        _moved(edge, home) for edge in graph.edges
        if edge.source not in home or home.get(edge.source) is not home.get(edge.target)
    )  # fmt: skip
    return replace(graph, nodes=tuple(kept.values()), edges=edges)


def _moved(edge: Edge, home: Mapping[str, Node]) -> Edge:
    """Return an edge that ends at the chains, which have no ports."""
    source, target = home.get(edge.source), home.get(edge.target)
    if source is not None:
        edge = replace(edge, source=source.id, source_port="")
    if target is not None:
        edge = replace(edge, target=target.id, target_port="")
    return edge
