"""Circles of imports, those for types alone and those within functions counted too.

import-linter leaves out imports for types; a reader does not.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
PACKAGE = SOURCES / "nbtriton"


def imports() -> dict[str, set[str]]:
    """Return the modules that each module of nbtriton imports."""
    files = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                given = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [one if one in files else node.module for one in given]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                continue
            found[name] |= {one for one in targets if one in files and one != name}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the largest sets of modules each of which leads to each other one."""
    reached = {name: {name} for name in graph}
    changed = True
    while changed:
        changed = False
        for name, targets in graph.items():
            more = set().union(reached[name], *(reached[one] for one in targets))
            changed = changed or more != reached[name]
            reached[name] = more
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph}
    return [set(group) for group in groups if len(group) > 1]


def test_a_circle_is_found_through_any_number_of_modules():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["d", "e"]]


@pytest.mark.medium
def test_the_house_has_no_circle_of_imports():
    graph = imports()
    assert sum(map(len, graph.values())) > len(graph)  # they are seen at all
    assert circles(graph) == []
