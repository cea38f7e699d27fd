"""Frames of a stream live in the notebook, with boxes, labels and track ids over them: what can be asked of it."""

# Annotations are evaluated: the table is read from them.
from collections.abc import Sequence
from typing import Annotated, TypedDict

from nbtriton.common.checks import NAMES, SWITCH
from nbtriton.options.reading import name_list, switch
from nbtriton.options.table import Option, table_of

__all__ = ["SHOW", "ShowSettings"]


class ShowSettings(TypedDict, total=False):
    """How a stream is shown."""

    labels: Annotated["Sequence[str]", Option(
        "--labels", "names of the classes, from 0 on", "LIST", name_list, kind=NAMES)]  # fmt: skip
    wait: Annotated[bool, Option(
        "--wait", "until the stream ends, or the cell is interrupted (off; alone: on)", "on|off", switch,
        alone=True, kind=SWITCH)]  # fmt: skip


SHOW = table_of(ShowSettings)
