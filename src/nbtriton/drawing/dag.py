"""A graph of models as an SVG picture and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nbtriton.drawing.graph import Edge, Graph, Node, Traffic, folded, topological
from nbtriton.drawing.layering import CHAIN_ROW, HEADER, Box, Layout, Route, layout
from nbtriton.drawing.numbers import byte_size, count, counted, measure
from nbtriton.drawing.scene import (
    TEXT,
    TITLE,
    Area,
    Shape,
    figure,
    ink,
    overlap,
    rect,
    shape,
    stroke,
    text,
    text_width,
    wrapped,
)

_TITLE = 28.0
_LINE = 18.0
# Narrower ones have no room for a sentence.
_NARROWEST = 360.0
_THINNEST, _THICKEST = 1.5, 5.0


def dag_scene(graph: Graph, width: float | None = None) -> Shape:
    """Return the picture of a graph as shapes; each node is a group with ``data-node``.

    Its text size does not depend on the page.

    Parameters
    ----------
    graph : Graph
    width : float, optional
        Of the page in pixels: a wider graph continues in another row.
    """
    drawn = folded(graph)
    plan = _plan(drawn, width)
    parts: list[Shape] = []
    y = 29.0
    if graph.title:
        parts.append(text(24, y, graph.title, TITLE, "fg", bold=True))
        y += _LINE
    for line in _finding_lines(graph, plan.width):
        parts.append(text(24, y, line, TITLE, "fg", bold=True))
        y += _LINE
    parts.extend(_groups(drawn, plan))
    most = max((edge.bytes_per_s or 0.0 for edge in graph.edges), default=0.0)
    parts.extend(_edge(at, route, most) for at, route in enumerate(plan.routes))
    for label in plan.labels:
        name, _, rest = label.text.partition(" ")
        words = [shape("tspan", name, **ink("fg"))]
        if rest:
            words.append(shape("tspan", f" {rest}", **ink("muted")))
        parts.append(shape("text", *words, x=label.x, y=label.y, font_size=11))
    # In topological order, which is also the keyboard's.
    parts.extend(
        _chain(node, plan.boxes[node.id]) if node.members else _node(node, plan.boxes[node.id])
        for node in topological(drawn)
    )
    models = [node.label for node in graph.nodes if node.is_model]
    title = graph.title or "pipeline"
    said = f"Graph of {title}: {_sentence(graph)}"
    high = plan.height
    if any(node.traffic is not None and node.traffic.share for node in graph.nodes):
        parts.append(text(24, high - 2, "filled: share of the requests' time", 11, "muted"))
        high += 10
    return figure(
        max(plan.width, _NARROWEST if graph.finding else 0.0),
        high,
        *parts,
        label=f"{said}. {graph.finding}" if graph.finding else said,
        title=f"{title}: {counted(len(models), 'model')}",
        cls="nbt-dag-svg",
    )


def _plan(graph: Graph, width: float | None) -> Layout:
    """Return the layout below the title and the finding, with shorter labels on narrow pages."""
    found = _place(graph, width)
    if width is not None and (found.width > width or found.height > _place(graph, None).height):
        names = tuple(
            replace(edge, label=edge.label.partition(" ")[0], row_bytes=None)
            for edge in graph.edges
        )
        shorter = _place(replace(graph, edges=names), width)
        if shorter.width < found.width or shorter.height < found.height:
            found = shorter
    wide = text_width(graph.title, TITLE, bold=True) + 48 if graph.title else 0.0
    return replace(found, width=max(found.width, wide))


def _place(graph: Graph, width: float | None) -> Layout:
    top = _TITLE if graph.title else 0.0
    plan = layout(graph, width, top=top)
    lines = _finding_lines(graph, plan.width)
    return layout(graph, width, top=top + len(lines) * _LINE) if lines else plan


def _finding_lines(graph: Graph, width: float) -> list[str]:
    return wrapped(graph.finding, max(width, _NARROWEST) - 48, TITLE) if graph.finding else []


def traffic_line(traffic: Traffic) -> str:
    """Write a model's traffic in a few words: ``62% · 412/s · batch 3.2``.

    Failures replace the batches, and requests in flight are named if nothing comes out.
    """
    inside = []
    if traffic.running:
        inside.append(f"{count(traffic.running)} running")
    if traffic.waiting:
        inside.append(f"{count(traffic.waiting)} waiting")
    if inside and not traffic.infer_per_s:
        return " · ".join(inside)
    if not traffic.inferences and not traffic.share and not traffic.failed:
        return "idle"
    # Without a share the requests were not of what is drawn, or did not wait for it.
    words = [f"{traffic.share:.0%}"] if traffic.share else []
    if traffic.infer_per_s:
        words.append(f"{measure(traffic.infer_per_s)}/s")
    if traffic.failed:
        words.append(f"{count(traffic.failed)} failed")
    elif traffic.executions:
        words.append(f"batch {measure(traffic.mean_batch, 2)}")
    return " · ".join(words)


def edge_width(bytes_per_s: float | None, most: float) -> float:
    """Return the width of an edge: its bytes relative to the largest edge's."""
    if not bytes_per_s or not most:
        return _THINNEST
    return _THINNEST + (_THICKEST - _THINNEST) * math.sqrt(min(1.0, bytes_per_s / most))


def dag_text(graph: Graph) -> str:
    """Write a graph as a tree; a node with several inputs is below the last of them."""
    order = {node.id: i for i, node in enumerate(topological(graph))}
    written: set[str] = set()
    nodes = {node.id: node for node in graph.nodes}
    # The edge under which a node is written in full.
    main_edge = {}
    for edge in sorted(graph.edges, key=lambda e: order[e.source]):
        main_edge[edge.target] = edge
    lines = [line for line in (graph.title, graph.finding) if line]

    def branch(node: Node, first: str, rest: str) -> Iterator[tuple[Node, str, str]]:
        """Write a node; yield the nodes below it, each of which is written before the next."""
        lines.append(first + _caption(node))
        written.add(node.id)
        edges = [edge for edge in graph.edges if edge.source == node.id]
        alone = len(edges) == 1
        for i, edge in enumerate(edges):
            last = i == len(edges) - 1
            target = nodes[edge.target]
            main = main_edge[edge.target] is edge
            # A chain stays at its depth: thirty steps do not fit beside each other.
            deep = not (alone and main and node.is_model and target.is_model)
            lead = rest + ("└─" if last else "├─") + _arrow(edge, node, target)
            if not deep:
                lead = f"{rest}↓{_arrow(edge, node, target)}"
            if main:
                below = ("   " if last else "│  ") if deep else ""
                yield target, lead, rest + below
            else:
                place = "above" if target.id in written else "below"
                lines.append(f"{lead}{target.label}  ({place})")

    for node in graph.nodes:
        if node.id not in main_edge:
            open_branches = [branch(node, "", "")]
            while open_branches:  # a chain may be longer than Python's stack
                below = next(open_branches[-1], None)
                if below is None:
                    open_branches.pop()
                else:
                    open_branches.append(branch(*below))
    return "\n".join(lines)


def _arrow(edge: Edge, source: Node, target: Node) -> str:
    if edge.kind == "call":
        return f"╌ {counted(edge.calls, 'call')} ╌▶ "
    name = edge.label.partition(" ")[0]
    shown = edge.label and name not in (source.label, target.label)
    return f" {edge.label} ─▶ " if shown else "─▶ "


def _caption(node: Node) -> str:
    ports = ""
    if node.kind == "model" and not node.sublabel and node.inputs:
        ports = f"({', '.join(node.inputs)}) -> {', '.join(node.outputs)}"
    group = f"in {node.group}" if node.group else ""
    traffic = f"[{traffic_line(node.traffic)}]" if node.traffic else ""
    return "  ".join(part for part in (node.label, node.sublabel, group, ports, traffic) if part)


def _sentence(graph: Graph) -> str:
    """Return the edges in words, for screen readers."""
    nodes = {node.id: node.label for node in graph.nodes}
    sentences = []
    for node in topological(graph):
        for kind, verb in (("tensor", "feeds"), ("call", "calls")):
            to = dict.fromkeys(
                nodes[edge.target]
                for edge in graph.edges
                if edge.source == node.id and edge.kind == kind
            )
            if to:
                sentences.append(f"{node.label} {verb} {' and '.join(to)}")
    if not sentences:
        sentences = [node.label for node in graph.nodes]
    return "; ".join(sentences)


def _groups(graph: Graph, plan: Layout) -> list[Shape]:
    """Frame the steps of nested ensembles: one frame per row, or one per step if other steps come between."""
    parts: list[Shape] = []
    for name in dict.fromkeys(node.group for node in graph.nodes if node.group):
        inside = [plan.boxes[node.id] for node in graph.nodes if node.group == name]
        others = [plan.boxes[node.id] for node in graph.nodes if node.group != name]
        rows: list[list[Box]] = []
        for box in sorted(inside, key=lambda box: box.layer):
            beside = (rows and rows[-1][-1].x < box.x) or (rows and rows[-1][-1].layer == box.layer)
            if beside and not any(
                overlap(_around([*rows[-1], box]), _around([o], 0)) for o in others
            ):
                rows[-1].append(box)
            else:
                rows.append([box])
        for boxes in rows:
            x, y, right, low = _around(boxes)
            frame = ink(None, "s3", "nbt-group")
            wide, high = right - x, low - y
            parts.append(
                rect(x, y, wide, high, rx=10, stroke_width=1.2, stroke_dasharray="5 4", **frame)
            )
            parts.append(text(x + 8, y - 3, f"{name} (ensemble)", 11, "t3"))
    return parts


def _around(boxes: Sequence[Box], room: float = 5.0) -> Area:
    return (
        min(box.x for box in boxes) - room, min(box.y for box in boxes) - room,
        max(box.x + box.width for box in boxes) + room,
        max(box.y + box.height for box in boxes) + room,
    )  # fmt: skip


def _edge(number: int, route: Route, most: float) -> Shape:
    steps: list[str] = []
    x = y = 0.0
    last = len(route.steps) - 1
    for at, (letter, points) in enumerate(route.steps):
        to_x, to_y = points[-1]
        end = to_x - (9 if at == last else 0)
        if letter == "M":
            steps.append(f"M{to_x:.1f} {to_y:.1f}")
        elif letter == "H":
            steps.append(f"H{to_x:.1f}")
        elif letter == "C":
            bend = (end - x) / 2
            steps.append(
                f"C{x + bend:.1f} {y:.1f} {end - bend:.1f} {to_y:.1f} {end:.1f} {to_y:.1f}"
            )
        else:
            steps.append(_rounded(((x, y), *points[:-1], (end, to_y))))
        x, y = to_x, to_y
    edge = route.edge
    call = edge.kind == "call"
    wide = _THINNEST if call else edge_width(edge.bytes_per_s, most)
    role, dash = ("s1", "6 4") if call else ("muted", None)
    return shape(
        "g",
        shape("title", _edge_tooltip(edge)),
        stroke(" ".join(steps), role, stroke_width=round(wide, 2), stroke_dasharray=dash),
        shape("path", d=f"M{x - 3.5:.1f} {y:.1f}l-8 -4.5v9z", **ink(role)),
        class_="nbt-edge nbt-call" if call else "nbt-edge",
        data_edge=number,
        data_source=edge.source,
        data_target=edge.target,
    )  # fmt: skip


def _rounded(corners: Sequence[tuple[float, float]], radius: float = 6.0) -> str:
    """Join points by straight lines with rounded corners."""
    steps = []
    for (x0, y0), (x1, y1), (x2, y2) in zip(corners, corners[1:], corners[2:], strict=False):
        first, then = math.hypot(x1 - x0, y1 - y0), math.hypot(x2 - x1, y2 - y1)
        r = min(radius, first / 2, then / 2)
        if not r:
            continue
        ax, ay = x1 - (x1 - x0) / first * r, y1 - (y1 - y0) / first * r
        bx, by = x1 + (x2 - x1) / then * r, y1 + (y2 - y1) / then * r
        steps.append(f"L{ax:.1f} {ay:.1f}Q{x1:.1f} {y1:.1f} {bx:.1f} {by:.1f}")
    x, y = corners[-1]
    return "".join(steps) + f"L{x:.1f} {y:.1f}"


def _edge_tooltip(edge: Edge) -> str:
    if edge.kind == "call":
        return f"{counted(edge.calls, 'call')} seen"
    words = [edge.label]
    if edge.row_bytes:
        words.append(f"{byte_size(edge.row_bytes)} a row")
    if edge.bytes_per_s:
        words.append(f"{byte_size(edge.bytes_per_s)}/s")
    return ", ".join(words)


def _node(node: Node, box: Box) -> Shape:
    parts = [shape("title", _tooltip(node))]
    middle = box.x + box.width / 2
    if node.is_model:
        parts += _frame(
            box.x, box.y, box.width, box.height, node.traffic, called=node.kind == "called"
        )
        if node.inputs or node.outputs:
            parts += _model(node, box)
        else:
            parts += _centred(node, box, middle)
    else:
        accent = "s0" if node.kind == "input" else "s2"
        parts.append(_rect(box.x, box.y, box.width, box.height, box.height / 2, "panel", accent))
        parts += _centred(node, box, middle)
    return shape("g", *parts, class_=f"nbt-node nbt-{node.kind}", data_node=node.id)


def _frame(
    x: float,
    y: float,
    width: float,
    height: float,
    traffic: Traffic | None,
    *,
    called: bool = False,
    radius: float = 6.0,
) -> list[Shape]:
    """Return the box of a model, filled from the left by its share of the time."""
    # The frame comes last, so that the filling does not cover it.
    parts = [rect(x, y, width, height, rx=radius, **ink("panel"))]
    if traffic is not None:
        filled = width * min(1.0, max(0.0, traffic.share))
        rx, share = min(radius, filled / 2), ink("s4", None, "nbt-share")
        parts.append(rect(x, y, round(filled, 1), height, rx=rx, opacity=0.22, **share))
    frame = ink(None, "s1" if called else "muted", "nbt-box")
    dash = "6 4" if called else None
    parts.append(
        rect(x, y, width, height, rx=radius, stroke_width=1.5, stroke_dasharray=dash, **frame)
    )
    return parts


def _rect(
    x: float, y: float, width: float, height: float, radius: float, fill: str, line: str
) -> Shape:
    paint = ink(fill, line, "nbt-box")
    return rect(x, y, width, height, rx=min(radius, 20), stroke_width=1.5, **paint)


def _centred(node: Node, box: Box, middle: float) -> list[Shape]:
    lines = [(node.sublabel, "")] if node.sublabel else []
    if node.traffic is not None:
        lines.append((traffic_line(node.traffic), "nbt-traffic"))
    y = box.y + box.height / 2 + 4.5 - 7.5 * len(lines)
    parts = [text(middle, y, node.label, TEXT, "fg", "middle", bold=True)]
    for at, (line, cls) in enumerate(lines, 1):
        parts.append(_small(middle, y + 15 * at, line, cls, "middle"))
    return parts


def _small(x: float, y: float, line: str, cls: str, anchor: str = "") -> Shape:
    role = "fg" if cls else "muted"
    return shape("text", line, x=x, y=y, font_size=11, text_anchor=anchor, **ink(role, None, cls))


def _model(node: Node, box: Box) -> list[Shape]:
    parts = [text(box.x + 13, box.y + 19, node.label, TEXT, "fg", bold=True)]
    line = box.y + 27
    if node.sublabel:
        parts.append(_small(box.x + 13, line + 7, node.sublabel, ""))
        line += 15
    if node.traffic is not None:
        parts.append(_small(box.x + 13, line + 7, traffic_line(node.traffic), "nbt-traffic"))
        line += 15
    parts.append(stroke(f"M{box.x:.1f} {line:.1f}h{box.width:.1f}", "line"))
    for names, ports, side in ((node.inputs, box.in_ports, 0), (node.outputs, box.out_ports, 1)):
        x = box.x + side * box.width
        for name in names:
            y = ports[name]
            parts.append(shape("circle", cx=x, cy=y, r=3.5, **ink("bg", "muted")))
            anchor = "end" if side else "start"
            inside = x - 12 if side else x + 12
            parts.append(text(inside, y + 4, name, 11, "fg", anchor))
    return parts


def _chain(node: Node, box: Box) -> Shape:
    """Draw a chain as one box with a line for each of its models, from the first to the last."""
    parts = [
        _rect(box.x, box.y, box.width, box.height, 6, "panel", "muted"),
        text(box.x + 13, box.y + 17, node.label, 11, "muted"),
    ]
    y = box.y + HEADER
    for at, member in enumerate(node.members, 1):
        row = [
            shape("title", _tooltip(member)),
            *_frame(box.x + 6, y, box.width - 12, CHAIN_ROW - 3, member.traffic, radius=3),
            text(box.x + 14, y + 15, f"{at}. {member.label}", 12, "fg", bold=True),
        ]
        if member.traffic is not None:
            words = traffic_line(member.traffic)
            row.append(_small(box.x + box.width - 14, y + 15, words, "nbt-traffic", "end"))
        parts.append(shape("g", *row, class_="nbt-node nbt-model", data_node=member.id))
        y += CHAIN_ROW
    return shape("g", *parts, class_="nbt-chain", data_chain=node.id)


def _tooltip(node: Node) -> str:
    rows = [f"{name}: {value}" for name, value in details_of(node)]
    return "\n".join([" ".join(filter(None, (node.label, node.sublabel))), *rows])


def details_of(node: Node) -> tuple[tuple[str, str], ...]:
    """Return a node's configuration and its traffic: totals, batch sizes, errors."""
    rows = list(node.details)
    if node.group:
        rows.insert(0, ("step of", node.group))
    traffic = node.traffic
    if traffic is None or not (traffic.inferences or traffic.failed):
        return tuple(rows)
    rows.append(("share of the requests' time", f"{traffic.share:.0%}"))
    done = f"{count(traffic.inferences)} in {counted(traffic.executions, 'execution')}"
    rows.append(("inferences", done if traffic.executions else count(traffic.inferences)))
    if traffic.batch_sizes:
        sizes = ", ".join(f"{size}: {count(times)} \u00d7" for size, times in traffic.batch_sizes)
        rows.append(("batch sizes", f"{sizes} (mean {measure(traffic.mean_batch)})"))
    rows.append(("failed requests", count(traffic.failed)))
    rows += [("recent error", error) for error in traffic.errors]
    return tuple(rows)
