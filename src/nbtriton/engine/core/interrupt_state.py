"""What the shield of the main thread knows: a module of its own, as the shield stays Python.

The compiled core lifts the shield around each call of a model, which as attributes of a class of
Python's took 1% of a step of an ensemble.
"""

from __future__ import annotations

from threading import main_thread

__all__ = ["Raised"]


class Raised:
    """How the shield stands.

    Attributes
    ----------
    main : int
        The main thread: the one that interrupts come up in.
    depth : int
        How often it is raised. It may be assigned directly: a plain store is the one thing that no
        interrupt can come between, which is what lifting the shield inside try/finally needs.
    pending : bool
        True while an interrupt is kept.
    """

    __slots__ = ("depth", "main", "pending")

    def __init__(self) -> None:
        self.main: int = main_thread().ident or 0
        self.depth = 0
        self.pending = False
