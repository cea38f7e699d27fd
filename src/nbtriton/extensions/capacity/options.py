"""The options of a capacity plan: `nbtriton.capacity` and ``%triton_capacity`` have them from here."""

# Annotations are evaluated: the table is read from them.
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from nbtriton.common.checks import MAPPING, Kind, is_list, is_number, number, whole
from nbtriton.lab.perf.settings import Seed
from nbtriton.options.reading import milliseconds
from nbtriton.options.table import Option, table_of


def _times(text: str) -> tuple[float, ...]:
    return tuple(map(milliseconds, text.split(",")))


def _is_network(value: Any) -> bool:
    times = value if is_list(value) else [value]
    return bool(times) and all(is_number(each) and each >= 0 for each in times)


_NETWORK = Kind(_is_network, "a number from 0 on, or a list of them")


class CapacitySettings(TypedDict, total=False):
    """The load, its limit and the machines."""

    request_rate: Annotated[float, Option(
        "--request-rate", "requests per second to all nodes together; needed", "N", float, kind=number(above=0))]  # fmt: skip
    p99_ms: Annotated[float, Option(
        "--p99", "the p99 latency is to be at most this, in milliseconds; needed", "50ms", milliseconds, kind=number(above=0))]  # fmt: skip
    machines: Annotated["Mapping[str, Mapping[str, Any]]", Option(
        "--machines", "what a node may be, by name: price_per_hour, and instances (of a node, at most) or cpus; nodes (how many "
        "there are) and a profile of its own where it has them; needed", "EXPR", kind=MAPPING)]  # fmt: skip
    losses: Annotated[int, Option(
        "--losses", "so many nodes may be lost, and the limit still holds (0)", "N", int, 0, kind=whole(0))]  # fmt: skip
    network_ms: Annotated["float | Sequence[float]", Option(
        "--network", "the way to a node and back: a time, or measured ones, of which each request has one (0)", "2ms,…", _times, 0.0,
        kind=_NETWORK)]  # fmt: skip
    batch_size: Annotated[int, Option("-b --batch-size", "rows per request (1)", "N", int, 1, kind=whole(1))]  # fmt: skip
    seed: Seed


CAPACITY = table_of(CapacitySettings)
