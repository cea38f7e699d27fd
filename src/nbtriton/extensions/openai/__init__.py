"""OpenAI's completions and chat completions over text models, as in Triton's OpenAI-compatible frontend."""

from __future__ import annotations

import json
import logging
import time
import uuid
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

from nbtriton.backends.base import Response
from nbtriton.common.errors import NotFoundError, TritonError
from nbtriton.extensions.openai.requests import (
    ApiError,
    ChatTemplate,
    TextRequest,
    Usage,
    chat_template_of,
    inputs_of,
    is_text_model,
    plain_chat,
    read_chat,
    read_completion,
    text_of,
    usage_of,
)
from nbtriton.options import triton as kinds
from nbtriton.runtime.engine import BARE_FINAL, InferenceRequest, JoinBatch, ModelSignature
from nbtriton.serving.frontends.flags import flag
from nbtriton.serving.frontends.http1.connection import HttpEndpoint, RequestResponseCycle
from nbtriton.serving.frontends.http1.inference import LONG_JSON, HttpResponder
from nbtriton.serving.frontends.http1.response import JSON, HttpResponse
from nbtriton.serving.frontends.kserve.call import InferCall
from nbtriton.serving.frontends.service import Service

_Request = tuple[RequestResponseCycle, ModelSignature, InferCall, TextRequest]

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


_log = logging.getLogger("nbtriton.serving.frontends")

_EVENTS = b"text/event-stream; charset=utf-8"
_MODELS = "/v1/models"
# Statuses of client and server errors in Triton's frontend.
_CLIENTS_FAULT = frozenset({"INVALID_ARG", "NOT_FOUND", "ALREADY_EXISTS", "UNSUPPORTED"})


@dataclass(frozen=True, slots=True)
class OpenAiOptions:
    """Options of the OpenAI endpoint.

    Parameters
    ----------
    chat_template : callable
        Function that makes a prompt of a conversation.
    default_max_tokens : int
        For requests without a limit; Triton's ``--default-max-tokens``.

    Examples
    --------
    >>> options = OpenAiOptions(default_max_tokens=64)
    >>> with server.serve(
    ...     http_port=None, metrics_port=None, openai_port=0, openai=options
    ... ) as endpoints:
    ...     endpoints.openai_port > 0
    True
    """

    chat_template: ChatTemplate = field(default=plain_chat)
    default_max_tokens: int = 16


class OpenAiEndpoint(HttpEndpoint):
    """Handlers of ``/v1/completions``, ``/v1/chat/completions``, ``/v1/models``, and Triton's own two routes.

    Parameters
    ----------
    service : Service
    options : OpenAiOptions
    join_batch : callable, optional
        As for `RequestDispatcher.submit_many`.
    """

    title = "OpenAI"
    options_type = OpenAiOptions
    flags = (
        flag("openai-port", kinds.PORT, None, "answer /v1/completions, /v1/chat/completions and "
             "/v1/models of text models; 0 for any that is free", ours=True),
        flag("tokenizer", kinds.TEXT, "", "of Hugging Face: its chat template makes prompts of "
             "conversations", ours=True),
        flag("chat-template", kinds.TEXT, "", "or a template in Jinja's language, or its file", ours=True),
        flag("default-max-tokens", kinds.INTEGER, 16, "for requests that say nothing", ours=True),
    )  # fmt: skip

    def __init__(
        self, service: Service, options: OpenAiOptions, join_batch: JoinBatch | None = None
    ) -> None:
        self._service = service
        self._options = options
        self._join_batch = join_batch
        self._created_s = int(time.time())
        self._readers: dict[str, Callable[[bytes | memoryview], TextRequest]] = {
            "/v1/completions": read_completion,
            "/v1/chat/completions": lambda body: read_chat(body, options.chat_template),
        }

    @classmethod
    def options_of(cls, arguments: SimpleNamespace) -> dict[str, OpenAiOptions]:
        """Return the argument of `nbtriton.Server.serve` that the flags set."""
        template = chat_template_of(arguments.tokenizer, arguments.chat_template)
        return {"openai": OpenAiOptions(template, arguments.default_max_tokens)}

    def handle(self, cycles: Sequence[RequestResponseCycle]) -> None:
        """Answer requests that arrived together, each now or later; never raises."""
        for cycle in cycles:
            if len(cycle.body) > LONG_JSON:
                cycle.work(partial(self._answer, cycle))
            else:
                self._answer(cycle)

    def _answer(self, cycle: RequestResponseCycle) -> None:
        try:
            self._handle(cycle)
        except ApiError as error:
            cycle.respond(_failure(error))
        except TritonError as error:
            cycle.respond(_failure(_api_error(error)))
        except Exception as error:
            _log.exception("a request to %s failed", cycle.head.path)
            cycle.respond(_failure(ApiError(500, f"{type(error).__name__}: {error}")))

    def _handle(self, cycle: RequestResponseCycle) -> None:
        path, method = cycle.head.path, cycle.head.method
        reader = self._readers.get(path)
        wanted = "POST" if reader is not None else "GET"
        known = reader is not None or path in (_MODELS, "/health/ready", "/metrics")
        if not known and not path.startswith(f"{_MODELS}/"):
            raise ApiError(404, "Not Found")
        if method != wanted:
            raise ApiError(405, "Method Not Allowed")
        if reader is not None:
            self._complete(cycle, reader(cycle.body))
        elif path == "/health/ready":
            if not self._service.is_ready():
                raise ApiError(
                    400, "Attached inference engine is not ready for inference requests."
                )
            cycle.respond(HttpResponse())
        elif path == "/metrics":
            cycle.respond(
                HttpResponse(200, b"text/plain; charset=utf-8", (self._service.metrics(),))
            )
        elif path == _MODELS:
            listed = [model_object(name, self._created_s) for name in self._text_models()]
            cycle.respond(_json({"object": "list", "data": listed}))
        else:
            name = unquote(path.removeprefix(f"{_MODELS}/"))
            if name not in self._text_models():
                raise ApiError(404, f"Unknown model: {name}")
            cycle.respond(_json(model_object(name, self._created_s)))

    def _text_models(self) -> list[str]:
        server = self._service.server
        ready = {model.name for model in server.models() if model.state == "READY"}
        return sorted(
            name for name in ready if is_text_model(server.engine.inspection.signature(name, -1))
        )

    def _complete(self, cycle: RequestResponseCycle, request: TextRequest) -> None:
        # A client that closes its connection cancels the generation.
        cycle.ends_with_client = True
        try:
            signature = self._service.server.engine.inspection.signature(request.model, -1)
        except TritonError as error:
            if isinstance(error, NotFoundError):
                raise ApiError(400, f"Unknown model: {request.model}") from None
            raise
        call = InferCall(arrays=inputs_of(request, signature, self._options.default_max_tokens))
        kind = StreamResponder if request.stream else WholeResponder
        responder = kind(cycle, signature, call, request)
        try:
            (accepted,) = self._service.server.engine.dispatcher.submit_many(
                [responder.submission()], self._join_batch
            )
        except BaseException:
            responder.close()
            raise
        responder.submitted(accepted)


class _TextResponder(HttpResponder):
    """Responder of a text request."""

    __slots__ = ("_usage", "writer")

    def __init__(
        self,
        cycle: RequestResponseCycle,
        signature: ModelSignature,
        call: InferCall,
        request: TextRequest,
    ) -> None:
        super().__init__(cycle, signature, -1, call)
        self.writer = ResponseWriter(request)
        self._usage: Usage | None = None

    def submitted(self, request: InferenceRequest | TritonError) -> None:
        """Handle the accepted request, or the error that refuses it."""
        if isinstance(request, TritonError):
            self.refuse(_failure(_api_error(request)))
        else:
            super().submitted(request)

    def count(self, response: Response) -> None:
        """Add the tokens of a response; the prompt's tokens, repeated in each, count once."""
        found = usage_of(response.outputs)
        if found is not None:
            before = self._usage.completion_tokens if self._usage is not None else 0
            self._usage = Usage(found.prompt_tokens, before + found.completion_tokens)


class WholeResponder(_TextResponder):
    """Responder with one response, for requests that do not stream."""

    __slots__ = ("_error", "_texts")

    def __init__(self, *request: *_Request) -> None:
        super().__init__(*request)
        self._texts: list[bytes] = []
        self._error: ApiError | None = None

    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:  # noqa: ARG002
        if response.error is not None:
            self._error = _api_error(response.error)
        elif response is not BARE_FINAL:
            try:
                self._texts.append(text_of(response.outputs))
                self.count(response)
            except ApiError as error:
                self._error = error
        if final:
            self.close()
            self.cycle.respond(self._whole())

    def _whole(self) -> HttpResponse:
        error = self._error
        if error is None and len(self._texts) != 1:
            error = ApiError(
                500, f"Unexpected number of responses: {len(self._texts)}, expected 1."
            )
        if error is not None:
            return _failure(error)
        text = self._texts[0].decode(errors="replace")
        return HttpResponse(200, JSON, (self.writer.whole(text, self._usage),))


class StreamResponder(_TextResponder):
    """Responder with a server-sent event for each response; a split character belongs to the later one."""

    __slots__ = ("_begun", "_decoder")

    def __init__(self, *request: *_Request) -> None:
        super().__init__(*request)
        self._begun = False
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:  # noqa: ARG002
        cycle, writer = self.cycle, self.writer
        error = None if response.error is None else _api_error(response.error)
        text = ""
        try:
            if error is None:
                text = self._decoder.decode(text_of(response.outputs), final)
            self.count(response)
        except ApiError as found:
            error = found
        if error is not None and not self._begun and final:
            self.refuse(_failure(error))
            return
        if not self._begun:
            self._begun = True
            cycle.begin(200, _EVENTS)
            if beginning := writer.begin():
                cycle.chunk(beginning)
        if error is not None:
            cycle.chunk(writer.error(str(error.detail)))
        else:
            cycle.chunk(writer.chunk(text, final=final))
        if final:
            if writer.request.include_usage and self._usage is not None:
                cycle.chunk(writer.usage(self._usage))
            if error is None:
                cycle.chunk(DONE)
            cycle.end()
            self.close()


def _api_error(error: TritonError) -> ApiError:
    return ApiError(400 if error.status in _CLIENTS_FAULT else 500, error.message)


def _failure(error: ApiError) -> HttpResponse:
    # ``detail`` is Triton's member, ``error`` the one that OpenAI's clients read.
    words = error.detail if isinstance(error.detail, str) else json_bytes(error.detail).decode()
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    known = {"message": words, "type": kind, "param": None, "code": error.status}
    return HttpResponse(error.status, JSON, (json_bytes({"detail": error.detail, "error": known}),))


def _json(value: object) -> HttpResponse:
    return HttpResponse(200, JSON, (json_bytes(value),))
