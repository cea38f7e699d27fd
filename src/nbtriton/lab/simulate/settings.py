"""The options of a profile."""

# Annotations are evaluated: the tables are read from them.
from collections.abc import Sequence
from typing import Annotated, TypedDict

from nbtriton.common.checks import Kind, listed, number, optional, whole
from nbtriton.lab.perf.settings import GivenInputs, InputData, Protocol, Seed, Shapes, Url
from nbtriton.options.reading import int_list, one_or_several
from nbtriton.options.table import Option, table_of


class ProfileSettings(TypedDict, total=False):
    """The options of a profile."""

    inputs: GivenInputs
    shapes: Shapes
    input_data: InputData
    at_once: Annotated["int | Sequence[int] | None", Option(
        "--at-once", "executions at once: up to one number, or those of a list; 1, 2, 4 by default", "LIST", one_or_several,
        kind=optional(Kind(lambda given: whole(1).accepts(given) or listed(whole(1)).accepts(given), "a whole number from 1 on, or a list of them")))]  # fmt: skip
    batch_sizes: Annotated["Sequence[int] | None", Option(
        "--batch-sizes", "rows of the batches to measure", "LIST", int_list, kind=optional(listed(whole(1))))]  # fmt: skip
    duration_s: Annotated[float, Option("--duration-s", "how long to measure (10)", "S", float, 10.0, kind=number(above=0))]  # fmt: skip
    seed: Seed
    url: Url
    protocol: Protocol


PROFILE = table_of(ProfileSettings)
