"""The one server that a process shares: what the magics use."""

from __future__ import annotations

import atexit
import threading

from nbtriton.engine import Server

__all__ = ["close_server", "server"]

_lock = threading.Lock()
_server: Server | None = None


def server() -> Server:
    """Return the process-wide server; it is made on first use and closed at exit."""
    global _server
    with _lock:
        if _server is None:
            _server = Server()
            atexit.register(close_server)
        return _server


def close_server() -> None:
    """Close the process-wide server, if there is one; the next `server()` makes a new one."""
    global _server
    with _lock:
        closing, _server = _server, None
        atexit.unregister(close_server)
    if closing is not None:
        # One second: an exit or an unload must not hang on a model that does.
        closing.close(timeout_s=1.0)
