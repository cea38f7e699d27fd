"""Golden files: pictures that a person has checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"


@pytest.fixture
def golden():
    """Compare text with a golden file; ``NBTRITON_GOLDEN=write`` renews it (then check it)."""

    def compare(name, text):
        path = FOLDER / name
        if os.environ.get("NBTRITON_GOLDEN") == "write":
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare
