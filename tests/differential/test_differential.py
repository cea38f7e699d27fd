"""nbtriton and the real tritonserver give the same answers to the same traffic.

Compared are outputs with datatype and shape, response parameters, status and message of errors,
which requests shared an execution, and the counts of the statistics of every model involved.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.harness import OurSide, Outcome, RealSide, Scenario, both_sides
from tests.differential.scenarios import COMPLETED, COMPLETION, MODELS, SCENARIOS

pytestmark = [pytest.mark.reference, pytest.mark.slow]


def in_time(scenario: Scenario, outcome: Outcome, side: str) -> None:
    for number, (send, answer) in enumerate(zip(scenario.traffic, outcome.answers, strict=True)):
        low, high = send.takes_s
        assert low <= answer.took_s <= high, f"{side}: request {number} took {answer.took_s:.3f} s"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_same_traffic_same_outcome(real: RealSide, ours: OurSide, scenario: Scenario) -> None:
    theirs = real.play(scenario)
    mine = ours.play(scenario)
    in_time(scenario, theirs, "tritonserver")
    in_time(scenario, mine, "nbtriton")
    assert mine.answers == theirs.answers
    assert mine.batches == theirs.batches
    assert mine.statistics == theirs.statistics


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_J2_same_completed_config(real: RealSide, ours: OurSide, model) -> None:
    mine = ours.config(model.name)
    # A field that tritonserver 2.51 does not know yet (E21).
    assert mine == real.config(model.name)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_J4_same_metadata(real: RealSide, ours: OurSide, model) -> None:
    assert ours.metadata(model.name) == real.metadata(model.name)


@pytest.fixture(scope="module")
def completing(
    reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealSide, OurSide]]:
    """Both servers, with auto-complete on."""
    with both_sides(reference, tmp_path_factory.mktemp("completing"), COMPLETED) as sides:
        yield sides


@pytest.mark.parametrize("scenario", COMPLETION, ids=lambda scenario: scenario.id)
def test_same_outcome_where_configurations_are_completed(
    completing: tuple[RealSide, OurSide], scenario: Scenario
) -> None:
    test_same_traffic_same_outcome(*completing, scenario)


@pytest.mark.parametrize("model", COMPLETED, ids=lambda model: model.name)
def test_J2_J4_the_same_is_completed(completing: tuple[RealSide, OurSide], model) -> None:
    test_J2_same_completed_config(*completing, model)
    test_J4_same_metadata(*completing, model)
