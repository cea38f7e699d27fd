"""Verification against the real tritonserver: the same requests to it and to nbtriton."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbtriton.extensions.verify.find_server import RealServer
    from nbtriton.extensions.verify.verification import Verification

__all__ = ["verifier"]


def verifier(reference: RealServer | Path | str | None) -> Callable[..., Verification]:
    """Return `verify_repository` with a server, which is looked for now; see `find_server`."""
    from nbtriton.extensions.verify.find_server import find_server
    from nbtriton.extensions.verify.verification import verify_repository

    return partial(verify_repository, reference=find_server(reference))
