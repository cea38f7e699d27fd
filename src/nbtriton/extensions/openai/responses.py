"""Responses of OpenAI's API: objects, chunks of a stream, errors."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from nbtriton.extensions.openai.requests import TextRequest
from nbtriton.extensions.openai.tensors import Usage

DONE = b"data: [DONE]\n\n"
_OWNER = "Triton Inference Server"


def json_bytes(value: object) -> bytes:
    """Write a value as JSON in one line; half of a surrogate pair becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def event(value: object) -> bytes:
    """Write a server-sent event."""
    return b"data: %s\n\n" % json_bytes(value)


def model_object(name: str, created_s: int) -> dict[str, Any]:
    """Return a model as ``/v1/models`` lists it."""
    return {"id": name, "created": created_s, "object": "model", "owned_by": _OWNER}


@dataclass(slots=True)
class ResponseWriter:
    """Writer of the responses to one request, which share an id and a time."""

    request: TextRequest
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid1()}")
    created_s: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, usage: Usage | None) -> bytes:
        """Return the response to a request that does not stream."""
        kind = "chat.completion" if self.request.chat else "text_completion"
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
        if self.request.chat:
            choice["message"] = {"role": "assistant", "content": text, "tool_calls": None}
        else:
            choice["text"] = text
        return json_bytes(self._object(kind, [choice]) | {"usage": usage and usage.as_dict()})

    def begin(self) -> bytes:
        """Return the beginning of a stream: for chat, a chunk with the role."""
        return self._chunk({"role": "assistant", "content": ""}) if self.request.chat else b""

    def chunk(self, text: str, *, final: bool) -> bytes:
        """Return the chunk of a response."""
        reason = "stop" if final else None
        if self.request.chat:
            return self._chunk({"role": None, "content": text}, reason)
        choice = {"finish_reason": reason, "index": 0, "logprobs": None, "text": text}
        return event(self._object("text_completion", [choice]) | {"usage": None})

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, with the usage."""
        kind = "chat.completion.chunk" if self.request.chat else "text_completion"
        return event(self._object(kind, []) | {"usage": usage.as_dict()})

    def error(self, message: str) -> bytes:
        """Return the event of a stream that fails after it has begun."""
        return event({"error": {"message": message, "type": "server_error"}})

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event(self._object("chat.completion.chunk", [choice]) | {"usage": None})

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id, "choices": choices, "created": self.created_s,
            "model": self.request.model, "system_fingerprint": None, "object": kind,
        }  # fmt: skip
