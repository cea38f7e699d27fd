"""The onnxruntime backend. The package onnxruntime is imported with the first model."""

from nbtriton.extensions.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
