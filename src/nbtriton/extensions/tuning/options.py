"""The options of a search for the best configuration."""

# Annotations are evaluated: the table is read from them.
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from nbtriton.common.checks import PROFILE, Kind, is_whole, listed, number, optional, whole
from nbtriton.lab.perf.loads import MOST_OUTSTANDING
from nbtriton.lab.perf.settings import GivenInputs, Seed, Shapes
from nbtriton.options.reading import int_list, milliseconds
from nbtriton.options.table import Option, table_of

if TYPE_CHECKING:
    from nbtriton.lab.simulate.model_profile import Profile

_LIMIT = optional(number(above=0))
_OUTSTANDING = Kind(
    lambda value: is_whole(value) and 0 < value <= MOST_OUTSTANDING,
    f"a whole number from 1 to {MOST_OUTSTANDING}",
)
_CHOICES = optional(listed(whole(1)))


class TuneSettings(TypedDict, total=False):
    """The options of a search for the best configuration."""

    p99_ms: Annotated["float | None", Option(
        "--p99", "the p99 latency is to be at most this, in milliseconds", "20ms", milliseconds, kind=_LIMIT)]  # fmt: skip
    maximize: Annotated['Literal["throughput"] | None', Option("--maximize", "the default", choices=("throughput",))]  # fmt: skip
    minimize: Annotated['Literal["latency", "instances", "memory", "cost"] | None', Option(
        "--minimize", "or this", choices=("latency", "instances", "memory", "cost"))]  # fmt: skip
    placement: Annotated['Literal["auto"] | None', Option(
        "--placement", "choose the device of each step instead: the least time of devices, within --p99",
        choices=("auto",))]  # fmt: skip
    min_throughput: Annotated["float | None", Option(
        "--min-throughput", "at least N inferences/s", "N", float, kind=_LIMIT)]  # fmt: skip
    concurrency: Annotated["int | None", Option("-c --concurrency", "requests kept outstanding", "N", int, kind=optional(_OUTSTANDING))]  # fmt: skip
    request_rate: Annotated["float | None", Option("--request-rate", "or requests per second", "N", float, kind=_LIMIT)]  # fmt: skip
    batch_size: Annotated[int, Option("-b --batch-size", "rows per request (1)", "N", int, 1, kind=whole(1))]  # fmt: skip
    instances: Annotated["Sequence[int] | None", Option(
        "--instances", "numbers to choose from", "LIST", int_list, kind=_CHOICES)]  # fmt: skip
    max_batch_size: Annotated["Sequence[int] | None", Option(
        "--max-batch-size", "likewise", "LIST", int_list, kind=_CHOICES)]  # fmt: skip
    max_queue_delay_us: Annotated["Sequence[int] | None", Option(
        "--max-queue-delay-us", "likewise", "LIST", int_list, kind=optional(listed(whole(0))))]  # fmt: skip
    inputs: GivenInputs
    shapes: Shapes
    profile: Annotated["Profile | None", Option(
        "--profile", "one that was measured before, or a file of Profile.save", "EXPR|FILE",
        kind=optional(PROFILE))]  # fmt: skip
    finalists: Annotated[int, Option("--finalists", "configurations to measure (3)", "N", int, 3, kind=whole(1))]  # fmt: skip
    duration_s: Annotated[float, Option("--duration-s", "longest search (30)", "S", float, 30.0, kind=number(above=0))]  # fmt: skip
    seed: Seed


TUNE = table_of(TuneSettings)
