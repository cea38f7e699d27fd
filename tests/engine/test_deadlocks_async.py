"""Deadlocks of coroutines are refused; coroutines that can go on are not."""

from __future__ import annotations

import numpy as np
import pytest

from nbtriton.common.errors import ModelError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.diagnostics.deadlocks import DEADLOCKS

X = np.ones((1, 1), np.float32)
CONFIG = (
    "backend: 'python' max_batch_size: 8 input { name: 'IN' data_type: TYPE_FP32 dims: 1 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 1 } "
)
WAIT_S = 30


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for deadlocks starts after a twentieth of a second instead of a second."""
    monkeypatch.setattr(DEADLOCKS, "patience_s", 0.05)


def request(pb_utils, target):
    return pb_utils.InferenceRequest(
        model_name=target, inputs=[pb_utils.Tensor("IN", X)], requested_output_names=["OUT"]
    )


def answer(pb_utils, response):
    if response.has_error():
        raise RuntimeError(response.error().message())
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", X)])


class Leaf:
    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", X)]) for _ in requests]


def awaiting(*targets: str) -> type:
    """A model whose coroutine awaits all these models at once."""

    class TritonPythonModel:
        async def execute(self, requests):
            import asyncio

            import triton_python_backend_utils as pb_utils

            calls = [request(pb_utils, target).async_exec() for target in targets]
            found = await asyncio.gather(*calls)
            return [answer(pb_utils, response) for response in found[: len(requests)]]

    return TritonPythonModel


def blocking(target: str) -> type:
    """A model whose coroutine calls without awaiting."""

    class TritonPythonModel:
        async def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            return [answer(pb_utils, request(pb_utils, target).exec()) for _ in requests]

    return TritonPythonModel


@pytest.mark.parametrize("model", [awaiting("m"), blocking("m")], ids=["awaits", "blocks"])
def test_a_coroutine_that_calls_its_own_model_gets_an_error(model):
    with Server(gpus=()) as server:
        server.load(CONFIG, model, name="m")
        for send in (server.infer, lambda *a: server.submit(*a).result(WAIT_S)):
            with pytest.raises(ModelError, match="deadlock: 'm_0' calls model 'm'"):
                send("m", {"IN": X})


def test_a_deadlock_of_two_coroutines_is_refused():
    with Server(gpus=()) as server:
        server.load(CONFIG, awaiting("b"), name="a")
        server.load(CONFIG, awaiting("a"), name="b")
        with pytest.raises(ModelError, match="deadlock"):
            server.submit("a", {"IN": X}).result(WAIT_S)


def test_a_deadlock_of_a_coroutine_and_a_plain_model_is_refused():
    class Plain:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            return [answer(pb_utils, request(pb_utils, "a").exec()) for _ in requests]

    with Server(gpus=()) as server:
        server.load(CONFIG, awaiting("b"), name="a")
        server.load(CONFIG, Plain, name="b")
        with pytest.raises(ModelError, match="deadlock"):
            server.submit("a", {"IN": X}).result(WAIT_S)


def test_a_coroutine_with_a_second_instance_to_call_is_no_deadlock():
    """One call deep, the other instance answers."""

    class Once:
        async def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            if requests[0].request_id() == "inner":
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", X)]) for _ in requests]
            inner = pb_utils.InferenceRequest(
                model_name="m",
                request_id="inner",
                inputs=[pb_utils.Tensor("IN", X)],
                requested_output_names=["OUT"],
            )
            return [answer(pb_utils, await inner.async_exec())]

    with Server(gpus=()) as server:
        server.load(CONFIG + "instance_group { count: 2 kind: KIND_CPU }", Once, name="m")
        for _ in range(20):
            assert server.submit("m", {"IN": X}).result(WAIT_S)["OUT"].item() == 1.0


def test_many_coroutines_that_await_a_busy_model_are_no_deadlock():
    with Server(gpus=()) as server:
        server.load(CONFIG + "dynamic_batching { }", Leaf, name="leaf")
        for name in ("a", "b", "c"):
            server.load(CONFIG, awaiting("leaf", "leaf", "leaf"), name=name)
        futures = [server.submit(name, {"IN": X}) for _ in range(100) for name in ("a", "b", "c")]
        assert all(future.result(WAIT_S)["OUT"].item() == 1.0 for future in futures)
        assert server.statistics("leaf")["model_stats"][0]["inference_count"] == 900


def test_a_call_with_a_timeout_is_no_deadlock(monkeypatch: pytest.MonkeyPatch):
    """A timeout below the second before the search: the model's own error counts."""
    monkeypatch.setattr(DEADLOCKS, "patience_s", 60)

    class Limited:
        async def execute(self, requests):
            import asyncio

            import triton_python_backend_utils as pb_utils

            try:
                await asyncio.wait_for(request(pb_utils, "m").async_exec(), 0.2)
            except TimeoutError:
                raise RuntimeError("my own limit") from None
            return []

    with Server(gpus=()) as server:
        server.load(CONFIG, Limited, name="m")
        with pytest.raises(ModelError, match="my own limit"):
            server.submit("m", {"IN": X}).result(WAIT_S)
