"""The fil backend: tree models. The package treelite is imported with the first model."""

from nbtriton.extensions.fil.backend import FilBackend

__all__ = ["FilBackend"]
