"""gRPC's status codes, and the codes of errors."""

from __future__ import annotations

from nbtriton.common.errors import TritonError

__all__ = [
    "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNIMPLEMENTED",
    "UNKNOWN", "StatusError", "code_of",
]  # fmt: skip

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = range(7)
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14
_CODES = {
    "INVALID_ARG": INVALID_ARGUMENT,
    "NOT_FOUND": NOT_FOUND,
    "INTERNAL": INTERNAL,
    "UNSUPPORTED": UNIMPLEMENTED,
    "UNAVAILABLE": UNAVAILABLE,
    "ALREADY_EXISTS": ALREADY_EXISTS,
    "CANCELLED": CANCELLED,
    "UNKNOWN": UNKNOWN,
}


class StatusError(Exception):
    """End of a call with a gRPC status.

    Parameters
    ----------
    code : int
    text : str
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def code_of(error: TritonError) -> int:
    """Return the gRPC status code of an error."""
    return _CODES[error.status]
