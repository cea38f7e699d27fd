"""The OpenAI endpoint, with OpenAI's own client and with bare requests."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.openai import OpenAiOptions
from nbtriton.extensions.openai.requests import (
    ApiError,
    chat_template_of,
    read_chat,
    read_completion,
)
from tests.frontends.models import WORDS_CONFIG
from tests.until import until


class Words:
    """Says the prompt's words again, one a response where it streams."""

    seen: list[dict[str, Any]] = []
    cancelled = threading.Event()

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            type(self).seen.append(given)
            sender = request.get_response_sender()
            words = given["text_input"].reshape(-1)[0].decode().split()
            limit = int(given["max_tokens"].reshape(-1)[0])
            if words[0] == "fail":
                error = pb_utils.TritonError("no words today", pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error), flags=1)
                continue
            if words[0] == "hold":
                sender.send(self._response(pb_utils, "held", len(words), 1))
                if until(sender.is_cancelled):
                    self.cancelled.set()
                sender.send(flags=1)
                continue
            if words[0] == "odd":
                raise ValueError("a file named \udcff")
            if words[0] == "bytes":
                for byte in "a\N{EURO SIGN}".encode() + b"\xe2":
                    sender.send(self._response(pb_utils, bytes([byte]), 1, 1))
                sender.send(flags=1)
                continue
            if words[0] == "twice":
                sender.send(self._response(pb_utils, "one", 1, 1))
                sender.send(self._response(pb_utils, "two", 1, 1), flags=1)
                continue
            parts = [f"{word} " for word in words[:limit]]
            if not given["stream"].reshape(-1)[0]:
                parts = ["".join(parts)]
            for part in parts:
                count = len(part.split())
                sender.send(self._response(pb_utils, part, len(words), count))
            sender.send(flags=1)

    def _response(self, pb_utils, text, given, made):
        data = text if isinstance(text, bytes) else text.encode()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([data], np.object_)),
                pb_utils.Tensor("num_input_tokens", np.array([given], np.int32)),
                pb_utils.Tensor("num_output_tokens", np.array([made], np.int32)),
            ]
        )


class Styled:
    """A model in vLLM's style: answers with the options that it got."""

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        out = []
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            text = given["sampling_parameters"].reshape(-1)[0]
            out.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("text_output", np.array([[text]], np.object_))]
                )
            )
        return out


STYLED_CONFIG = """
name: "styled" backend: "python" max_batch_size: 8
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.fixture(scope="module")
def endpoints() -> Iterator[Any]:
    with nt.Server() as server:
        server.load(WORDS_CONFIG, model=Words)
        server.load(STYLED_CONFIG, model=Styled)
        server.load(
            'name: "numbers" backend: "identity" max_batch_size: 0 '
            'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } '
            'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }'
        )
        yield server.serve(http_port=None, metrics_port=None, openai_port=0)


@pytest.fixture(scope="module")
def connect(endpoints) -> Callable[[], Any]:
    from openai import OpenAI

    base = f"http://127.0.0.1:{endpoints.openai_port}/v1"
    return lambda: OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(connect) -> Iterator[Any]:
    with connect() as client:
        yield client


def get(endpoints: Any, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{endpoints.openai_port}{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status, text = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    kind = text[:1]
    return status, json.loads(text) if kind in (b"{", b"[") else text.decode()


def test_models_are_those_that_take_and_give_text(client):
    assert [model.id for model in client.models.list()] == ["styled", "words"]
    assert client.models.retrieve("words").owned_by == "Triton Inference Server"
    from openai import NotFoundError

    with pytest.raises(NotFoundError, match="Unknown model: numbers"):
        client.models.retrieve("numbers")


def test_a_completion_and_its_usage(client):
    found = client.completions.create(
        model="words", prompt="one two three four", max_tokens=3, temperature=0.5, stop=["x", "yz"]
    )
    assert found.choices[0].text == "one two three "
    assert found.choices[0].finish_reason == "stop"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (4, 3)
    assert found.object == "text_completion"
    assert found.id.startswith("cmpl-")
    given = Words.seen[-1]
    assert given["temperature"].tolist() == [0.5]
    assert given["stop_words"].tolist() == [b"x", b"yz"]
    assert not given["stream"][0]


def test_a_completion_streams_a_chunk_a_response(client):
    chunks = list(
        client.completions.create(
            model="words", prompt="one two three", stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    *texts, usage = chunks
    assert [chunk.choices[0].text for chunk in texts] == ["one ", "two ", "three ", ""]
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None, None, None, "stop"]
    assert usage.choices == []
    assert usage.usage.total_tokens == 6
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_is_a_prompt_by_the_template(client):
    messages: list[Any] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "good "}, {"type": "text", "text": "day"}]},
    ]  # fmt: skip
    found = client.chat.completions.create(
        model="words", messages=messages, max_completion_tokens=50
    )
    message = found.choices[0].message
    assert message.role == "assistant"
    assert message.content == "system: be brief user: good day assistant: "
    assert Words.seen[-1]["text_input"].tolist() == [
        b"system: be brief\nuser: good day\nassistant:"
    ]


def test_a_chat_streams_its_role_first(client):
    messages: list[Any] = [{"role": "user", "content": "good day"}]
    first, *chunks = client.chat.completions.create(model="words", messages=messages, stream=True)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert (
        "".join(chunk.choices[0].delta.content for chunk in chunks) == "user: good day assistant: "
    )
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_model_in_vllms_style_gets_its_options_as_json(client):
    found = client.completions.create(
        model="styled", prompt="x", top_p=0.5, stop="end", extra_body={"min_tokens": 2}
    )
    assert json.loads(found.choices[0].text) == {
        "min_tokens": 2, "top_p": 0.5, "max_tokens": 16, "stop": ["end"],
    }  # fmt: skip
    assert found.usage is None


def test_a_model_without_a_stream_streams_its_one_response(client):
    chunks = list(client.completions.create(model="styled", prompt="x", stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == ["stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_model_before_any_text_is_a_status(client, stream):
    from openai import BadRequestError

    with pytest.raises(BadRequestError, match="no words today"):
        list(client.completions.create(model="words", prompt="fail now", stream=stream))


def test_a_client_that_leaves_cancels_its_request(connect):
    with connect() as client:
        stream = client.completions.create(model="words", prompt="hold on", stream=True)
        assert next(iter(stream)).choices[0].text == "held"
        stream.close()
    assert Words.cancelled.wait(60)


def test_two_responses_to_a_request_that_does_not_stream_are_an_error(client):
    from openai import InternalServerError

    with pytest.raises(InternalServerError, match="Unexpected number of responses: 2"):
        client.completions.create(model="words", prompt="twice")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"prompt": "x"}, 422, "Field required"),
        ({"model": "words"}, 422, "Field required"),
        ({"model": "words", "prompt": 3}, 422, "valid string or list"),
        ({"model": "words", "prompt": "x", "max_tokens": "9"}, 422, "valid integer"),
        ({"model": "words", "prompt": "x", "stream": 1}, 422, "valid boolean"),
        ([], 422, "valid dictionary"),
        ({"model": "words", "prompt": ""}, 400, "prompt must be non-empty"),
        ({"model": "words", "prompt": ["a", "b"]}, 400, "only single string input is supported"),
        ({"model": "words", "prompt": "x", "n": 2}, 400, "only single choice (n=1)"),
        ({"model": "words", "prompt": "x", "best_of": 2}, 400, "best_of=2"),
        ({"model": "words", "prompt": "x", "suffix": "y"}, 400, "suffix is not currently supported"),
        ({"model": "words", "prompt": "x", "logit_bias": {}}, 400, "logit bias is not supported"),
        ({"model": "words", "prompt": "x", "stream_options": {}}, 400, "`stream` is True"),
        ({"model": "nope", "prompt": "x"}, 400, "Unknown model: nope"),
        ({"model": "numbers", "prompt": "x"}, 400, "is no text model"),
        ({"model": "words", "prompt": "x", "max_tokens": 2**40}, 400, "'max_tokens' does not fit"),
        ({"model": "\ud800", "prompt": "x"}, 400, "Unknown model: ?"),
        ({"model": "words", "prompt": "\ud800"}, 400, "'text_input' does not fit"),
        ({"model": "words", "prompt": "x", "n": 0}, 422, "greater than or equal to 1"),
        ({"model": "words", "prompt": "x", "max_tokens": -1}, 422, "greater than or equal to 0"),
        ({"model": "words", "prompt": "x", "min_tokens": -1}, 422, "greater than or equal to 0"),
        ({"model": "words", "prompt": "x", "top_p": 1.5}, 422, "less than or equal to 1"),
        ({"model": "words", "prompt": "x", "temperature": float("nan")}, 422, "equal to 0"),
        ({"model": "words", "prompt": "x", "stop": ["a", 1]}, 422, "valid string"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_is_refused(endpoints, body, status, text):
    found, reply = get(endpoints, "/v1/completions", body)
    assert found == status
    assert text in json.dumps(reply["detail"])


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "words"}, 422, "messages"),
        ({"model": "words", "messages": []}, 400, "messages must be non-empty"),
        ({"model": "words", "messages": ["x"]}, 422, "valid dictionary"),
        ({"model": "words", "messages": [{"content": "x"}]}, 422, "role"),
        ({"model": "words", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
         "only text content"),
        ({"model": "words", "messages": [{"role": "user", "content": {"a": 1}}]}, 422, "valid string"),
        ({"model": "words", "messages": [{"role": "user"}], "tools": [{}]}, 400, "tool-call-parser"),
        ({"model": "words", "messages": [{"role": "user"}], "logprobs": True}, 400, "logprobs"),
    ],
)  # fmt: skip
def test_a_chat_that_cannot_be_is_refused(endpoints, body, status, text):
    found, reply = get(endpoints, "/v1/chat/completions", body)
    assert found == status
    assert text in json.dumps(reply["detail"])


@pytest.mark.parametrize(
    "body", [b"\xff", b"[" * 100_000, b'{"n":' + b"9" * 5000 + b"}"], ids=["bytes", "deep", "long"]
)
def test_a_body_that_cannot_be_read_is_the_clients_fault(endpoints, body):
    url = f"http://127.0.0.1:{endpoints.openai_port}/v1/completions"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, body, timeout=60)
    assert refused.value.code == 400
    assert json.load(refused.value)["detail"] == "There was an error parsing the body"


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_whose_text_is_no_unicode_is_answered(endpoints, stream):
    body = {"model": "words", "prompt": "odd", "stream": stream}
    status, reply = get(endpoints, "/v1/completions", body)
    assert status == 500
    assert "named ?" in reply["detail"]


def test_a_character_split_over_two_responses_is_whole(client):
    parts = client.completions.create(model="words", prompt="bytes", stream=True)
    texts = [part.choices[0].text for part in parts]
    assert "".join(texts) == "a\N{EURO SIGN}\N{REPLACEMENT CHARACTER}"
    assert texts[1:4] == ["", "", "\N{EURO SIGN}"]


def test_other_paths_and_methods(endpoints):
    assert get(endpoints, "/health/ready") == (200, "")
    assert "nv_inference_request_success" in get(endpoints, "/metrics")[1]
    for path, status, text in (
        ("/v1/nothing", 404, "Not Found"),
        ("/v1/completions", 405, "Method Not Allowed"),
    ):
        found, reply = get(endpoints, path)
        assert (found, reply["detail"], reply["error"]["message"]) == (status, text, text)


def test_templates_are_jinjas_or_a_tokenizers(tmp_path):
    messages = [{"role": "user", "content": "Hello"}]
    text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert chat_template_of(template=text)(messages) == "<user>Hello"
    path = tmp_path / "template.jinja"
    path.write_text(text)
    assert chat_template_of(template=str(path))(messages) == "<user>Hello"
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        chat_template_of(template="{% for")
    with pytest.raises(InvalidArgumentError, match="No such file"):
        chat_template_of(template="nowhere.jinja")
    read = read_chat(
        json.dumps({"model": "m", "messages": messages}).encode(), chat_template_of(template=text)
    )
    assert read.prompt == "<user>Hello"


def test_the_default_of_max_tokens_is_the_servers():
    assert read_completion(b'{"model": "m", "prompt": "x"}').max_tokens is None
    assert OpenAiOptions().default_max_tokens == 16
    with pytest.raises(ApiError):
        read_completion(b"{")
