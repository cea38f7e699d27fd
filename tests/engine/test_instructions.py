"""How many instructions the compiled core takes for one request."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import nbtriton
from bench.computing import AT_MOST, counted, missing


@pytest.mark.slow
@pytest.mark.skipif(not nbtriton.compiled, reason="counted on the compiled build")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the ceilings are those of Python 3.11")
@pytest.mark.skipif(missing() != "", reason=missing())
def test_a_request_takes_no_more_instructions_than_it_did() -> None:
    """Counts do not depend on what else runs on the machine; a tenth more shows at once."""
    found = counted(Path(nbtriton.__file__).parents[1], tuple(AT_MOST), requests=100)
    assert {name: value for name, value in found.items() if value > AT_MOST[name]} == {}, found
