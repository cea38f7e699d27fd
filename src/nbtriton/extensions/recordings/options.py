"""The options of a replay: `nbtriton.replay` and ``%triton_replay`` have them from here."""

# Annotations are evaluated: the table is read from them.
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from nbtriton.common.checks import PATH, optional
from nbtriton.lab.perf.settings import KindSweep, Percentile, Protocol, Seed, Shapes, Speed, Sweep
from nbtriton.options.reading import name_list
from nbtriton.options.table import Option, table_of


def _models(text: str) -> list[str] | dict[str, str]:
    """Read ``A,B``, or ``A:X,B:Y``: the requests for A are sent to X."""
    names = name_list(text)
    if not any(":" in name for name in names):
        return names
    return {name.partition(":")[0]: name.partition(":")[2] or name for name in names}


class ReplaySettings(Sweep, total=False):
    """The options of a replay."""

    models: Annotated["str | Sequence[str] | Mapping[str, str] | None", Option(
        "--models", "only the requests for these; A:X sends those for A to X", "LIST", _models)]  # fmt: skip
    speed: Speed
    protocol: Protocol
    kind: KindSweep
    shapes: Shapes
    percentile: Percentile
    seed: Seed
    record: Annotated["str | Path | None", Option("--record", "record what is sent", "FILE", kind=optional(PATH))]  # fmt: skip


REPLAY = table_of(ReplaySettings)
