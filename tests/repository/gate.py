"""Events that a model and its test share: both import this module."""

from __future__ import annotations

import threading

entered = threading.Event()
opened = threading.Event()
both = threading.Barrier(2)
polled = threading.Event()
end = threading.Event()
