"""The rate limiter in a live server: instances that run together, instances that wait."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nbtriton.common.errors import EngineStoppedError, InvalidArgumentError, LoadError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.scheduling import ReturnResources
from tests.until import until

X = np.ones((1, 1), np.float32)
CONFIG = """
backend: "python" max_batch_size: 8
input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
dynamic_batching {{ }}
instance_group {{ count: {count} rate_limiter {{ resources {{ name: "R" count: {need} {scope} }}
  priority: {priority} }} }}
"""


def config(need: int, *, count: int = 1, scope: str = "", priority: int = 1) -> str:
    return CONFIG.format(need=need, count=count, scope=scope, priority=priority)


class Gated:
    """A model whose executions block until released, one permit each."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.sizes: list[int] = []

    def model(self) -> type:
        gated = self

        class TritonPythonModel:
            def execute(self, requests):
                import triton_python_backend_utils as pb_utils

                gated.sizes.append(len(requests))
                gated.inside.release()
                assert gated.permits.acquire(timeout=60)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", X)]) for _ in requests]

        return TritonPythonModel


def test_R1_off_by_default_resources_are_ignored():
    gated = Gated()
    with Server() as server:
        server.load(config(5, count=2), gated.model(), name="m")
        futures = [server.submit("m", {"IN": X}) for _ in range(2)]
        assert all(gated.inside.acquire(timeout=60) for _ in range(2))
        gated.permits.release(2)
        assert [f.result(30)["OUT"].item() for f in futures] == [1.0, 1.0]


def test_R3_two_instances_that_need_the_whole_pool_run_one_after_the_other():
    gated = Gated()
    with Server(rate_limit="execution_count") as server:
        server.load(config(3, count=2), gated.model(), name="m")
        futures = [server.submit("m", {"IN": X}) for _ in range(8)]
        assert gated.inside.acquire(timeout=60)
        assert server.engine.lifecycle.builder.limiter.resources() == {("r", 0): (3, 3)}
        assert not gated.inside.acquire(blocking=False)
        gated.permits.release()
        assert gated.inside.acquire(timeout=60)
        assert not gated.inside.acquire(blocking=False)
        gated.permits.release()
        for future in futures:
            future.result(30)
        # R9: what waits for the resources grows.
        assert gated.sizes == [1, 7]
        server.close(timeout_s=60)
    assert server.engine.lifecycle.builder.limiter.resources() == {}


def test_R3_a_larger_need_elsewhere_makes_room_for_both():
    gated = Gated()
    with Server(rate_limit="execution_count") as server:
        server.load(config(3, count=2), gated.model(), name="m")
        server.load(config(8), gated.model(), name="large")
        futures = [server.submit("m", {"IN": X}) for _ in range(2)]
        assert all(gated.inside.acquire(timeout=60) for _ in range(2))
        gated.permits.release(2)
        for future in futures:
            future.result(30)


def test_close_answers_a_batch_that_waits_for_the_resources_of_another_model():
    gated = Gated()
    with Server(rate_limit="execution_count") as server:
        for name in ("holds", "waits"):
            server.load(config(3), gated.model(), name=name)
        holds = server.submit("holds", {"IN": X})
        assert gated.inside.acquire(timeout=60)
        waits = server.submit("waits", {"IN": X})
        server.close(timeout_s=0.01)
        for future in (holds, waits):
            assert isinstance(future.exception(0), EngineStoppedError)
        gated.permits.release(2)


def test_L16_a_removed_instance_releases_its_resources_after_its_batch():
    gated = Gated()
    with Server(rate_limit="execution_count") as server:
        limiter = server.engine.lifecycle.builder.limiter
        server.load(config(3, count=2), gated.model(), name="m")
        runtime = server.engine.registry.resolve("m")
        first = server.submit("m", {"IN": X})
        assert gated.inside.acquire(timeout=60)
        (busy,) = [instance for instance in runtime.instances() if instance.busy]
        server.load(config(3), name="m")
        second = server.submit("m", {"IN": X})
        assert limiter.resources() == {("r", 0): (3, 3)}
        assert not gated.inside.acquire(blocking=False)
        gated.permits.release(2)
        for future in (first, second):
            future.result(60)
        assert until(lambda: busy not in runtime.instances())
        assert until(lambda: limiter.resources() == {("r", 0): (0, 3)})


def test_an_instance_that_is_removed_gives_back_what_nobody_has_yet(monkeypatch):
    gated, apply = Gated(), ModelRuntime._apply

    def apply_late(runtime, decision, completion):
        if isinstance(decision, ReturnResources):  # another thread is faster than this one
            one = threading.Thread(target=server.load, args=(config(3),), kwargs={"name": "waits"})
            one.start()
            one.join(60)
        return apply(runtime, decision, completion)

    monkeypatch.setattr(ModelRuntime, "_apply", apply_late)
    with Server(rate_limit="execution_count") as server:
        server.load(config(3), gated.model(), name="holds")
        server.load(config(3, count=2), gated.model(), name="waits")
        holds = server.submit("holds", {"IN": X})
        assert gated.inside.acquire(timeout=60)
        waits = server.submit("waits", {"IN": X})
        runtime = server.engine.registry.resolve("waits")
        for request in runtime.requests_inside():
            runtime.refuse(request, InvalidArgumentError("given up"))
        gated.permits.release(2)
        holds.result(60)
        assert isinstance(waits.exception(60), InvalidArgumentError)
        server.infer("holds", {"IN": X})
        assert server.engine.lifecycle.builder.limiter.resources() == {("r", 0): (0, 3)}


def test_R4_V92_an_explicit_limit_that_is_too_small_refuses_the_load():
    with Server(rate_limit="execution_count", rate_limit_resources=["R:2"]) as server:
        with pytest.raises(LoadError) as error:
            server.load(config(3), Gated().model(), name="m")
        assert (
            'Resource count for "R" is limited to 2 which will prevent scheduling of one or more '
            "model instances, the minimum required count is 3" in error.value.message
        )
        assert server.engine.inspection.model_names() == ()
        assert server.engine.lifecycle.builder.limiter.resources() == {}


def test_R5_V91_one_name_cannot_be_global_and_of_a_device():
    with Server(rate_limit="execution_count") as server:
        server.load(config(1), Gated().model(), name="m")
        with pytest.raises(LoadError) as error:
            server.load(config(1, scope="global: true"), Gated().model(), name="n")
        assert (
            'Resource "R" is present as both global and device-specific resource in the model '
            "configuration." in error.value.message
        )


def test_a_load_waits_for_no_resources():
    gated = Gated()
    with Server(rate_limit="execution_count") as server:
        server.load(config(3), gated.model(), name="m")
        future = server.submit("m", {"IN": X})
        assert gated.inside.acquire(timeout=60)
        server.load(config(3), gated.model(), name="other")  # would never return
        assert server.engine.lifecycle.builder.limiter.resources() == {("r", 0): (3, 3)}
        gated.permits.release()
        assert future.result(30)["OUT"].item() == 1.0


@pytest.mark.parametrize("text", ["R", "R:x", ":3", "R:1:2:3", "R:1:x"])
def test_R4_format_of_resources(text):
    with pytest.raises(InvalidArgumentError) as error:
        Server(rate_limit="execution_count", rate_limit_resources=[text])
    assert error.value.message == (
        "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
        f"'<resource_name>:<count>'. Got {text}"
    )


def test_R6_priority_is_a_weight():
    """Two models share one unit: the one of priority 2 runs half as often as that of 1."""
    order: list[str] = []
    gate = threading.Event()

    def named(name: str) -> type:
        class TritonPythonModel:
            def execute(self, requests):
                import triton_python_backend_utils as pb_utils

                assert gate.wait(30)
                order.append(name)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", X)]) for _ in requests]

        return TritonPythonModel

    plain = 'backend: "python" max_batch_size: 1 ' + config(1).split("max_batch_size: 8")[
        1
    ].replace("dynamic_batching { }", "")
    with Server(rate_limit="execution_count") as server:
        server.load(plain, named("one"), name="one")
        server.load(plain.replace("priority: 1", "priority: 2"), named("two"), name="two")
        futures = [server.submit(name, {"IN": X}) for _ in range(30) for name in ("one", "two")]
        gate.set()
        for future in futures:
            future.result(30)
    first = order[:30]
    assert first.count("one") / first.count("two") > 1.8  # the ratio that Triton's own test asks
