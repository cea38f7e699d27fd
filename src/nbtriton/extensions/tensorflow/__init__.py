"""The tensorflow backend. The package tensorflow is imported with the first model."""

from nbtriton.extensions.tensorflow.backend import TensorFlowBackend

__all__ = ["TensorFlowBackend"]
