"""The model that the tests of loads measure."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

__all__ = ["double"]


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}
