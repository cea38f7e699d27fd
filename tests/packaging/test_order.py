"""The files of the tests in a random order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import run_python

ROOT = Path(__file__).parents[2]


def order(flag: str) -> list[str]:
    done = run_python("-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", flag,
                      "tests/drawing", cwd=ROOT, check=True)  # fmt: skip
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    return list(dict.fromkeys(line.partition("::")[0] for line in tests))


@pytest.mark.slow
def test_a_seed_gives_an_order_of_the_files():
    once, again = order("--shuffle=4"), order("--shuffle=4")
    assert once == again != sorted(once)
