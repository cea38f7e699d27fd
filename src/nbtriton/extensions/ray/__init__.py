"""Instances on the nodes of a Ray cluster: what `isolation="ray"` means."""

from __future__ import annotations

from nbtriton.extensions.ray.backend import RayBackend

__all__ = ["RayBackend"]
