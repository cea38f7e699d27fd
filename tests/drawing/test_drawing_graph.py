"""The layout of graphs: nothing overlaps, edges go forward, the same graph gives the same picture."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.drawing.dag import dag_scene, dag_text, traffic_line
from nbtriton.drawing.graph import Edge, Graph, Node, Traffic, folded, topological
from nbtriton.drawing.layering import layout
from nbtriton.drawing.scene import text_width, to_svg
from tests.widgets.samples import digits_graph

BUSY = Traffic(share=1.0, infer_per_s=9250.0, inferences=5000, failed=999)


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 12))
    names = draw(
        st.lists(st.text("abcXYZ_<&\"'", min_size=1, max_size=14), min_size=count, max_size=count)
    )
    kinds = st.sampled_from(["model", "model", "input", "output"])
    nodes = []
    for i, name in enumerate(names):
        ports = draw(st.integers(0, 4))
        nodes.append(
            Node(
                f"n{i}",
                name,
                draw(kinds),
                draw(st.sampled_from(["", "FP32[4]"])),
                (),
                tuple(f"I{k}" for k in range(ports)),
                tuple(f"O{k}" for k in range(draw(st.integers(0, 3)))),
            )
        )
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=18)) if pairs else []
    edges = [
        Edge(
            f"n{a}",
            f"n{b}",
            draw(st.sampled_from(["", "x FP32[1]", "long_tensor_name"])),
            draw(st.sampled_from(["", *nodes[a].outputs])),
            draw(st.sampled_from(["", *nodes[b].inputs])),
        )
        for a, b in chosen
    ]
    order = draw(st.permutations(range(count)))
    return Graph(tuple(nodes[i] for i in order), tuple(edges), draw(st.sampled_from(["", "title"])))


@pytest.mark.medium
@given(graphs())
def test_nodes_keep_apart_and_inside(graph):
    plan = layout(graph)
    for box in plan.boxes.values():
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= plan.width
        assert box.y + box.height <= plan.height
    for one, two in itertools.combinations(plan.boxes.values(), 2):
        apart = (
            one.x + one.width <= two.x
            or two.x + two.width <= one.x
            or one.y + one.height <= two.y
            or two.y + two.height <= one.y
        )
        assert apart


@pytest.mark.medium
@given(graphs())
def test_edges_go_to_the_right_from_port_to_port(graph):
    plan = layout(graph)
    assert len(plan.routes) == len(graph.edges)
    for route, edge in zip(plan.routes, graph.edges, strict=True):
        source, target = plan.boxes[edge.source], plan.boxes[edge.target]
        assert source.layer < target.layer
        xs = [x for x, _ in route.points]
        assert xs == sorted(xs)
        assert route.points[0][0] == source.x + source.width
        assert route.points[-1][0] == target.x
        if edge.target_port:
            assert route.points[-1][1] == target.in_ports[edge.target_port]


@pytest.mark.medium
@given(graphs())
@settings(max_examples=60, deadline=None)
def test_ports_are_inside_their_node_in_order(graph):
    for box in layout(graph).boxes.values():
        for ports in (box.in_ports, box.out_ports):
            heights = list(ports.values())
            assert heights == sorted(set(heights))
            assert all(box.y < y < box.y + box.height for y in heights)


@pytest.mark.medium
@given(graphs())
@settings(max_examples=60, deadline=None)
def test_labels_do_not_touch_nodes_or_each_other(graph):
    plan = layout(graph)
    # Text of 11 px: 9 above its baseline, 3 below. Widths are estimated, so the left end counts.
    spots = [(label.x, label.y - 9, label.y + 3) for label in plan.labels]
    for (x1, top1, low1), (x2, top2, low2) in itertools.combinations(spots, 2):
        assert x1 != x2 or low1 <= top2 or low2 <= top1
    for x, top, low in spots:
        for box in plan.boxes.values():
            inside = box.x < x < box.x + box.width
            assert not (inside and top < box.y + box.height and low > box.y)


@pytest.mark.medium
@given(graphs())
@settings(max_examples=40, deadline=None)
def test_the_same_graph_gives_the_same_well_formed_picture(graph):
    svg = to_svg(dag_scene(graph))
    assert svg == to_svg(dag_scene(graph))
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    drawn = [g.get("data-node") for g in root.iter() if g.get("data-node")]
    whole = [
        member.id for node in topological(folded(graph)) for member in (node.members or (node,))
    ]
    assert drawn == whole
    assert set(drawn) == {node.id for node in graph.nodes}


@pytest.mark.medium
@given(graphs())
@settings(max_examples=60, deadline=None)
def test_text_names_every_node_in_full_once(graph):
    lines = dag_text(graph).splitlines()[1 if graph.title else 0 :]
    full = [line for line in lines if not re.search(r"\((above|below)\)$", line)]
    assert len(full) == len(graph.nodes)


def test_a_name_with_control_characters_leaves_the_picture_well_formed():
    name = "a\x00\x1b\x0bb\ufffe\udc80"
    root = ET.fromstring(to_svg(dag_scene(Graph((Node("n", name, "model", "", (), (), ()),), ()))))
    assert any("a\ufffd\ufffd\ufffdb\ufffd\ufffd" in part for part in root.itertext())


def test_a_chain_may_be_longer_than_pythons_stack():
    nodes = tuple(Node(f"n{n}", f"step {n}") for n in range(1500))
    edges = tuple(Edge(f"n{n}", f"n{n + 1}") for n in range(1499))
    lines = dag_text(Graph(nodes, edges)).splitlines()
    assert len(lines) == 1500
    assert "step 1499" in lines[-1]


def test_a_cycle_is_named():
    graph = Graph((Node("a", "one"), Node("b", "two")), (Edge("a", "b"), Edge("b", "a")))
    with pytest.raises(InvalidArgumentError, match="cycle through 'one', 'two'"):
        layout(graph)


def test_an_edge_to_nowhere_is_named():
    with pytest.raises(InvalidArgumentError, match="unknown node 'z'"):
        layout(Graph((Node("a", "one"),), (Edge("a", "z", "T"),)))


def test_inputs_are_first_and_outputs_last():
    plan = layout(digits_graph())
    layers = {name: box.layer for name, box in plan.boxes.items()}
    assert layers["input:IMAGE"] == 0
    assert layers["step:1"] == layers["step:2"] == 2
    assert layers["output:CLASSIFICATION"] == layers["output:SEGMENTATION"] == 3


def test_the_way_to_the_next_row_keeps_off_the_badges_above_its_models():
    plan = layout(digits_graph(), 480)
    ways = [points for route in plan.routes for kind, points in route.steps if kind == "L"]
    assert ways
    for way in ways:
        (right, _), (_, low), (left, _) = way[:3]
        for box in plan.boxes.values():
            if box.y > low and left < box.x + box.width and box.x < right:
                # A live view draws the badge 21 px above its model; a busy edge is 5 px wide.
                assert low + 2.5 < box.y - 21


def test_crossings_are_removed():
    # a feeds d and b feeds c: in the given order the two edges would cross.
    graph = Graph(
        (Node("a", "a"), Node("b", "b"), Node("c", "c"), Node("d", "d")),
        (Edge("a", "d"), Edge("b", "c")),
    )
    boxes = layout(graph).boxes
    assert (boxes["a"].y < boxes["b"].y) == (boxes["d"].y < boxes["c"].y)


def test_text_of_the_digits_graph(golden):
    golden("digits_graph.txt", dag_text(digits_graph()))


def test_picture_of_the_digits_graph(golden):
    golden("digits_graph.svg", to_svg(dag_scene(digits_graph())))


def test_no_script_and_nothing_from_outside():
    svg = to_svg(dag_scene(digits_graph()))
    assert "<script" not in svg
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


@pytest.mark.parametrize("drawn", [Traffic(), BUSY], ids=["before the failures", "after them"])
def test_what_failed_stays_in_the_box_of_its_model(drawn):
    """A live view writes the newest line into the box that was drawn at first."""
    graph = digits_graph()
    nodes = tuple(replace(node, traffic=drawn) if node.is_model else node for node in graph.nodes)
    root = ET.fromstring(to_svg(dag_scene(replace(graph, nodes=nodes))))
    groups = [one for one in root.iter() if one.get("data-node")]
    lines = [
        (group, one) for group in groups for one in group if "nbt-traffic" in one.get("class", "")
    ]
    assert lines
    for group, line in lines:
        box = next(one for one in group.iter() if "nbt-box" in one.get("class", ""))
        end = float(line.get("x")) + text_width(traffic_line(BUSY), 11)
        assert end <= float(box.get("x")) + float(box.get("width"))
