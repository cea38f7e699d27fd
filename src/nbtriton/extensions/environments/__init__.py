"""Environments for models, made by uv or pip (docs/environments.md)."""

from __future__ import annotations

from nbtriton.extensions.environments.making import VirtualEnvironment, environment

__all__ = ["VirtualEnvironment", "environment"]
