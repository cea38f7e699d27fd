"""The messages of Triton's gRPC service."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nbtriton.model.config._proto import is_repeated, message_classes

__all__ = ["is_repeated", "messages"]

# By name, such as `messages.ModelInferRequest`; the classes are made at run time.
messages: Any = SimpleNamespace(**message_classes("grpc_service.proto"))
