"""Triton's small demonstration backends, by name: `identity`, `repeat` and `square`.

They run no model: a configuration is all they need.
"""

from nbtriton.backends.demonstration.identity import IdentityBackend
from nbtriton.backends.demonstration.repeat import RepeatBackend
from nbtriton.backends.demonstration.square import SquareBackend

__all__ = ["IdentityBackend", "RepeatBackend", "SquareBackend"]
