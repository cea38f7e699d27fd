"""The rate limiter of both servers: what waits for resources, and who is granted them first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.harness import Model, OurSide, Outcome, RealSide, Scenario, both_sides
from tests.differential.scenarios import batcher, sized
from tests.differential.servers import COMPLETE

pytestmark = [pytest.mark.reference, pytest.mark.slow]


def limited(name: str, rest: str = "", *, priority: int = 1) -> Model:
    """Return a model that needs all of the resource that the others of its kind need."""
    group = (
        "instance_group { count: 1 kind: KIND_CPU rate_limiter { "
        f'resources {{ name: "R" count: 4 }} priority: {priority} }} }}'
    )
    return batcher(name, f"{rest} {group}")


HOLDER = limited("r_holder")
GROWS = limited("r_grows", "dynamic_batching { }")
WAITS = limited("r_waits", "dynamic_batching { priority_levels: 1 default_priority_level: 1 }")
LOW = limited("r_low", priority=3)
HIGH = limited("r_high")
HOLD = sized(1, model="r_holder", gate=True)

SCENARIOS = [
    Scenario(
        "R9 what waits for resources grows", (HOLDER, GROWS),
        (HOLD, *(sized(1) for _ in range(4))), batches=True,
    ),
    Scenario(
        "R9 unless a policy could act on it", (HOLDER, WAITS),
        (HOLD, *(sized(1) for _ in range(4))), batches=True,
    ),
    Scenario(
        "R6 loading counts as two executions", (HOLDER, LOW, HIGH),
        (HOLD, sized(1, model="r_low"), sized(1, model="r_high")), settle_s=0.3,
    ),
]  # fmt: skip
MODELS = (HOLDER, GROWS, WAITS, LOW, HIGH)


@pytest.fixture(scope="module")
def sides(
    reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealSide, OurSide]]:
    folder, flags = tmp_path_factory.mktemp("limited"), (COMPLETE, "--rate-limit=execution_count")
    with both_sides(reference, folder, MODELS, *flags, rate_limit="execution_count") as found:
        yield found


def order_of(outcome: Outcome) -> list[int]:
    """Return the requests in the order of their answers; of one batch no order is certain."""
    answers = outcome.answers
    return [] if outcome.batches else sorted(range(len(answers)), key=lambda n: answers[n].at_s)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_same_traffic_same_outcome(sides: tuple[RealSide, OurSide], scenario: Scenario) -> None:
    theirs, mine = (side.play(scenario) for side in sides)
    assert mine.batches == theirs.batches
    assert order_of(mine) == order_of(theirs)
    assert mine.statistics == theirs.statistics
