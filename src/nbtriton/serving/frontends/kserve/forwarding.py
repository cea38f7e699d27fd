"""Header fields that become request parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Forwards", "forwards_of"]

_log = logging.getLogger("nbtriton.serving.frontends")

# True if a field of this name is forwarded.
Forwards = Callable[[bytes], bool]


def forwards_of(pattern: str) -> Forwards | None:
    """Return the predicate of a ``--http-header-forward-pattern``; None if it forwards nothing.

    As in Triton the syntax is RE2's, case is ignored, any part of the name may match, and a wrong
    pattern is logged and forwards nothing.
    """
    if not pattern:
        return None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(b"(?i)" + pattern.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        said = error.args[0] if error.args else b""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        _log.error("no header is forwarded: '%s' is no pattern of RE2: %s", pattern, reason)
        return None
    return lambda name: compiled.search(name) is not None
