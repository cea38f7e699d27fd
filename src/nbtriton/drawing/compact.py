"""Tables for narrow pages: the most important columns, with the whole table one click away."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nbtriton.drawing.scene import text_width
from nbtriton.drawing.table import (
    SENTENCE_EM,
    Column,
    cells_of,
    heads_of,
    is_sentence,
    table_html,
    table_text,
)

# The width of the narrowest picture: it fits a page of 600 pixels with its margins.
_ROOM_PX = 540.0
_TERMINAL = 80
_FONT_PX = 13.0
_PADDING_PX = 6


def compact_html(
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[object]],
    importance: Sequence[int],
    *,
    caption: str = "",
    rest: bool = True,
) -> str:
    """Write a table that fits into 540 pixels, with the whole table folded below it.

    Parameters
    ----------
    columns, rows
        As in `table_html`.
    importance : sequence of int
        Columns to show first, the most important one at the beginning.
    caption : str, optional
    rest : bool
        Whether the whole table follows when columns are left out.
    """
    at = _chosen_columns(columns, rows, importance, _ROOM_PX, _width_px)
    some, fewer = [columns[i] for i in at], [[row[i] for i in at] for row in rows]
    html = table_html(some, fewer, caption=caption, font_px=_FONT_PX, padding_px=_PADDING_PX)
    if len(at) == len(columns) or not rest:
        return f'<div style="overflow-x:auto">{html}</div>'
    return (
        f'<div style="overflow-x:auto">{html}</div><details style="margin-top:4px">'
        f"<summary>all {len(columns)} columns</summary>"
        f'<div style="overflow-x:auto">{table_html(columns, rows)}</div></details>'
    )


def compact_text(
    columns: Sequence[str | Column], rows: Sequence[Sequence[object]], importance: Sequence[int]
) -> str:
    """Write a table of 80 characters, and the names of the columns that it leaves out."""
    at = _chosen_columns(columns, rows, importance, _TERMINAL + 2, _width_chars)
    text = table_text([columns[i] for i in at], [[row[i] for i in at] for row in rows])
    left = [head.label for i, head in enumerate(heads_of(columns)) if i not in at]
    return f"{text}\nand {', '.join(left)}" if left else text


def _chosen_columns(
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[object]],
    importance: Sequence[int],
    room: float,
    width: Callable[[Column, Sequence[str]], float],
) -> list[int]:
    """Return the columns that fit, in their order; the most important one is always among them.

    If a column does not fit, later columns may use the room.
    """
    heads, cells = heads_of(columns), cells_of(rows)
    order = [*importance, *(i for i in range(len(columns)) if i not in importance)]
    chosen: list[int] = []
    for i in order:
        needed = width(heads[i], [row[i] for row in cells])
        if needed <= room or not chosen:
            room -= needed
            chosen.append(i)
    return sorted(chosen)


def _width_px(head: Column, cells: Sequence[str]) -> float:
    words = [text_width(word, _FONT_PX, bold=True) for word in head.label.split()]
    words.append(text_width(head.unit, _FONT_PX))
    words += [
        SENTENCE_EM * _FONT_PX if is_sentence(cell) else text_width(cell, _FONT_PX)
        for cell in cells
    ]
    return max(words) + 2 * _PADDING_PX


def _width_chars(head: Column, cells: Sequence[str]) -> float:
    title = f"{head.label} [{head.unit}]" if head.unit else head.label
    return max(map(len, (title, *cells))) + 2
