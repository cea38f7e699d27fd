"""A model of a running Triton as a model here: a step of an ensemble, and a target of every magic."""

from __future__ import annotations

from nbtriton.extensions.remote.backend import RemoteBackend
from nbtriton.extensions.remote.model import RemoteModel, remote

__all__ = ["RemoteBackend", "RemoteModel", "remote"]
