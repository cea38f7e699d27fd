"""Class attributes for the compiler of the core; see `scripts/compiled.py`."""

from __future__ import annotations

from _abc import _abc_init  # type: ignore[import-not-found]
from typing import TYPE_CHECKING

__all__ = ["mypyc_attr", "own_caches"]


def own_caches(cls: type) -> None:
    """Give a class whose base is an abstract one, such as `Mapping`, its own caches for `isinstance`.

    Compiled, it would share those of its base: what was asked of one of them would be answered for the other.
    """
    _abc_init(cls)


if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):  # noqa: ANN003, ANN201 - typed above
        """Return a class unchanged: only mypyc reads the decorator."""
        return lambda decorated: decorated
