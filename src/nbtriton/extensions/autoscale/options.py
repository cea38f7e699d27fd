"""The options of `nbtriton.autoscale` and ``%triton_autoscale``."""

# Annotations are evaluated: the table is read from them.
from argparse import ArgumentTypeError
from typing import Annotated, Any, TypedDict

from nbtriton.common.checks import Kind, is_list, is_whole, number
from nbtriton.options.reading import milliseconds
from nbtriton.options.table import Option, table_of


def _between(text: str) -> tuple[int, ...]:
    try:
        return tuple([int(part) for part in text.split(":")])
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not the fewest and the most, such as 1:8") from None


def _is_range(value: Any) -> bool:
    if not is_list(value) or len(value) != 2 or not all(map(is_whole, value)):
        return False
    return bool(1 <= value[0] <= value[1])


class AutoscaleSettings(TypedDict, total=False):
    """What instances are added and removed for."""

    between: Annotated["tuple[int, int]", Option(
        "--between", "the fewest and the most instances, by default 1:8", "FEWEST:MOST", _between, (1, 8),
        kind=Kind(_is_range, "the fewest and the most instances, from 1 on, such as (1, 8)"))]  # fmt: skip
    p99_ms: Annotated[float, Option(
        "--p99", "the p99 latency is to be at most this, in milliseconds", "20ms", milliseconds,
        kind=number(above=0))]  # fmt: skip


AUTOSCALE = table_of(AutoscaleSettings)
