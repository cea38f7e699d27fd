"""The openvino backend. The package openvino is imported with the first model."""

from nbtriton.backends.openvino.backend import OpenVinoBackend

__all__ = ["OpenVinoBackend"]
