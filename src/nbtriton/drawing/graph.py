"""Directed acyclic graphs of models and tensors, and their layout.

The layout is Sugiyama's: layers by longest path, dummy nodes for edges that cross layers, order
by barycentre sweeps, heights by least squares under the order. It is deterministic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nbtriton.drawing.scene import text_width
from nbtriton.errors import InvalidArgumentError

__all__ = ["Box", "Edge", "Graph", "Label", "Layout", "Node", "Route", "layout", "topological"]

_MARGIN = 24.0  # with room for the badge on the topmost node
_TITLE = 28.0
_NODE_GAP = 30.0  # room for the live badge above a node
_DUMMY_GAP = 14.0
_BEND = 46.0  # width in which an edge changes its height
_ROW = 19.0
_HEADER = 26.0
_SUBLINE = 15.0
_LABEL_SIZE = 11.0


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
        ``"input"``, ``"model"`` or ``"output"``.
    details : tuple of (str, str)
        More names and values, for a tooltip.
    inputs, outputs : tuple of str
        Names of its tensors, drawn as ports on its left and right side.
    """

    id: str
    label: str
    kind: str = "model"
    sublabel: str = ""
    details: tuple[tuple[str, str], ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor from one node to another: its label is ``NAME DTYPE[SHAPE]``."""

    source: str
    target: str
    label: str = ""
    source_port: str = ""
    target_port: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and the tensors between them."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    title: str = ""

    def node(self, node_id: str) -> Node:
        """Return the node of this id."""
        return next(node for node in self.nodes if node.id == node_id)


@dataclass(frozen=True, slots=True)
class Box:
    """The place of a node; ports are heights from the top of the picture."""

    x: float
    y: float
    width: float
    height: float
    layer: int
    in_ports: Mapping[str, float]
    out_ports: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Route:
    """The path of an edge: points joined by horizontal pieces and bends in turn."""

    edge: Edge
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A tensor's name at the port where it leaves its node."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all parts of a picture of ``width`` by ``height`` pixels."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    routes: tuple[Route, ...]
    labels: tuple[Label, ...]


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


@dataclass(slots=True, eq=False)
class _Item:
    """A node or a dummy in its layer."""

    node: Node | None
    layer: int
    height: float
    width: float = 0.0
    y: float = 0.0
    in_ports: dict[str, float] = field(default_factory=dict)
    out_ports: dict[str, float] = field(default_factory=dict)
    # (other item, own port offset, its port offset)
    before: list[tuple[_Item, float, float]] = field(default_factory=list)
    after: list[tuple[_Item, float, float]] = field(default_factory=list)

    @property
    def gap(self) -> float:
        return _DUMMY_GAP if self.node is None else _NODE_GAP


def out_key(edge: Edge) -> str:
    """Return the name of the port at which an edge leaves its source."""
    return edge.source_port or edge.label


def in_key(edge: Edge) -> str:
    """Return the name of the port at which an edge reaches its target."""
    return edge.target_port or f"{edge.source}\0{out_key(edge)}"


def layout(graph: Graph) -> Layout:
    """Place a graph from left to right: inputs in the first column, outputs in the last.

    Raises
    ------
    InvalidArgumentError
        The graph has a cycle.
    """
    items = _items(graph)
    columns, chains = _columns(graph, items)
    _order(columns)
    lefts, width, zones = _across(graph, items, columns)
    _heights(columns)
    top = min((item.y for column in columns for item in column), default=0.0)
    shift = _MARGIN + (_TITLE if graph.title else 0.0) - top
    bottom = 0.0
    for column in columns:
        for item in column:
            item.y += shift
            bottom = max(bottom, item.y + item.height)
    boxes = {
        key: Box(
            lefts[item.layer],
            item.y,
            item.width,
            item.height,
            item.layer,
            {name: item.y + offset for name, offset in item.in_ports.items()},
            {name: item.y + offset for name, offset in item.out_ports.items()},
        )
        for key, item in items.items()
    }
    routes = tuple(
        _route(edge, chains[i], boxes, lefts, zones) for i, edge in enumerate(graph.edges)
    )
    if graph.title:
        width = max(width, text_width(graph.title, 13, bold=True) + 2 * _MARGIN)
    return Layout(width, bottom + _MARGIN, boxes, routes, _labels(graph, boxes))


def _items(graph: Graph) -> dict[str, _Item]:
    layers: dict[str, int] = {}
    for node in topological(graph):
        before = [layers[edge.source] + 1 for edge in graph.edges if edge.target == node.id]
        layers[node.id] = max(before, default=0)
    last = max(layers.values(), default=0)
    items = {}
    for node in graph.nodes:
        at_end = node.kind == "output" and not any(e.source == node.id for e in graph.edges)
        item = _Item(node, last if at_end else layers[node.id], 0.0)
        _measure(graph, node, item)
        items[node.id] = item
    return items


def _measure(graph: Graph, node: Node, item: _Item) -> None:
    ins = list(
        dict.fromkeys((*node.inputs, *(in_key(e) for e in graph.edges if e.target == node.id)))
    )
    outs = list(
        dict.fromkeys((*node.outputs, *(out_key(e) for e in graph.edges if e.source == node.id)))
    )
    rows = max(len(ins), len(outs))
    head = text_width(node.label, 13, bold=True)
    sub = text_width(node.sublabel, 11)
    if node.inputs or node.outputs:
        top = _HEADER + (_SUBLINE if node.sublabel else 0) + 6
        item.height = top + rows * _ROW + 6
        left = max((text_width(name, 11) for name in node.inputs), default=0.0)
        right = max((text_width(name, 11) for name in node.outputs), default=0.0)
        item.width = max(head, sub, left + right + 26) + 26
        place: Callable[[int, int], float] = lambda i, _: top + (i + 0.5) * _ROW  # noqa: E731
    else:
        item.height = max(40.0 if node.sublabel else 32.0, (rows + 1) * _ROW)
        item.width = max(head, sub) + 34
        place = lambda i, n: item.height * (i + 1) / (n + 1)  # noqa: E731
    item.width = max(item.width, 76.0)
    item.in_ports = {name: place(i, len(ins)) for i, name in enumerate(ins)}
    item.out_ports = {name: place(i, len(outs)) for i, name in enumerate(outs)}


def _columns(
    graph: Graph, items: Mapping[str, _Item]
) -> tuple[list[list[_Item]], list[tuple[_Item, ...]]]:
    """Fill the layers, with one dummy in each layer that a long edge crosses."""
    columns: list[list[_Item]] = [
        [] for _ in range(max((item.layer for item in items.values()), default=-1) + 1)
    ]
    for item in items.values():
        columns[item.layer].append(item)
    chains: list[tuple[_Item, ...]] = []
    for edge in graph.edges:
        source, target = items[edge.source], items[edge.target]
        chain = tuple(_Item(None, at, 2.0) for at in range(source.layer + 1, target.layer))
        for dummy in chain:
            columns[dummy.layer].append(dummy)
        chains.append(chain)
        hops = (source, *chain, target)
        for i, (one, two) in enumerate(itertools.pairwise(hops)):
            leaves = source.out_ports[out_key(edge)] if i == 0 else 1.0
            arrives = target.in_ports[in_key(edge)] if i == len(hops) - 2 else 1.0
            one.after.append((two, leaves, arrives))
            two.before.append((one, arrives, leaves))
    return columns, chains


def _order(columns: list[list[_Item]]) -> None:
    """Sort each layer by the mean place of its neighbours; keep the best of eight sweeps."""
    best, fewest = [list(column) for column in columns], _crossings(columns)
    for sweep in range(8):
        if not fewest:
            break
        forward = sweep % 2 == 0
        for column in columns[1:] if forward else columns[-2::-1]:
            place = {id(item): float(i) for other in columns for i, item in enumerate(other)}
            means = {}
            for item in column:
                near = item.before if forward else item.after
                places = [place[id(other)] + offset / 10_000.0 for other, _, offset in near]
                means[id(item)] = sum(places) / len(places) if places else place[id(item)]
            column.sort(key=lambda item, means=means: means[id(item)])  # type: ignore[misc]
        now = _crossings(columns)
        if now < fewest:
            best, fewest = [list(column) for column in columns], now
    for column, kept in zip(columns, best, strict=True):
        column[:] = kept


def _crossings(columns: Sequence[Sequence[_Item]]) -> int:
    total = 0
    for column, following in itertools.pairwise(columns):
        place = {id(item): i for i, item in enumerate(following)}
        ends = [
            (i + leaves / 10_000.0, place[id(other)] + arrives / 10_000.0)
            for i, item in enumerate(column)
            for other, leaves, arrives in item.after
        ]
        total += sum(
            (a[0] - b[0]) * (a[1] - b[1]) < 0 for k, a in enumerate(ends) for b in ends[k + 1 :]
        )
    return total


def _across(
    graph: Graph, items: Mapping[str, _Item], columns: Sequence[Sequence[_Item]]
) -> tuple[list[float], float, list[float]]:
    """Return the left of each column, the width of all, and where each column's labels end."""
    x = _MARGIN
    lefts, zones = [], []
    for i, column in enumerate(columns):
        wide = max((item.width for item in column), default=0.0)
        labels = [
            text_width(edge.label, _LABEL_SIZE)
            for edge in graph.edges
            if items[edge.source].layer == i and _shows(graph, edge)
        ]
        for item in column:
            item.width = wide
        lefts.append(x)
        x += wide
        if i + 1 < len(columns):
            zone = max(labels) + 16 if labels else 0.0
            zones.append(x + zone)
            x += zone + _BEND
        else:
            zones.append(x)
    return lefts, x + _MARGIN, zones


def _heights(columns: Sequence[Sequence[_Item]]) -> None:
    for column in columns:
        y = 0.0
        for i, item in enumerate(column):
            y += max(column[i - 1].gap, item.gap) if i else 0.0
            item.y = y
            y += item.height
        for item in column:
            item.y -= y / 2
    for sweep in range(16):
        ordered = columns if sweep % 2 == 0 else columns[::-1]
        for column in ordered:
            wishes = []
            for item in column:
                near = item.before if sweep % 2 == 0 else item.after
                if sweep >= 6:
                    near = item.before + item.after
                if not near:
                    near = item.before + item.after
                places = [other.y + theirs - mine for other, mine, theirs in near]
                wishes.append(sum(places) / len(places) if places else item.y)
            _settle(column, wishes)


def _settle(column: Sequence[_Item], wishes: Sequence[float]) -> None:
    """Move items as near to their wishes as the order and the gaps allow (least squares)."""
    offsets, total = [], 0.0
    for i, item in enumerate(column):
        total += max(column[i - 1].gap, item.gap) if i else 0.0
        offsets.append(total)
        total += item.height
    # Pool adjacent violators: (sum of wishes, how many).
    pools: list[tuple[float, int]] = []
    for wish, offset in zip(wishes, offsets, strict=True):
        pools.append((wish - offset, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, size = pools.pop()
            pools[-1] = (pools[-1][0] + total, pools[-1][1] + size)
    i = 0
    for total, size in pools:
        for _ in range(size):
            column[i].y = round(total / size + offsets[i], 2)
            i += 1


def _route(
    edge: Edge,
    chain: Sequence[_Item],
    boxes: Mapping[str, Box],
    lefts: Sequence[float],
    zones: Sequence[float],
) -> Route:
    source, target = boxes[edge.source], boxes[edge.target]
    y = source.out_ports[out_key(edge)]
    points = [(source.x + source.width, y), (zones[source.layer], y)]
    for dummy in chain:
        points += [(lefts[dummy.layer], dummy.y + 1), (zones[dummy.layer], dummy.y + 1)]
    points.append((target.x, target.in_ports[in_key(edge)]))
    return Route(edge, tuple(points))


def _shows(graph: Graph, edge: Edge) -> bool:
    """Return False if a tensor's name is already written on its input or output."""
    name = edge.label.partition(" ")[0]
    source, target = graph.node(edge.source), graph.node(edge.target)
    return bool(name) and not (
        (source.kind == "input" and source.label == name)
        or (target.kind == "output" and target.label == name)
    )


def _labels(graph: Graph, boxes: Mapping[str, Box]) -> tuple[Label, ...]:
    placed = {}
    for edge in graph.edges:
        if _shows(graph, edge):
            box = boxes[edge.source]
            y = box.out_ports[out_key(edge)]
            placed[edge.source, out_key(edge)] = Label(box.x + box.width + 8, y - 5, edge.label)
    return tuple(placed.values())
