"""The options of a twin: `nbtriton.twin` and ``%triton_twin`` have them from here."""

# Annotations are evaluated: the table is read from them.
from typing import Annotated, TypedDict

from nbtriton.common.checks import number, optional, whole
from nbtriton.lab.perf.settings import Protocol
from nbtriton.options.table import Option, table_of


class TwinSettings(TypedDict, total=False):
    """How a running Triton is looked at."""

    protocol: Protocol
    duration_s: Annotated[float, Option(
        "--duration-s", "how long to read its statistics (10)", "S", float, 10.0, kind=number(above=0))]  # fmt: skip
    at_once: Annotated["int | None", Option(
        "--at-once", "so many executions of a model at once take as long as one does: assumed, not seen (default: as many as it "
        "has instances)", "N", int, kind=optional(whole(1)), unset="as many as it has instances")]  # fmt: skip
    measure_s: Annotated["float | None", Option(
        "--measure-s", "send each model requests for so long, for what statistics do not say (default: send nothing)", "S", float,
        kind=optional(number(above=0)), unset="send nothing")]  # fmt: skip


TWIN = table_of(TwinSettings)
