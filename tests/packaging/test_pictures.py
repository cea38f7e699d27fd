"""The pictures of the README are there, and each says what it shows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_of_the_readme_are_figures_with_a_finding():
    paths = re.findall(r"!\[[^\]]+\]\((docs/pictures/[^)]+)\)", (ROOT / "README.md").read_text())
    assert len(paths) == 4
    labels = [ET.parse(ROOT / path).getroot().get("aria-label") for path in paths]
    assert "is the bottleneck" in labels[0]
    assert "is best: up to" in labels[1]
    assert re.search(r"\d+ batches with \d+ rows", labels[2])
    assert "gathered: they left together at 20 ms" in labels[3]
