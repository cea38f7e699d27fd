"""The pytorch backend. Importing it does not import torch: that happens with the first model."""

from nbtriton.backends.pytorch.backend import PyTorchBackend

__all__ = ["PyTorchBackend"]
