"""How many instructions the compiled core takes for one request."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import nbtriton
from bench.computing import AT_MOST, counted, missing


@pytest.mark.slow
@pytest.mark.skipif(
    not nbtriton.compiled or Path(nbtriton.__file__).parents[1].name not in AT_MOST,
    reason="counted on the compiled builds of the Makefile",
)
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the ceilings are those of Python 3.11")
@pytest.mark.skipif(missing() != "", reason=missing())
def test_a_request_takes_no_more_instructions_than_it_did() -> None:
    """Counts do not depend on what else runs on the machine; a tenth more shows at once."""
    build = Path(nbtriton.__file__).parents[1]
    at_most = AT_MOST[build.name]
    found = counted(build, tuple(at_most), requests=100)
    assert {name: value for name, value in found.items() if value > at_most[name]} == {}, found
