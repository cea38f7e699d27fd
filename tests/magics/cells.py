"""Cells that several tests run."""

from __future__ import annotations

DOUBLE = """\
def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}
"""
