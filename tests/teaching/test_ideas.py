"""A lesson introduces at most four ideas, names them at its beginning, and each is in it."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

LESSONS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
MOST = 4


def cells_of(path: Path) -> list[str]:
    """The text of each cell, in one line."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [" ".join("".join(cell["source"]).split()) for cell in cells]


def ideas_of(path: Path) -> list[str]:
    """The terms of the line with which a lesson's first cell ends."""
    (line,) = re.findall(r" New here: (.+)\.$", cells_of(path)[0])
    return re.findall(r"[*`]([^*`]+)[*`]", line)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_at_most_four_new_ideas(path):
    ideas = ideas_of(path)
    assert 1 <= len(ideas) <= MOST
    rest = " ".join(cells_of(path)[1:]).lower()
    assert [idea for idea in ideas if idea.lower() not in rest] == []


def test_an_idea_is_new_once():
    named = {path.stem: set(ideas_of(path)) for path in LESSONS}
    assert [pair for pair in combinations(named, 2) if named[pair[0]] & named[pair[1]]] == []
