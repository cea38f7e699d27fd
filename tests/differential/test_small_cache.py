"""A response cache that is too small for what is asked for: what both servers keep (K7, K11)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.differential.harness import OurSide, RealSide, Scenario, Send, write
from tests.differential.scenarios import f32, python
from tests.differential.servers import COMPLETE, ECHO
from tests.seeds import SEED

pytestmark = [pytest.mark.reference, pytest.mark.slow]

MODEL = python(
    "kept", ECHO, ("IN FP32 [-1]",), ("OUT FP32 [-1]",), "response_cache { enable: true }", 0
)


@pytest.mark.parametrize(("size_bytes", "width"), [(207, 2), (300, 2), (1001, 1), (4000, 25)])
def test_the_same_answers_are_kept(reference, tmp_path: Path, size_bytes: int, width: int) -> None:
    """Responses of one size: of others the gaps between them count (`cache-gaps`)."""
    rng = random.Random(f"{SEED} {size_bytes}")
    values = [*range(30), *reversed(range(30)), *(rng.randrange(30) for _ in range(60))]
    sends = tuple(Send({"IN": f32(width, start=value)}) for value in values)
    scenario = Scenario("", (MODEL,), sends, one_by_one=True)
    write(tmp_path / "models", [MODEL])
    flags = (*RealSide.FLAGS, COMPLETE, f"--cache-config=local,size={size_bytes}")
    with reference.server(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        real = RealSide(server, tmp_path)
        theirs = real.play(scenario)
        real.close()
    ours = OurSide(tmp_path / "models", [MODEL], tmp_path, cache_bytes=size_bytes)
    mine = ours.play(scenario)
    ours.close()
    assert mine.statistics == theirs.statistics
    assert ("cache_hit" in mine.statistics["kept"]) is (size_bytes > 207)
