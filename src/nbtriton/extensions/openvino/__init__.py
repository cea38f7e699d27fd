"""The openvino backend. The package openvino is imported with the first model."""

from nbtriton.extensions.openvino.backend import OpenVinoBackend

__all__ = ["OpenVinoBackend"]
