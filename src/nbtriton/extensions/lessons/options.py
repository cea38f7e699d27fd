"""What can be changed of a scenario: `nbtriton.lessons.figure`, `Figure.change` and `Scenario.changed` have it from here."""

# Annotations are evaluated: the table is read from them.
from collections.abc import Sequence
from typing import Annotated, TypedDict

from nbtriton.options.reading import int_list, switch
from nbtriton.options.table import Option, table_of


class ScenarioSettings(TypedDict, total=False):
    """Arrivals, execution times, and settings of every model but ensembles; None changes nothing."""

    arrivals: Annotated[object, Option(
        "--arrivals", "when requests come, as of nbtriton.lessons.scenario: '0 0 5x2 10@m 20#A'", "TIMES")]  # fmt: skip
    execution_ms: Annotated[object, Option(
        "--execution-ms", "how long an execution takes, as of nbtriton.lessons.scenario", "MS", float)]  # fmt: skip
    instances: Annotated["int | None", Option("--instances", "instances of each model", "N", int)]
    max_batch_size: Annotated["int | None", Option("--max-batch-size", "largest batch", "N", int)]
    dynamic_batching: Annotated["bool | None", Option(
        "--dynamic-batching", "join waiting requests to batches (alone: on)", "on|off", switch, alone=True)]  # fmt: skip
    max_queue_delay_us: Annotated["int | None", Option(
        "--max-queue-delay-us", "how long to wait for a fuller batch", "US", int)]  # fmt: skip
    preferred: Annotated["Sequence[int] | None", Option(
        "--preferred", "preferred batch sizes, such as 2,4", "SIZES", int_list)]  # fmt: skip


SCENARIO = table_of(ScenarioSettings)
