"""What is brought to the owner of a batcher: `ModelRuntime` has what follows from each.

Numbers, as the compiled core calls what follows from them itself. A bound method would be made anew
for each fact and called as any function of Python's: 800 instructions, twice a step.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ABANDON",
    "CANCEL",
    "GRANTED",
    "IDLE",
    "IDLE_IN_SEQUENCE",
    "OVER",
    "REFUSE",
    "RETIRE",
    "SUBMIT",
    "SUBMIT_MANY",
    "UPDATE",
    "WAKE",
]

SUBMIT: Final = 0
SUBMIT_MANY: Final = 1
IDLE: Final = 2
IDLE_IN_SEQUENCE: Final = 3
OVER: Final = 4
CANCEL: Final = 5
WAKE: Final = 6
UPDATE: Final = 7
RETIRE: Final = 8
ABANDON: Final = 9
REFUSE: Final = 10
GRANTED: Final = 11
