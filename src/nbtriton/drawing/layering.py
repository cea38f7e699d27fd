"""The layout of graphs: layers from left to right, in as many rows as the width requires.

The layers are Sugiyama's: by longest path, with dummy nodes for edges that cross layers, order by
barycentre sweeps, heights by least squares under the order. It is deterministic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nbtriton.drawing.graph import Edge, Graph, Node, edge_text, in_key, out_key, topological
from nbtriton.drawing.scene import text_width

_MARGIN = 24.0  # with room for the badge on the topmost node
_NODE_GAP = 30.0  # room for the live badge above a node
_DUMMY_GAP = 14.0
_BEND = 46.0  # width of the space in which an edge changes its height
_ROW = 19.0
_SUBLINE = 15.0
_LABEL_SIZE = 11.0
_LANE = 8.0  # between edges that go from one row to the next
_ROW_GAP = 36.0
HEADER = 26.0
CHAIN_ROW = 24.0
# The widest line about traffic.
_TRAFFIC_WIDTH = text_width("100% · 12\u202f300/s · 99\u202f999 failed", 11)


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
    """The path of an edge.

    Attributes
    ----------
    edge : Edge
    steps : tuple of (str, tuple of points)
        ``"M"`` where it begins, ``"H"`` a horizontal piece, ``"C"`` a bend to another height,
        ``"L"`` the corners of the way to the next row.
    """

    edge: Edge
    steps: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """All points of the path."""
        return tuple(point for _, points in self.steps for point in points)


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


@dataclass(slots=True)
class _Row:
    """Layers next to each other: which ones, their left sides, where their labels end, and heights."""

    layers: range
    lefts: list[float]
    zones: list[float]
    right: float
    top: float = 0.0
    bottom: float = 0.0

    def left(self, layer: int) -> float:
        return self.lefts[layer - self.layers.start]

    def zone(self, layer: int) -> float:
        return self.zones[layer - self.layers.start]


def layout(graph: Graph, width: float | None = None, *, top: float = 0.0) -> Layout:
    """Place a graph from left to right: inputs in the first column, outputs in the last.

    Parameters
    ----------
    graph : Graph
    width : float, optional
        Width beyond which a new row begins; by default there is one row. A single wider column
        makes the picture wider.
    top : float, optional
        Room above the graph.

    Raises
    ------
    InvalidArgumentError
        The graph has a cycle.
    """
    items = _items(graph)
    columns, chains = _columns(graph, items)
    _order(columns)
    rows = _rows(graph, items, columns, width)
    lanes = [_lanes(columns, row, following) for row, following in itertools.pairwise(rows)]
    y = _MARGIN + top
    for at, row in enumerate(rows):
        _heights(columns[row.layers.start : row.layers.stop])
        inside = [item for layer in row.layers for item in columns[layer]]
        shift = y - min((item.y for item in inside), default=0.0)
        for item in inside:
            item.y = round(item.y + shift, 2)
        row.top = y
        row.bottom = max((item.y + item.height for item in inside), default=y)
        y = row.bottom + _ROW_GAP + (len(lanes[at]) * _LANE if at < len(lanes) else 0.0)
    place = {layer: row for row in rows for layer in row.layers}
    boxes = {
        key: Box(
            place[item.layer].left(item.layer),
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
        _route(edge, chains[i], items, rows, lanes) for i, edge in enumerate(graph.edges)
    )
    most = max(map(len, lanes), default=0)
    wide = max((row.right for row in rows), default=0.0) + most * _LANE + _MARGIN
    bottom = max((row.bottom for row in rows), default=_MARGIN)
    return Layout(wide, bottom + _MARGIN, boxes, routes, _labels(graph, boxes))


def _rows(
    graph: Graph,
    items: Mapping[str, _Item],
    columns: Sequence[Sequence[_Item]],
    width: float | None,
) -> list[_Row]:
    """Put as many layers into each row as fit; all rows begin at the same left edge."""
    wides, zones = [], []
    for i, column in enumerate(columns):
        wide = max((item.width for item in column), default=0.0)
        for item in column:
            item.width = wide
        labels = [
            text_width(edge_text(edge), _LABEL_SIZE)
            for edge in graph.edges
            if items[edge.source].layer == i and _shows(graph, edge)
        ]
        wides.append(wide)
        zones.append(max(labels) + 16 if labels else 0.0)
    whole = 2 * _MARGIN + sum(wides) + sum(zones[:-1]) + _BEND * (len(columns) - 1)
    limit, channel = math.inf, 0.0
    if width is not None and whole > width:
        crossing = [
            len({(id(one), at) for one in column for _, at, _ in one.after}) for column in columns
        ]
        channel = _LANE * (max(crossing[:-1], default=0) + 1)
        limit = width - _MARGIN - channel
    rows: list[_Row] = []
    start, x = 0, _MARGIN + channel
    lefts: list[float] = []
    ends: list[float] = []
    for i, (wide, zone) in enumerate(zip(wides, zones, strict=True)):
        last = i == len(wides) - 1
        if lefts and x + wide + (0.0 if last else zone) > limit:
            rows.append(_Row(range(start, i), lefts, ends, max(lefts[-1] + wides[i - 1], ends[-1])))
            start, x, lefts, ends = i, _MARGIN + channel, [], []
        lefts.append(x)
        ends.append(x + wide + (0.0 if last else zone))
        x += wide + zone + _BEND
    if lefts:
        rows.append(_Row(range(start, len(wides)), lefts, ends, ends[-1]))
    return rows


def _lanes(
    columns: Sequence[Sequence[_Item]], row: _Row, following: _Row
) -> dict[tuple[int, float], int]:
    """Return a lane for each port whose edges go to the next row, counted from the lowest."""
    ports = [
        (id(item), leaves)
        for item in columns[row.layers.stop - 1]
        for leaves in sorted({leaves for _, leaves, _ in item.after})
    ]
    assert following.layers.start == row.layers.stop
    return {port: at for at, port in enumerate(ports)}


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
    lines = bool(node.sublabel) + (node.traffic is not None)
    head = text_width(node.label, 13, bold=True)
    sub = max(text_width(node.sublabel, 11), _TRAFFIC_WIDTH if node.traffic else 0.0)
    place: Callable[[int, int], float]
    if node.members:
        item.height = HEADER + len(node.members) * CHAIN_ROW + 6
        names = max(text_width(member.label, 12, bold=True) for member in node.members)
        item.width = max(head, names + (_TRAFFIC_WIDTH if _watched(node) else 0.0)) + 34
        place = lambda i, n: item.height * (i + 1) / (n + 1)  # noqa: E731
    elif node.inputs or node.outputs:
        top = HEADER + lines * _SUBLINE + 6
        item.height = top + rows * _ROW + 6
        left = max((text_width(name, 11) for name in node.inputs), default=0.0)
        right = max((text_width(name, 11) for name in node.outputs), default=0.0)
        item.width = max(head, sub, left + right + 26) + 26
        place = lambda i, _: top + (i + 0.5) * _ROW  # noqa: E731
    else:
        below = 14.0 * lines - 6 if lines else 0.0
        item.height = max(32.0 + below, (rows + 1) * _ROW)
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


def _heights(columns: Sequence[Sequence[_Item]]) -> None:
    """Give the items of one row their heights, each as close to its neighbours' as possible."""
    here = {id(item) for column in columns for item in column}
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
                places = [
                    other.y + theirs - mine for other, mine, theirs in near if id(other) in here
                ]
                wishes.append(sum(places) / len(places) if places else item.y)
            _settle(column, wishes)


def _settle(column: Sequence[_Item], wishes: Sequence[float]) -> None:
    """Move items as close to their wishes as the order and the gaps allow (least squares)."""
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
    items: Mapping[str, _Item],
    rows: Sequence[_Row],
    lanes: Sequence[Mapping[tuple[int, float], int]],
) -> Route:
    row_of = {layer: at for at, row in enumerate(rows) for layer in row.layers}
    source, target = items[edge.source], items[edge.target]
    leaves = source.out_ports[out_key(edge)]
    row = rows[row_of[source.layer]]
    y = source.y + leaves
    steps: list[tuple[str, tuple[tuple[float, float], ...]]] = [
        ("M", ((row.left(source.layer) + source.width, y),)),
        ("H", ((row.zone(source.layer), y),)),
    ]
    here = source
    for item in (*chain, target):
        arrives = target.in_ports[in_key(edge)] if item is target else 1.0
        number, row = row_of[here.layer], rows[row_of[item.layer]]
        end = (row.left(item.layer), item.y + arrives)
        if row_of[item.layer] == number:
            steps.append(("C", (end,)))
        else:
            steps.append(("L", _way_down(rows[number], lanes[number], (id(here), leaves), y, end)))
        y, here, leaves = end[1], item, 1.0
        if item is not target:
            steps.append(("H", ((row.zone(item.layer), y),)))
    return Route(edge, tuple(steps))


def _way_down(
    row: _Row,
    lanes: Mapping[tuple[int, float], int],
    port: tuple[int, float],
    y: float,
    end: tuple[float, float],
) -> tuple[tuple[float, float], ...]:
    """Return the corners from the end of one row to the beginning of the next.

    Edges keep apart: the highest at the right end is the outermost there, the lowest in the gap
    between the rows, and the innermost at the left.
    """
    lane, count = lanes[port], len(lanes)
    right = row.right + (count - lane) * _LANE
    middle = row.bottom + 8 + (count - lane) * _LANE
    left = end[0] - (lane + 1) * _LANE - 9
    return (right, y), (right, middle), (left, middle), (left, end[1]), end


def _watched(node: Node) -> bool:
    return any(member.traffic is not None for member in node.members)


def _shows(graph: Graph, edge: Edge) -> bool:
    """Return False if a tensor's name is already written on its input or output."""
    name = edge.label.partition(" ")[0]
    if edge.kind == "call":
        return bool(edge.label)
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
            placed[edge.source, out_key(edge)] = Label(
                box.x + box.width + 8, y - 5, edge_text(edge)
            )
    return tuple(placed.values())
