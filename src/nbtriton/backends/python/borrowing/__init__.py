"""Whether a model only borrows its inputs: reads them, and has forgotten them once it has answered.

Callers' arrays reach a model as read-only views. Triton's are writable, so a model that may write
into one gets a copy. What cannot write, nor keep what it was given, needs none; and that is told
from its source when it is loaded, by following the arrays through it. Whatever is not understood
counts as a write; only operators are taken at their word: they make something new of their operands.
If that were ever wrong, the model's write would fail: the array is read-only.
"""

from nbtriton.backends.python.borrowing.follow import borrows, function_borrows

__all__ = ["borrows", "function_borrows"]
