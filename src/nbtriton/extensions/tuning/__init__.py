"""The search for the best configuration, by simulation and measurement (docs/prediction.md)."""

from __future__ import annotations
