"""The pytorch backend. The package torch is imported with the first model."""

from nbtriton.extensions.pytorch.backend import PyTorchBackend

__all__ = ["PyTorchBackend"]
