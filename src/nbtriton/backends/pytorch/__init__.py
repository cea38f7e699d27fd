"""The pytorch backend. The package torch is imported with the first model."""

from nbtriton.backends.pytorch.backend import PyTorchBackend

__all__ = ["PyTorchBackend"]
