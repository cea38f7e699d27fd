"""A DataFrame that is displayed like the other tables: compact, with units in the header."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

import pandas as pd

from nbtriton.drawing.numbers import count
from nbtriton.drawing.table import Column, compact_html, compact_text, in_units


class TableFrame(pd.DataFrame):
    """A DataFrame that is displayed as a table of nbtriton; results computed from it are plain DataFrames.

    Parameters
    ----------
    frame : pandas.DataFrame
    importance : iterable of str, optional
        The columns to show first, as many as fit a narrow page.
    empty : str, optional
        The text shown if there are no rows.
    most : int, optional
        Of more rows the last ones are shown.
    written : mapping of str to callable, optional
        How the values of some columns are written.
    always : int, optional
        So many columns are shown on a page of any width.
    """

    # pandas passes these on, also when pickled.
    _metadata = ["importance", "if_empty", "most", "written", "always"]  # noqa: RUF012 - as pandas has it

    def __init__(
        self,
        frame: Any = None,
        importance: Iterable[str] = (),
        *,
        empty: str = "",
        most: int = 0,
        written: Mapping[str, Callable[[Any], object]] | None = None,
        always: int = 0,
    ) -> None:
        super().__init__(frame)  # type: ignore[call-arg]  # its stubs have `__new__` alone
        self.importance = tuple(importance)
        self.if_empty = empty
        self.most = most
        self.written = written or {}
        self.always = always

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    def _table(self) -> tuple[list[Column], list[list[object]], list[int]]:
        names = [str(name) for name in self.columns]
        shown: pd.DataFrame = self.iloc[-self.most :]
        rows = [
            [
                self.written[name](value) if name in self.written else value
                for name, value in zip(names, row, strict=True)
            ]
            for row in shown.itertuples(index=False, name=None)
        ]
        columns, cells = in_units([Column.of(name) for name in names], rows)
        return columns, cells, [names.index(name) for name in self.importance if name in names]

    def compact_view(self, *, caption: str = "", rest: bool = True) -> tuple[str, str]:
        """Return it as HTML and as text; if `rest` is true, all columns follow on the page, folded."""
        if self.if_empty and not len(self):
            return f"<p>{escape(self.if_empty)}</p>", self.if_empty
        columns, cells, first = self._table()
        if len(cells) < len(self):
            caption = caption or f"the last {len(cells)} of {count(len(self))} rows"
        text = "\n".join(filter(None, (caption, compact_text(columns, cells, first))))
        html = compact_html(columns, cells, first, caption=caption, rest=rest, always=self.always)
        return html, text

    def _repr_html_(self) -> str:
        return self.compact_view()[0]

    def __repr__(self) -> str:
        return self.compact_view()[1]
