"""docs/configuration.md says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.configuration import field_effects
from tests.children import run_python

ROOT = Path(__file__).parents[2]


@pytest.mark.medium
def test_the_page_is_made_from_the_code() -> None:
    done = run_python("scripts/configuration.py", "--check", cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_field_that_has_effect_is_read_somewhere() -> None:
    """What no code but the tables names would be dropped in silence."""
    package = ROOT / "src" / "nbtriton"
    tables = {"ignored.py", "_messages.pyi"}
    code = "\n".join(p.read_text() for p in package.rglob("*.py") if p.name not in tables)
    words = set(re.findall(r"\w+", code))
    fields = [one for one in field_effects() if one.effect != "reported as ignored"]
    names = {one.path.partition("[")[0].rsplit(".", 1)[-1] for one in fields}
    assert len(names) > 50
    assert names - words == set()
