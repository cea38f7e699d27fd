"""Stand-ins for models without their backend or file: declared shapes, declared or recorded cost."""

from nbtriton.backends.stand_in.backend import stand_in_for

__all__ = ["stand_in_for"]
