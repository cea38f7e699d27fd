"""Tables for pages and terminals: units in the head, numbers aligned, no script; on narrow pages the most important columns first."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from nbtriton.drawing.numbers import MINUS, MISSING, THIN, count, measure
from nbtriton.drawing.scene import text_width

# Endings of column names that are units, longest first.
_UNITS = (
    ("_per_s", "1/s"),
    ("_percent", "%"),
    ("_bytes", "B"),
    ("_mib", "MiB"),
    ("_ms", "ms"),
    ("_us", "µs"),
    ("_ns", "ns"),
    ("_s", "s"),
)
_MS_FROM_US = 1000.0
# Numbers from the first to the second have three decimals.
_LEAST, _SHORT = 0.0005, 0.1
# Sentences are broken into lines; a column of them is this wide.
SENTENCE_EM = 14
_SENTENCE = 30  # characters
_LONG_NAME = 24  # characters
_RULE = "1px solid rgba(128,128,128,.45)"
_HAIR = "1px solid rgba(128,128,128,.22)"


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column: its name, its unit, and whether that is the one in which a person sets it."""

    label: str
    unit: str = ""
    setting: bool = False

    @classmethod
    def of(cls, name: str) -> Column:
        """Read a name such as ``p99_ms`` as ``p99`` in milliseconds."""
        if name == "infer_per_s":
            return cls("throughput", "infer/s")
        if name.startswith("us_per_"):
            return cls(name.removeprefix("us_").replace("_", " "), "µs")
        for ending, unit in _UNITS:
            if name.endswith(ending) and name != ending:
                words = name.removesuffix(ending).replace("_", " ")
                return cls(words, unit, words.endswith("max queue delay"))
        return cls(name.replace("_", " "))


def in_units(
    columns: Sequence[Column], rows: Sequence[Sequence[object]]
) -> tuple[list[Column], list[list[object]]]:
    """Convert all columns of microseconds to milliseconds if the longest of their times is 1 ms or more."""
    columns, cells = list(columns), [list(row) for row in rows]
    us = [at for at, one in enumerate(columns) if one.unit == "µs" and not one.setting]
    times = [row[at] for row in cells for at in us]
    known = [time for time in times if isinstance(time, int | float) and math.isfinite(time)]
    if max(known, default=0.0) < _MS_FROM_US:
        return columns, cells
    for at in us:
        columns[at] = Column(columns[at].label, "ms")
        for row in cells:
            value = row[at]
            # To the microsecond: what is far shorter than its neighbours needs no third digit.
            row[at] = round(value / _MS_FROM_US, 3) if isinstance(value, int | float) else value
    return columns, cells


class TableView(ABC):
    """Base of objects that are displayed as a table, in a terminal and on a page."""

    __slots__ = ()

    @abstractmethod
    def _table(self) -> tuple[Sequence[str | Column], Sequence[Sequence[object]], str]:
        """Return the columns, the rows and the caption."""

    def __repr__(self) -> str:
        columns, rows, caption = self._table()
        return table_text(columns, rows, caption=caption)

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        columns, rows, caption = self._table()
        return {
            "text/plain": table_text(columns, rows, caption=caption),
            "text/html": table_html(columns, rows, caption=caption),
        }


def table_html(
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[object]],
    *,
    caption: str = "",
    cls: str = "nbt-table",
    font_px: float | None = None,
    padding_px: int = 10,
    keys: Sequence[str] = (),
) -> str:
    """Write a table as HTML that takes its colours from the page.

    Parameters
    ----------
    columns : sequence of str or Column
        A string is read by `Column.of`: ``"p99_ms"`` is headed ``p99`` with the unit ``ms``.
    rows : sequence of sequences
        The cells. Whole numbers are written exactly, others with three significant digits or decimals.
    caption : str, optional
        Written above the table.
    font_px : float, optional
        The page's own if not given.
    padding_px : int
        At the left and the right of each cell.
    keys : sequence of str, optional
        Link the rows to the points of a chart.
    """
    heads = heads_of(columns)
    cells, numeric = cells_of(rows), _numeric(len(columns), rows)
    parts = []
    size = "" if font_px is None else f"font-size:{font_px:g}px;"
    if caption:
        parts.append(f'<div style="font-weight:600;margin:.3em 0">{escape(caption)}</div>')
    parts.append(
        f'<table class="{escape(cls)}" style="border-collapse:collapse;color:inherit;{size}'
        'font-variant-numeric:tabular-nums"><thead><tr>'
    )
    sentences = [any(is_sentence(row[at]) for row in cells) for at in range(len(heads))]
    # Beside long names a sentence would be broken after every word; three columns must fit the page.
    width_em = SENTENCE_EM if sum(sentences) < 3 else 9
    for head, right, sentence in zip(heads, numeric, sentences, strict=True):
        least = f"min-width:{width_em}em;" if sentence else ""
        unit = ""
        if head.unit:
            unit = f' <br><span style="font-weight:400;opacity:.8">{escape(head.unit)}</span>'
        parts.append(
            f'<th scope="col" style="{_align(right)}{least}padding:4px {padding_px}px;vertical-align:bottom;'
            f'border-bottom:{_RULE}">{escape(head.label)}{unit}</th>'
        )
    parts.append("</tr></thead><tbody>")
    for at, row in enumerate(cells):
        parts.append(f'<tr data-point="{escape(keys[at])}">' if keys else "<tr>")
        parts.extend(
            f'<td style="{_align(right)}padding:3px {padding_px}px;border-bottom:{_HAIR}">{_breakable(cell)}</td>'
            for cell, right in zip(row, numeric, strict=True)
        )
        parts.append("</tr>")
    parts.append("</tbody></table>")
    return "".join(parts)


def notes_html(notes: Sequence[str]) -> str:
    """Return notes as a list."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<ul>{items}</ul>"


class Link(str):
    """The text of a cell that leads to a place of its page."""

    __slots__ = ("href",)
    href: str

    @classmethod
    def to_request(cls, number: int, process: int) -> Link:
        """Return the number of a request of a kernel's process; a timeline of it on the page follows the link."""
        link = cls(number)
        link.href = f"#nbt-{process}-{number}"
        return link


class Moment(float):
    """A time in milliseconds that is written to the microsecond: moments of one table lie close together."""

    __slots__ = ()


def _breakable(cell: str) -> str:
    """Escape a cell; a long name, such as a field's, may be broken after dots and underscores."""
    words = " ".join([_breakable_word(escape(word)) for word in cell.split(" ")])
    if not isinstance(cell, Link):
        return words
    return f'<a href="{escape(cell.href)}" title="shown in the %triton_timeline of this page" style="color:inherit">{words}</a>'


def _breakable_word(word: str) -> str:
    if len(word) < _LONG_NAME:
        return word
    return word.replace(".", ".<wbr>").replace("_", "_<wbr>")


def table_text(
    columns: Sequence[str | Column], rows: Sequence[Sequence[object]], *, caption: str = ""
) -> str:
    """Write a table as aligned text; parameters as in `table_html`."""
    heads = heads_of(columns)
    cells, numeric = cells_of(rows), _numeric(len(columns), rows)
    titles = [f"{head.label} [{head.unit}]" if head.unit else head.label for head in heads]
    widths = [
        max(map(_columns_of, column), default=0) for column in zip(titles, *cells, strict=True)
    ]
    lines = [caption] if caption else []
    for row in (titles, *cells):
        padded = []
        for cell, width, right in zip(row, widths, numeric, strict=True):
            space = " " * (width - _columns_of(cell))
            padded.append(space + cell if right else cell + space)
        lines.append("  ".join(padded).rstrip())
    lines.insert(1 + bool(caption), "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def is_sentence(cell: str) -> bool:
    """Return True for a cell that a page breaks into lines."""
    return len(cell) > _SENTENCE and " " in cell


def heads_of(columns: Sequence[str | Column]) -> list[Column]:
    """Return the heads of columns; strings are read by `Column.of`."""
    return [one if isinstance(one, Column) else Column.of(one) for one in columns]


def cells_of(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    """Return the cells as they are written."""
    return [[_cell(value) for value in row] for row in rows]


def _numeric(columns: int, rows: Sequence[Sequence[object]]) -> list[bool]:
    """Return for each column whether it has only numbers."""
    return [
        bool(rows) and all(_is_number(row[at]) or row[at] is None for row in rows)
        for at in range(columns)
    ]


def _is_number(value: object) -> bool:
    # Also NumPy's scalars, without importing NumPy.
    return hasattr(value, "__float__") and not isinstance(value, bool | str)


def _cell(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, Link):
        return value
    if isinstance(value, Moment):
        return f"{value:,.3f}".replace(",", THIN)
    if isinstance(value, bool) or not _is_number(value):
        return str(value)
    if hasattr(value, "__index__"):
        return count(int(value))
    number = float(value)  # type: ignore[arg-type]
    # Beside numbers of its column a third decimal is enough.
    short = _LEAST <= abs(number) < _SHORT
    return f"{number:.3f}".replace("-", MINUS) if short else measure(number)


def _align(right: bool) -> str:
    return f"text-align:{'right' if right else 'left'};"


def _columns_of(text: str) -> int:
    """Count terminal columns: East Asian wide characters take two."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


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
    keys: Sequence[str] = (),
    always: int = 0,
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
    keys : sequence of str, optional
        As in `table_html`.
    always : int, optional
        So many of the most important columns are shown whether they fit or not.
    """
    at = _chosen_columns(columns, rows, importance, _ROOM_PX, _width_px, always)
    some, fewer = [columns[i] for i in at], [[row[i] for i in at] for row in rows]
    html = table_html(
        some, fewer, caption=caption, font_px=_FONT_PX, padding_px=_PADDING_PX, keys=keys
    )
    if len(at) == len(columns) or not rest:
        return f'<div style="overflow-x:auto">{html}</div>'
    return (
        f'<div style="overflow-x:auto">{html}</div><details style="margin-top:4px">'
        f"<summary>all {len(columns)} columns</summary>"
        f'<div style="overflow-x:auto">{table_html(columns, rows, keys=keys)}</div></details>'
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
    always: int = 0,
) -> list[int]:
    """Return the columns that fit, in their order; the most important one is always among them.

    If a column does not fit, later columns may use the room.
    """
    heads, cells = heads_of(columns), cells_of(rows)
    order = [*importance, *(i for i in range(len(columns)) if i not in importance)]
    chosen: list[int] = []
    for i in order:
        needed = width(heads[i], [row[i] for row in cells])
        if needed <= room or len(chosen) < max(1, always):
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
