"""Generated cases, and those written by hand that need a server with a response cache.

``NBTRITON_CASES`` and ``NBTRITON_SEED`` say how many and which; ``python -m tests.differential``
sets them. Each lot of cases is one repository, served once by each server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.differential.cases import CASES
from tests.differential.deliberate import CASE, NAMES, compare
from tests.differential.generate import CACHE_BYTES, generate, models_of
from tests.differential.harness import Model, OurSide, RealSide, Scenario, write

reference_test = [pytest.mark.reference, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("NBTRITON_CASES", "60"))
SEED = int(os.environ.get("NBTRITON_SEED", "1"))
# So many models are as much as one tritonserver should start at once.
LOT = 75


def lots() -> list[list[Scenario]]:
    """Split the cases: each lot has a seed and so models of its own."""
    numbers = range(-(-COUNT // LOT))
    made = [generate(SEED + n, min(LOT, COUNT - n * LOT)) for n in numbers]
    return [[*CASES, *made[0]], *made[1:]] if made else [CASES]


LOTS = lots()


@dataclass(frozen=True)
class Pair:
    """Both servers over the models of one lot."""

    models: list[Model]
    real: RealSide
    ours: OurSide


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    models = models_of(LOTS[request.param])
    repository = tmp_path_factory.mktemp("repository")
    write(repository, models)
    log = tmp_path_factory.mktemp("log") / "server.log"
    cache = f"--cache-config=local,size={CACHE_BYTES}"
    with reference.server(repository, cache, log=log, timeout_s=180) as server:
        real = RealSide(server, tmp_path_factory.mktemp("gates"))
        ours = OurSide(
            repository, models, tmp_path_factory.mktemp("gates"), cache_bytes=CACHE_BYTES
        )
        yield Pair(models, real, ours)
        real.close()
        ours.close()


def cases() -> Iterator[object]:
    for number, scenarios in enumerate(LOTS):
        for scenario in scenarios:
            yield pytest.param(number, scenario, id=scenario.id, marks=reference_test)


@pytest.mark.parametrize(("pair", "scenario"), cases(), indirect=["pair"])
def test_same_traffic(pair: Pair, scenario: Scenario, record_property) -> None:
    verdict = compare(scenario, pair.real.play(scenario), pair.ours.play(scenario))
    if verdict.deliberate:
        record_property("deliberate", verdict.deliberate)
    assert not verdict.difference, "\n" + verdict.difference


def served() -> Iterator[object]:
    for number, scenarios in enumerate(LOTS):
        for model in models_of(scenarios):
            yield pytest.param(number, model.name, id=model.name, marks=reference_test)


@pytest.mark.parametrize(("pair", "model"), served(), indirect=["pair"])
def test_same_config_and_metadata(pair: Pair, model: str) -> None:
    mine = pair.ours.config(model)
    # A field that tritonserver 2.51 does not know yet (E21).
    mine.get("ensemble_scheduling", {}).pop("max_inflight_requests", None)
    assert mine == pair.real.config(model)
    assert pair.ours.metadata(model) == pair.real.metadata(model)


def test_the_same_seed_makes_the_same_cases() -> None:
    once, again = (repr(generate(5, 40)) for _ in range(2))
    assert once == again
    assert once != repr(generate(6, 40))


def test_every_deliberate_difference_is_explained_to_users() -> None:
    page = (ROOT / "docs" / "differences.md").read_text()
    explained = re.findall(r"^### `([a-z0-9-]+)`", page, re.MULTILINE)
    assert sorted(explained) == sorted(NAMES)
    used = {scenario.deliberate for scenario in CASES} - {""}
    counted = "ensemble-failure-counted-once"  # by `compare`, wherever an ensemble fails
    assert used | {counted} == {name for name, where in NAMES.items() if where == CASE}


@pytest.mark.parametrize("name", [name for name, where in NAMES.items() if where != CASE])
def test_every_other_deliberate_difference_has_its_test(name: str) -> None:
    file, _, function = NAMES[name].partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE)
