"""The errors and warnings of nbtriton; `nbtriton.common.errors` draws their tree."""

from __future__ import annotations

from nbtriton.common import errors
from nbtriton.common.errors import *  # noqa: F403

__all__ = list(errors.__all__)
