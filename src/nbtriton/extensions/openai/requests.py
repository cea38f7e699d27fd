"""Requests of OpenAI's API, read and checked, the prompt of a conversation, and both as tensors of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.common.packages import needed
from nbtriton.model.config import TensorSpec
from nbtriton.model.tensors import Array, as_array, to_numpy
from nbtriton.runtime.engine import ModelSignature

# Makes the prompt of a conversation.
ChatTemplate = Callable[[Sequence[Mapping[str, Any]]], str]

# Limit of a body: Python reads it in one call, in which no other thread runs. It holds a million tokens.
_LARGEST = 4 << 20
# Sampling options; passed on if the model has inputs for them.
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
# Fields that are never sampling options.
_EXCHANGE = frozenset({
    "model", "stream", "messages", "prompt", "echo", "store", "metadata", "response_format",
    "service_tier", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "user",
    "function_call", "functions", "suffix", "max_completion_tokens", "max_tokens", "logprobs",
    "top_logprobs", "best_of", "n", "logit_bias",
})  # fmt: skip
# The least and the greatest value, as Triton's schema of the API has them; None for any.
_RANGES: Mapping[str, tuple[float, float | None]] = {
    "best_of": (0, 20),
    "frequency_penalty": (-2, 2),
    "max_completion_tokens": (0, None),
    "max_tokens": (0, None),
    "min_tokens": (0, None),
    "n": (1, 128),
    "presence_penalty": (-2, 2),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "temperature": (0, 2),
    "top_p": (0, 1),
}


class ApiError(Exception):
    """An error of a request.

    Parameters
    ----------
    status : int
        HTTP status code.
    detail : object
        Member ``detail`` of the body: Triton's text, or the locations in a malformed body.
    """

    def __init__(self, status: int, detail: object) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt and its options.

    Parameters
    ----------
    model, prompt : str
    chat : bool
        Whether the response is a message, not a text.
    stream, include_usage, echo : bool
    max_tokens : int or None
        None for the server's default.
    stop : tuple of str
    sampling : mapping
        ``temperature`` and other sampling options, as sent.
    extra : mapping
        Other fields that a model may know, such as ``min_tokens``.
    """

    model: str
    prompt: str
    chat: bool = False
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


def read_completion(body: bytes | memoryview) -> TextRequest:
    """Read the body of ``/v1/completions``.

    Raises
    ------
    ApiError
        422 for a malformed body, 400 for an unsupported option, with Triton's text.
    """
    given = _Body(body)
    model = given.need("model", str)
    prompt = given.need("prompt", (str, list))
    if given.get("suffix", str) is not None:
        raise ApiError(400, "suffix is not currently supported")
    if not prompt:
        raise ApiError(400, "prompt must be non-empty")
    if not isinstance(prompt, str):
        raise ApiError(400, "only single string input is supported")
    best_of = given.get("best_of", int)
    if best_of is not None and best_of > 1:
        raise ApiError(
            400, f"Received best_of={best_of}, but only best_of=1 is currently supported"
        )
    if given.get("logit_bias", dict) is not None:
        raise ApiError(400, "logit bias is not supported")
    if given.get("logprobs", int) is not None:
        raise ApiError(400, "logprobs are currently available only for the vLLM backend")
    return given.request(model, prompt, max_tokens=given.get("max_tokens", int), chat=False)


def read_chat(body: bytes | memoryview, template: ChatTemplate) -> TextRequest:
    """Read the body of ``/v1/chat/completions``.

    Raises
    ------
    ApiError
        As `read_completion`.
    """
    given = _Body(body)
    model = given.need("model", str)
    messages = [_message(at, one) for at, one in enumerate(given.need("messages", list))]
    if not messages:
        raise ApiError(400, "messages must be non-empty")
    if given.get("logit_bias", dict) is not None:
        raise ApiError(400, "logit bias is not currently supported")
    if given.get("logprobs", bool) or given.get("top_logprobs", int) is not None:
        raise ApiError(400, "logprobs are currently available only for the vLLM backend")
    if given.get("tools", list) or given.get("tool_choice", (str, dict)) not in (None, "none"):
        raise ApiError(400, "having tools in the request requires --tool-call-parser to be set")
    longest = given.get("max_completion_tokens", int)
    if longest is None:
        longest = given.get("max_tokens", int)
    return given.request(model, template(messages), max_tokens=longest, chat=True)


def plain_chat(messages: Sequence[Mapping[str, Any]]) -> str:
    r"""Write a conversation as lines ``role: text``, ending with the assistant's role.

    >>> plain_chat([{"role": "user", "content": "Hello"}])
    'user: Hello\nassistant:'
    """
    lines = [f"{message['role']}: {message['content']}" for message in messages]
    return "\n".join([*lines, "assistant:"])


class _Body:
    """Type-checked access to the members of a body."""

    def __init__(self, body: bytes | memoryview) -> None:
        if len(body) > _LARGEST:
            raise ApiError(413, f"the body is larger than the limit of {_LARGEST} bytes")
        try:
            given = json.loads(bytes(body))
        except json.JSONDecodeError as error:
            raise malformed(("body",), f"JSON decode error: {error}", "json_invalid") from None
        except (ValueError, RecursionError):  # no UTF-8, too many digits, nested too deeply
            raise ApiError(400, "There was an error parsing the body") from None
        if not isinstance(given, dict):
            raise malformed(("body",), "Input should be a valid dictionary", "dict_type")
        self._given: dict[str, Any] = given

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a required member."""
        value = self.get(name, kind)
        if value is None:
            raise malformed(("body", name), "Field required", "missing")
        return value

    def get(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return an optional member; None if absent."""
        value = self._given.get(name)
        if value is None:
            return None
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if isinstance(value, bool) != (bool in kinds) or not isinstance(value, kinds):
            words = " or ".join(_WORDS[one] for one in kinds)
            raise malformed(("body", name), f"Input should be a valid {words}", "type_error")
        if name in _RANGES:
            _check_range(("body", name), self._given[name], *_RANGES[name])
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a member that is one string or a list of them; empty for none."""
        value = self.get(name, (str, list)) or ()
        if isinstance(value, str):
            return (value,)
        for at, one in enumerate(value):
            if not isinstance(one, str):
                raise malformed(("body", name, at), "Input should be a valid string", "string_type")
        return tuple(value)

    def request(
        self, model: str, prompt: str, *, max_tokens: int | None, chat: bool
    ) -> TextRequest:
        """Return the request, after the checks common to completions and chat."""
        stream = bool(self.get("stream", bool))
        options = self.get("stream_options", dict)
        if options is not None and not stream:
            raise ApiError(400, "`stream_options` can only be used when `stream` is True")
        n = self.get("n", int)
        if n is not None and n > 1:
            raise ApiError(
                400, f"Received n={n}, but only single choice (n=1) is currently supported"
            )
        sampling = {name: self.get(name, (int, float)) for name in _SAMPLING}
        self.get("min_tokens", int)
        known = {*_EXCHANGE, *_SAMPLING, "stop"}
        return TextRequest(
            model,
            prompt,
            chat=chat,
            stream=stream,
            include_usage=bool((options or {}).get("include_usage")),
            echo=bool(self.get("echo", bool)),
            max_tokens=max_tokens,
            stop=self.texts("stop"),
            sampling={name: value for name, value in sampling.items() if value is not None},
            extra={name: value for name, value in self._given.items() if name not in known},
        )


_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", list: "list", dict: "dictionary"}  # fmt: skip


def malformed(place: Sequence[str | int], text: str, kind: str) -> ApiError:
    """Return the error of a malformed body, in FastAPI's form."""
    return ApiError(422, [{"type": kind, "loc": list(place), "msg": text}])


def _check_range(
    place: Sequence[str | int], value: float, least: float, greatest: float | None
) -> None:
    """Refuse a number outside its range; NaN is outside of each."""
    if not value >= least:
        text = f"Input should be greater than or equal to {least}"
        raise malformed(place, text, "greater_than_equal")
    if greatest is not None and value > greatest:
        text = f"Input should be less than or equal to {greatest}"
        raise malformed(place, text, "less_than_equal")


def _message(at: int, message: object) -> Mapping[str, Any]:
    """Return a message with its content as one string."""
    place = ("body", "messages", at)
    if not isinstance(message, dict):
        raise malformed(place, "Input should be a valid dictionary", "dict_type")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise malformed((*place, "role"), "Field required", "missing")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        parts = [text for text in texts if isinstance(text, str)]
        if len(parts) != len(content):
            raise ApiError(400, "only text content is supported in messages")
        content = "".join(parts)
    if content is not None and not isinstance(content, str):
        raise malformed((*place, "content"), "Input should be a valid string", "string_type")
    return {**message, "content": content or ""}


def chat_template_of(tokenizer: str = "", template: str = "") -> ChatTemplate:
    """Return the function that makes a prompt of a conversation.

    Parameters
    ----------
    tokenizer : str
        Name or folder of a Hugging Face tokenizer with a chat template; needs ``transformers``.
    template : str
        A Jinja template, or a file with one, used instead; needs ``jinja2``. Without either a conversation
        becomes lines ``role: text``.

    Raises
    ------
    UnsupportedError
        A package is missing.
    InvalidArgumentError
        The tokenizer or the template cannot be read.
    """
    text = _text(template)
    if tokenizer:
        with needed("a tokenizer's chat template", package="transformers"):
            from transformers import AutoTokenizer  # type: ignore[import-not-found, unused-ignore]
        try:
            loaded: Any = AutoTokenizer.from_pretrained(tokenizer)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(
                f"cannot load the tokenizer '{tokenizer}': {error}"
            ) from None

        def of_tokenizer(messages: Sequence[Mapping[str, Any]]) -> str:
            prompt: str = loaded.apply_chat_template(
                conversation=list(messages), tokenize=False, add_generation_prompt=True,
                chat_template=text or None,
            )  # fmt: skip
            return prompt

        return of_tokenizer
    if not text:
        return plain_chat
    with needed("a chat template", package="jinja2"):
        from jinja2 import TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    try:
        made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(text)
    except TemplateSyntaxError as error:
        raise InvalidArgumentError(f"the chat template cannot be read: {error}") from None
    return lambda messages: made.render(messages=messages, add_generation_prompt=True)


def _text(template: str) -> str:
    """Return a template's text, or the text of its file."""
    if not template or "{" in template or "\n" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot read the chat template '{template}': {error.strerror}"
        ) from None


# A text request as the inputs of a model, as in Triton's frontend: one input for each option in the style of the
# TensorRT-LLM backend, one JSON string of all options in the style of the vLLM backend. Options without an input are
# left out.
TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
_EXCLUDES_INPUT = ("exclude_input_in_output", "sampling_param_exclude_input_from_output")


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of prompt tokens and generated tokens."""

    prompt_tokens: int
    completion_tokens: int

    def as_dict(self) -> dict[str, int]:
        """Return a response's member ``usage``."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


def is_text_model(signature: ModelSignature) -> bool:
    """Return whether a model has text as input and output."""
    return TEXT_INPUT in signature.inputs and TEXT_OUTPUT in signature.outputs


def inputs_of(
    request: TextRequest, signature: ModelSignature, default_max_tokens: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Return a model's inputs for a request.

    Raises
    ------
    ApiError
        The model is not a text model, or an option does not fit its input.
    """
    if not is_text_model(signature):
        raise ApiError(
            400,
            f"model '{signature.name}' is no text model: it needs an input '{TEXT_INPUT}' and an "
            f"output '{TEXT_OUTPUT}'",
        )
    longest = default_max_tokens if request.max_tokens is None else request.max_tokens
    values: dict[str, Any] = {
        **request.extra,
        **request.sampling,
        TEXT_INPUT: [request.prompt],
        "stream": [request.stream],
        "max_tokens": [longest],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
        "return_logprobs": [False],
        **{name: [not request.echo] for name in _EXCLUDES_INPUT},
    }
    if request.stop:
        values["stop_words"] = list(request.stop)
    if "sampling_parameters" in signature.inputs:
        options = {**request.extra, **request.sampling, "max_tokens": longest}
        if request.stop:
            options["stop"] = list(request.stop)
        values["sampling_parameters"] = [json.dumps(options)]
    batches = signature.max_batch_size > 0
    return {
        name: _tensor(spec, values[name], batches)
        for name, spec in signature.inputs.items()
        if name in values
    }


def _tensor(spec: TensorSpec, value: Any, batches: bool) -> np.ndarray[Any, Any]:
    elements = value if isinstance(value, list) else [value]
    try:
        if spec.datatype == "BYTES":
            elements = [str(element) for element in elements]
        # Range check: NumPy before 2 keeps the low bits.
        flat = to_numpy(as_array(elements, spec.datatype, name=spec.name))
        dims = [1 if dim == -1 else dim for dim in spec.dims]
        if dims:
            dims[-1] = len(elements) if spec.dims[-1] == -1 else dims[-1]
        return flat.reshape([1, *dims] if batches else dims)
    except (InvalidArgumentError, ValueError) as error:  # the latter of a shape
        why = getattr(error, "message", error)
        raise ApiError(400, f"'{spec.name}' does not fit the model's input: {why}") from None


def text_of(outputs: Mapping[str, Array]) -> bytes:
    """Return the text of a response as UTF-8, which may end within a character; empty without text.

    Raises
    ------
    ApiError
        The response has more than one string.
    """
    if TEXT_OUTPUT not in outputs:
        return b""
    found = to_numpy(outputs[TEXT_OUTPUT]).reshape(-1)
    if len(found) != 1:
        raise ApiError(500, f"Expected to find 1 string in the output, found {len(found)} instead.")
    text = found[0]
    return text if isinstance(text, bytes) else str(text).encode(errors="replace")


def usage_of(outputs: Mapping[str, Array]) -> Usage | None:
    """Return the usage that a response reports; None without one."""
    counts = []
    for name in ("num_input_tokens", "num_output_tokens"):
        if name not in outputs:
            return None
        found = to_numpy(outputs[name]).reshape(-1)
        try:
            counts.append(int(found[0]) if len(found) else 0)
        except (TypeError, ValueError, OverflowError):  # None, a text, NaN or infinity
            return None
    return Usage(*counts)
