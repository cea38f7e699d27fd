"""Class attributes for the compiler of the core; see `scripts/compiled.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):  # noqa: ANN003, ANN201 - typed above
        """Return a class unchanged: only mypyc reads the decorator."""
        return lambda decorated: decorated
