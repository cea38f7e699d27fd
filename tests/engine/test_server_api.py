"""The public interface of a server: the verbs of a user, and their options."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import asyncio
import copy
import inspect
import pickle

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends import RequestOptions
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    RequestTimeoutError,
    TritonError,
)
from nbtriton.model.config import as_config, normalize
from nbtriton.runtime.engine.core.runtime import ModelSignature

VERBS = {
    "batches", "close", "config", "control_of", "devices", "endpoints", "engine", "export", "history", "ignored",
    "in_flight", "infer", "infer_async", "is_ready", "load", "load_repository", "metadata", "models", "options", "requests",
    "serve", "set_options", "snapshot", "statistics", "stream", "submit", "unload",
}  # fmt: skip


def test_a_server_shows_the_verbs_of_a_user_alone():
    with nt.Server() as server:
        assert {name for name in dir(server) if not name.startswith("_")} == VERBS


def test_the_docstring_and_the_options_of_a_server_are_those_of_the_engine_s():
    assert "cache_bytes : int | None" in (nt.Server.__doc__ or "")
    assert set(inspect.signature(nt.Server).parameters) == {
        "gpus", "cache_bytes", "rate_limit", "rate_limit_resources", "backend_config", "summaries", "stand_in",
        "recorder", "isolation", "worker_timeout_s", "host_policies", "ray",
    }  # fmt: skip


@pytest.mark.parametrize("verb", ["infer", "submit", "stream"])
def test_the_verbs_of_a_request_have_the_same_options(verb):
    names = list(inspect.signature(getattr(nt.Server, verb)).parameters)
    assert names[:12] == [
        "self", "model", "inputs", "version", "outputs", "request_id", "priority", "timeout_us",
        "sequence_id", "sequence_start", "sequence_end", "parameters",
    ]  # fmt: skip


@pytest.mark.parametrize(("start", "end"), [(np.True_, np.False_), (2, 0), (True, False)])
def test_the_flags_of_a_sequence_are_truth_values(start, end):
    config = """max_batch_size: 4 sequence_batching { }
        input { name: "IN" data_type: TYPE_FP32 dims: [1] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [1] }"""

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", np.full((1, 1), request.flags(), np.float32))]
                )
                for request in requests
            ]

    with nt.Server() as server:
        server.load(config, TritonPythonModel, name="m")
        given = {"sequence_id": 7, "sequence_start": start, "sequence_end": end}
        result = server.infer("m", {"IN": np.ones((1, 1), np.float32)}, **given)
        assert result["OUT"][0, 0] == 1


def test_requests_may_share_their_options():
    config = as_config(
        'name: "m" max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: [1] } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [1] }'
    )
    signature = ModelSignature(normalize(config, name="m"))
    options = RequestOptions(request_id="a", timeout_us=np.int64(5), parameters={"k": 1})
    own = options.copy()
    own.request_id = "b"
    first, second = (
        signature.build_request({"IN": np.ones((1, 1), np.float32)}, one) for one in (options, own)
    )
    assert (first.request_id, second.request_id) == ("a", "b")
    assert first.timeout_us == second.timeout_us == 5
    assert first.parameters == second.parameters == {"k": 1}


def test_options_that_are_read_are_a_copy():
    with nt.Server(backend_config={"python": {"a": "1"}}, gpus=()) as server:
        server.options.backend_config["python"]["a"] = "2"
        assert server.options.backend_config == {"python": {"a": "1"}}
        assert server.set_options(backend_config={"python": {"a": "1"}}) == ()


DOUBLE = """max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: [4] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [4] }"""


def test_a_server_is_asked_for_its_models_as_a_mapping_is():
    with nt.Server(gpus=()) as server:
        for name in ("second", "first"):
            server.load(DOUBLE, lambda IN: {"OUT": IN * 2}, name=name)
        ones = np.ones((1, 4), np.float32)
        assert server["first"](IN=ones)["OUT"].tolist() == [[2.0] * 4]
        assert sorted(server) == server._ipython_key_completions_() == ["first", "second"]
        assert ("first" in server, "third" in server, 1 in server) == (True, False, False)
        server.unload("first", timeout_s=None)
        assert list(server) == ["second"]
        with pytest.raises(NotFoundError, match="'first'"):
            server["first"]
        assert server.infer("second", {"IN": ones})._ipython_key_completions_() == ["OUT"]


def test_an_asynchronous_block_closes_its_server():
    async def main() -> tuple[list, nt.Server]:
        async with nt.Server(gpus=()) as server:
            server.load(DOUBLE, lambda IN: {"OUT": IN * 2}, name="double")
            result = await server.infer_async("double", {"IN": np.ones((1, 4), np.float32)})
            return result["OUT"].tolist(), server

    answer, server = asyncio.run(main())
    assert answer == [[2.0] * 4]
    assert not server.is_ready("double")


@pytest.mark.parametrize(
    ("ours", "pythons"),
    [
        (InvalidArgumentError, ValueError),
        (NotFoundError, LookupError),
        (RequestTimeoutError, TimeoutError),
    ],
)
def test_an_error_is_python_s_too(ours, pythons):
    error = ours("what was wrong", hint="the right way")
    assert isinstance(error, pythons)
    assert isinstance(error, TritonError)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), error.again()):
        assert type(again) is ours
        assert (again.message, again.hint, str(again)) == (error.message, error.hint, str(error))
