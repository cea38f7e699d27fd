"""What can be changed of a scenario: `nbtriton.figure`, `Figure.change` and `Scenario.changed` have it from here."""

# Annotations are evaluated: the table is read from them.
from collections.abc import Sequence
from typing import Annotated, TypedDict

from nbtriton.options import Option
from nbtriton.options.table import table_of


class ScenarioSettings(TypedDict, total=False):
    """Arrivals, execution times, and settings of every model but ensembles; None changes nothing."""

    arrivals: Annotated[object, Option("", "when requests come, as of nbtriton.scenario")]
    execution_ms: Annotated[
        object, Option("", "how long an execution takes, as of nbtriton.scenario")
    ]
    instances: Annotated["int | None", Option("", "instances of each model")]
    max_batch_size: Annotated["int | None", Option("", "largest batch")]
    dynamic_batching: Annotated["bool | None", Option("", "join waiting requests to batches")]
    max_queue_delay_us: Annotated["int | None", Option("", "how long to wait for a fuller batch")]
    preferred: Annotated["Sequence[int] | None", Option("", "preferred batch sizes")]


SCENARIO = table_of(ScenarioSettings)
