"""A graph of models as an SVG picture and as text for a terminal."""

from __future__ import annotations

from nbtriton.drawing.graph import Box, Graph, Node, Route, layout, topological
from nbtriton.drawing.scene import Shape, figure, ink, shape, text, to_svg

__all__ = ["dag_scene", "dag_svg", "dag_text"]


def dag_svg(graph: Graph) -> str:
    """Draw a graph from left to right as one SVG element, readable on light and dark pages."""
    return to_svg(dag_scene(graph))


def dag_scene(graph: Graph) -> Shape:
    """Return the picture of a graph as shapes; each node is a group with ``data-node``."""
    plan = layout(graph)
    parts: list[Shape] = []
    if graph.title:
        parts.append(text(24, 29, graph.title, 13, "fg", bold=True))
    parts.extend(_edge(route) for route in plan.routes)
    for label in plan.labels:
        name, _, rest = label.text.partition(" ")
        parts.append(
            shape(
                "text",
                shape("tspan", name, **ink("fg")),
                *((shape("tspan", f" {rest}", **ink("muted")),) if rest else ()),
                x=label.x,
                y=label.y,
                font_size=11,
            )
        )
    # In topological order, which is that of the keyboard.
    parts.extend(_node(node, plan.boxes[node.id]) for node in topological(graph))
    models = [node.label for node in graph.nodes if node.kind == "model"]
    title = graph.title or "pipeline"
    return figure(
        plan.width,
        plan.height,
        *parts,
        label=f"Graph of {title}: {_sentence(graph)}",
        title=f"{title}: {len(models)} {'model' if len(models) == 1 else 'models'}",
        cls="nbt-dag-svg",
    )


def dag_text(graph: Graph) -> str:
    """Write a graph as a tree; a node with several inputs is below the last of them."""
    order = {node.id: i for i, node in enumerate(topological(graph))}
    written: set[str] = set()
    nodes = {node.id: node for node in graph.nodes}
    # The edge below which a node is written in full.
    main_edge = {}
    for edge in sorted(graph.edges, key=lambda e: order[e.source]):
        main_edge[edge.target] = edge
    lines = [graph.title] if graph.title else []

    def branch(node: Node, first: str, rest: str) -> None:
        lines.append(first + _caption(node))
        written.add(node.id)
        edges = [edge for edge in graph.edges if edge.source == node.id]
        for i, edge in enumerate(edges):
            last = i == len(edges) - 1
            target = nodes[edge.target]
            name = edge.label.partition(" ")[0]
            shown = edge.label and name not in (node.label, target.label)
            lead = rest + ("└─" if last else "├─") + (f" {edge.label} ─▶ " if shown else "─▶ ")
            if main_edge[edge.target] is edge:
                branch(target, lead, rest + ("   " if last else "│  "))
            else:
                place = "above" if target.id in written else "below"
                lines.append(f"{lead}{target.label}  ({place})")

    for node in graph.nodes:
        if node.id not in main_edge:
            branch(node, "", "")
    return "\n".join(lines)


def _caption(node: Node) -> str:
    ports = ""
    if node.kind == "model" and not node.sublabel and node.inputs:
        ports = f"({', '.join(node.inputs)}) -> {', '.join(node.outputs)}"
    return "  ".join(part for part in (node.label, node.sublabel, ports) if part)


def _sentence(graph: Graph) -> str:
    """Return the edges in words, for screen readers."""
    nodes = {node.id: node.label for node in graph.nodes}
    sentences = []
    for node in topological(graph):
        to = dict.fromkeys(nodes[edge.target] for edge in graph.edges if edge.source == node.id)
        if to:
            sentences.append(f"{node.label} feeds {' and '.join(to)}")
    if not sentences:
        sentences = [node.label for node in graph.nodes]
    return "; ".join(sentences)


def _edge(route: Route) -> Shape:
    points = route.points
    (x, y), steps = points[0], []
    steps.append(f"M{x:.1f} {y:.1f}")
    for i, (to_x, to_y) in enumerate(points[1:], 1):
        if i % 2:
            steps.append(f"H{to_x:.1f}")
        else:
            end = to_x - (9 if i == len(points) - 1 else 0)
            bend = (end - x) / 2
            steps.append(
                f"C{x + bend:.1f} {y:.1f} {end - bend:.1f} {to_y:.1f} {end:.1f} {to_y:.1f}"
            )
        x, y = to_x, to_y
    edge = route.edge
    return shape(
        "g",
        shape("path", d=" ".join(steps), stroke_width=1.5, **ink(None, "muted")),
        shape("path", d=f"M{x - 3.5:.1f} {y:.1f}l-8 -4.5v9z", **ink("muted")),
        class_="nbt-edge",
        data_source=edge.source,
        data_target=edge.target,
    )


def _node(node: Node, box: Box) -> Shape:
    parts = [shape("title", _tooltip(node))]
    middle = box.x + box.width / 2
    if node.kind == "model":
        parts.append(_rect(box, 6, "panel", "muted"))
        if node.inputs or node.outputs:
            parts += _model(node, box)
        else:
            parts += _centred(node, box, middle)
    else:
        accent = "s0" if node.kind == "input" else "s2"
        parts.append(_rect(box, box.height / 2, "panel", accent))
        parts += _centred(node, box, middle)
    return shape("g", *parts, class_=f"nbt-node nbt-{node.kind}", data_node=node.id)


def _rect(box: Box, radius: float, fill: str, stroke: str) -> Shape:
    return shape(
        "rect",
        x=box.x,
        y=box.y,
        width=box.width,
        height=box.height,
        rx=min(radius, 20),
        stroke_width=1.5,
        **ink(fill, stroke, "nbt-box"),
    )


def _centred(node: Node, box: Box, middle: float) -> list[Shape]:
    y = box.y + box.height / 2
    if not node.sublabel:
        return [text(middle, y + 4.5, node.label, 13, "fg", "middle", bold=True)]
    return [
        text(middle, y - 3, node.label, 13, "fg", "middle", bold=True),
        text(middle, y + 12, node.sublabel, 11, "muted", "middle"),
    ]


def _model(node: Node, box: Box) -> list[Shape]:
    parts = [text(box.x + 13, box.y + 19, node.label, 13, "fg", bold=True)]
    line = box.y + 27
    if node.sublabel:
        parts.append(text(box.x + 13, box.y + 34, node.sublabel, 11, "muted"))
        line += 15
    parts.append(shape("path", d=f"M{box.x:.1f} {line:.1f}h{box.width:.1f}", **ink(None, "line")))
    for names, ports, side in ((node.inputs, box.in_ports, 0), (node.outputs, box.out_ports, 1)):
        x = box.x + side * box.width
        for name in names:
            y = ports[name]
            parts.append(shape("circle", cx=x, cy=y, r=3.5, **ink("bg", "muted")))
            anchor = "end" if side else "start"
            inside = x - 12 if side else x + 12
            parts.append(text(inside, y + 4, name, 11, "fg", anchor))
    return parts


def _tooltip(node: Node) -> str:
    rows = [f"{name}: {value}" for name, value in node.details]
    return "\n".join([" ".join(filter(None, (node.label, node.sublabel))), *rows])
