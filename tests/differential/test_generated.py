"""Generated cases, and those written by hand that need a server with a response cache.

``NBTRITON_CASES`` and ``NBTRITON_SEED`` say how many and which; ``python -m tests.differential``
sets them. Each lot of cases is one repository, served once by each server.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.cases import CASES
from tests.differential.deliberate import CASE, NAMES, Verdict, compare
from tests.differential.generate import CACHE_BYTES, generate, models_of
from tests.differential.harness import ANSWER_S, Model, Outcome, Scenario, both_sides
from tests.differential.servers import COMPLETE
from tests.seeds import SEED
from tests.until import until

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("NBTRITON_CASES", "30"))

# At most this number of models for one tritonserver to start at once.
LOT = 75


def lots() -> list[list[Scenario]]:
    """Split the cases: each group has a seed and so models of its own."""
    numbers = range(-(-COUNT // LOT))
    made = [generate(SEED + n, min(LOT, COUNT - n * LOT)) for n in numbers]
    return [[*CASES, *made[0]], *made[1:]] if made else [CASES]


LOTS = lots()


class Pair:
    """Both servers, over the models of one group at a time."""

    def __init__(self, reference, scratch: Path) -> None:
        self._reference = reference
        self._scratch = scratch
        self._stack = contextlib.ExitStack()
        self._lot = -1

    def serve(self, lot: int) -> None:
        if lot == self._lot:
            return
        self.close()
        self._lot = lot
        self.real, self.ours = self._stack.enter_context(
            both_sides(
                self._reference, self._scratch / str(lot), models_of(LOTS[lot]),
                f"--cache-config=local,size={CACHE_BYTES}", COMPLETE, cache_bytes=CACHE_BYTES,
            )
        )  # fmt: skip

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def pair(reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(reference, tmp_path_factory.mktemp("lots"))
    yield made
    made.close()


def cases() -> Iterator[object]:
    for lot, scenarios in enumerate(LOTS):
        for scenario in scenarios:
            yield pytest.param(lot, scenario, id=scenario.id)
        for model in models_of(scenarios):
            yield pytest.param(lot, model, id=f"config of {model.name}")


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.timeout(300)  # the first of a group starts a server
@pytest.mark.parametrize(("lot", "case"), list(cases()))
def test_both_agree(pair: Pair, lot: int, case: Scenario | Model, record_property) -> None:
    pair.serve(lot)
    if isinstance(case, Model):
        mine = pair.ours.config(case.name)
        # A field that tritonserver 2.51 does not know yet (E21).
        assert mine == pair.real.config(case.name)
        assert pair.ours.metadata(case.name) == pair.real.metadata(case.name)
        return
    theirs, mine = pair.real.play(case), pair.ours.play(case)
    verdict = compare(case, theirs, mine)
    if verdict.difference and case.statistics:
        # The statistics of a called model may be written after the answer.
        until(lambda: not read_again(pair, case, theirs, mine).difference, ANSWER_S)
        verdict = read_again(pair, case, theirs, mine)
    if verdict.deliberate:
        record_property("deliberate", verdict.deliberate)
    assert not verdict.difference, "\n" + verdict.difference


def read_again(pair: Pair, case: Scenario, theirs: Outcome, mine: Outcome) -> Verdict:
    return compare(case, pair.real.reread(theirs), pair.ours.reread(mine))


def test_the_same_seed_makes_the_same_cases() -> None:
    once, again = (repr(generate(5, 40)) for _ in range(2))
    assert once == again
    assert once != repr(generate(6, 40))


def test_every_deliberate_difference_is_explained_to_users() -> None:
    page = (ROOT / "docs" / "differences.md").read_text()
    explained = re.findall(r"^### `([a-z0-9-]+)`", page, re.MULTILINE)
    assert sorted(explained) == sorted(NAMES)
    used = {scenario.deliberate for scenario in CASES} - {""}
    assert used == {name for name, where in NAMES.items() if where == CASE}


@pytest.mark.parametrize("name", [name for name, where in NAMES.items() if where != CASE])
def test_every_other_deliberate_difference_has_its_test(name: str) -> None:
    file, _, function = NAMES[name].partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE)
