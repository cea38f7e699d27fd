"""The server of a client program, as its arguments describe it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Site", "Skipped"]


@dataclass(frozen=True, slots=True)
class Site:
    """A running server.

    Attributes
    ----------
    http, grpc, metrics : str
        Its addresses, ``host:port``.
    pid : int
        Its process.
    repository : Path
        The models that it serves.
    images : Path
        A folder of pictures.
    fresh_clients : int
        How many clients one after the other shall leave no trace.
    """

    http: str
    grpc: str
    metrics: str
    pid: int
    repository: Path
    images: Path
    fresh_clients: int


class Skipped(Exception):  # noqa: N818 - not an error
    """A program cannot run here; says what it needs."""
