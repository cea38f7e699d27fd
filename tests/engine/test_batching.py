"""Batches of real threads: the examples of docs/rules/scheduling.md, order, delay, priorities.

A gate keeps the only instance busy while requests arrive in order, so what runs next is the
scheduler's decision and not a matter of timing.
"""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import threading

import numpy as np
import pytest

from nbtriton.common.errors import UnavailableError
from nbtriton.runtime.engine import Server
from tests.engine.support import WAIT_S, Gate, echo, gated, ones, order_of, row
from tests.until import until


def dynamic(body: str = "", *, max_batch_size: int = 8, more: str = "") -> str:
    return echo(f"dynamic_batching {{ {body} }} {more}", max_batch_size=max_batch_size)


def batches_while_busy(
    server: Server, gate: Gate, config: str, sizes: list[int]
) -> list[list[int]]:
    """Sizes of the requests of each batch that runs after the busy instance is free."""
    server.load(config, gated(gate), name="m")
    # As large as a batch can be: nothing joins it.
    limit = max(1, server.config("m").max_batch_size)
    blocker = np.ones((limit, 4), np.float32) if server.config("m").max_batch_size else ones()[0]
    futures = [server.submit("m", {"IN": blocker}, request_id="busy")]
    gate.wait_entered()
    for number, size in enumerate(sizes):
        value = row(*[float(number)] * size) if server.config("m").max_batch_size else ones()[0]
        futures.append(server.submit("m", {"IN": value}, request_id=str(number)))
    gate.open()
    for number, future in enumerate(futures[1:]):
        out = future.result(WAIT_S)["OUT"]
        assert server.config("m").max_batch_size == 0 or (out == number).all()
        assert server.config("m").max_batch_size == 0 or len(out) == sizes[number]
    assert gate.batches[0] == ["busy"]
    ids = [name for batch in gate.batches[1:] for name in batch]
    assert ids == [str(number) for number in range(len(sizes))], "lost, doubled or reordered"
    return [[sizes[int(name)] for name in batch] for batch in gate.batches[1:]]


ROWS = {
    "{} 5x1": (dynamic(), [1] * 5, [[1] * 5]),
    "{} 1,2,4,3,1": (dynamic(), [1, 2, 4, 3, 1], [[1, 2, 4], [3, 1]]),
    "pref 4, 11x1": (dynamic("preferred_batch_size: 4"), [1] * 11, [[1] * 4, [1] * 4, [1] * 3]),
    "pref 2,6, 5x1": (dynamic("preferred_batch_size: [2, 6]"), [1] * 5, [[1, 1], [1, 1], [1]]),
    "pref 4, 3,3,1,1": (dynamic("preferred_batch_size: 4"), [3, 3, 1, 1], [[3, 3], [1, 1]]),
    "pref 4, 5,1,2,8": (dynamic("preferred_batch_size: 4"), [5, 1, 2, 8], [[5], [1, 2], [8]]),
    "mbs 0": (dynamic(max_batch_size=0), [1, 1, 1], [[1], [1], [1]]),
    "S1 S2 default scheduler": (echo(), [1, 3, 1], [[1], [3], [1]]),
}


@pytest.mark.parametrize("case", ROWS)
def test_batches_of_a_busy_instance(server: Server, gate: Gate, case: str):
    config, sizes, expected = ROWS[case]
    assert batches_while_busy(server, gate, config, sizes) == expected


def test_an_idle_instance_runs_a_single_request_at_once(server: Server):
    gate = Gate(is_open=True)
    server.load(dynamic(), gated(gate), name="m")
    server.infer("m", {"IN": ones()}, request_id="a")
    assert gate.batches == [["a"]]
    (record,) = server.batches("m")
    assert record.reason == "no_delay"


def test_G3_different_shapes_never_share_a_batch(server: Server, gate: Gate):
    server.load(
        """
        backend: "python" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: -1 }
        output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
        dynamic_batching {}
        """,
        gated(gate),
        name="m",
    )
    server.submit("m", {"IN": row(*[0.0] * 8)}, request_id="busy")
    gate.wait_entered()
    futures = [
        server.submit("m", {"IN": row(1, width=width)}, request_id=f"{width}{name}")
        for name, width in (("a", 4), ("b", 4), ("c", 5), ("d", 4), ("e", 4))
    ]
    gate.open()
    assert [future.result(WAIT_S)["OUT"].shape[1] for future in futures] == [4, 4, 5, 4, 4]
    assert gate.batches[1:] == [["4a", "4b"], ["5c"], ["4d", "4e"]]


def test_two_busy_instances_share_one_queue(server: Server, gate: Gate):
    server.load(dynamic(more="instance_group { count: 2 kind: KIND_CPU }"), gated(gate), name="m")
    busy = [server.submit("m", {"IN": row(*[0.0] * 8)}, request_id=f"busy{n}") for n in range(2)]
    gate.wait_entered(2)
    rest = [server.submit("m", {"IN": ones()}, request_id=str(n)) for n in range(10)]
    gate.let(1)
    gate.wait_entered()  # the first to be free takes 8 of the 10 ...
    assert gate.batches[2] == [str(n) for n in range(8)]
    gate.let(1)
    gate.wait_entered()  # ... the next one the other 2
    assert gate.batches[3] == ["8", "9"]
    gate.open()
    for future in busy + rest:
        future.result(WAIT_S)
    instances = server.models()[0].instances
    assert [instance.executions for instance in instances] == [2, 2]
    assert len(set(gate.threads)) == 2


def test_two_instances_run_at_the_same_time(server: Server):
    barrier = threading.Barrier(2, timeout=WAIT_S)

    def model(IN):
        barrier.wait()  # passes only if both instances are in here at once
        return {"OUT": IN}

    server.load(echo("instance_group { count: 2 kind: KIND_CPU }"), model, name="m")
    futures = [server.submit("m", {"IN": ones()}) for _ in range(6)]
    for future in futures:
        future.result(WAIT_S)


def test_D12_preserve_ordering_delays_early_responses(server: Server):
    slow, fast = Gate(), Gate()

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            (request,) = requests
            (slow if request.request_id() == "slow" else fast).stand([request.request_id()])
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])]

    config = dynamic(
        "preferred_batch_size: 1 preserve_ordering: true",
        max_batch_size=1,
        more="instance_group { count: 2 kind: KIND_CPU }",
    )
    server.load(config, TritonPythonModel, name="m")
    names = ("slow", "a", "b")
    futures = {name: server.submit("m", {"IN": ones()}, request_id=name) for name in names}
    order = order_of(futures)
    slow.wait_entered()
    fast.let(2)
    fast.wait_entered(2)  # both ran beside the slow one, on the other instance
    assert not futures["a"].done()
    slow.open()
    assert order() == ["slow", "a", "b"]


def test_D12_refused_and_timed_out_requests_block_no_other(server: Server, gate: Gate):
    config = dynamic(
        "preserve_ordering: true preferred_batch_size: 1 "
        "default_queue_policy { max_queue_size: 2 default_timeout_microseconds: 3600000000 "
        "allow_timeout_override: true }",
        max_batch_size=1,
    )
    server.load(config, gated(gate), name="m")
    first = server.submit("m", {"IN": ones()}, request_id="first")
    gate.wait_entered()
    late = [server.submit("m", {"IN": ones()}, timeout_us=1000) for _ in range(2)]
    for future in late:  # answered although the first one is not
        assert isinstance(future.exception(WAIT_S), UnavailableError)
    gate.open()
    first.result(WAIT_S)
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3


def test_D12_the_head_of_the_line_streams(server: Server):
    """Decoupled: partial responses of the oldest request pass, those of the next are held."""
    gates = {"a": Gate(), "b": Gate()}

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            (request,) = requests
            sender = request.get_response_sender()
            for _ in range(2):
                tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
                sender.send(pb_utils.InferenceResponse([tensor]))
            gates[request.request_id()].stand([])
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    config = dynamic(
        "preserve_ordering: true preferred_batch_size: 1",
        max_batch_size=1,
        more="instance_group { count: 2 kind: KIND_CPU } "
        "model_transaction_policy { decoupled: true }",
    )
    server.load(config, TritonPythonModel, name="m")
    order: list[str] = []
    futures = {}
    for name in ("a", "b"):
        futures[name] = server.submit(
            "m",
            {"IN": ones()},
            request_id=name,
            on_response=lambda _, final, name=name: order.append(name + "!" * final),
        )
        gates[name].wait_entered()
    assert order == ["a", "a"]
    gates["b"].open()
    assert not futures["b"].done()
    gates["a"].open()
    for future in futures.values():
        future.result(WAIT_S)
    assert order == ["a", "a", "a!", "b", "b", "b!"]


def test_without_preserve_ordering_responses_are_sent_when_ready(server: Server, gate: Gate):
    def model(IN):
        if IN[0, 0] == 7:
            gate.stand(["slow"])
        return {"OUT": IN}

    config = dynamic(
        "preferred_batch_size: 1",
        max_batch_size=1,
        more="instance_group { count: 2 kind: KIND_CPU }",
    )
    server.load(config, model, name="m")
    slow = server.submit("m", {"IN": row(7)})
    gate.wait_entered()
    assert server.submit("m", {"IN": row(1)}).result(WAIT_S)["OUT"][0, 0] == 1
    assert not slow.done()
    gate.open()
    slow.result(WAIT_S)


def test_a_queue_delay_is_ended_by_the_scheduler_thread(server: Server):
    gate = Gate(is_open=True)
    server.load(dynamic("max_queue_delay_microseconds: 30000"), gated(gate), name="m")
    futures = [server.submit("m", {"IN": ones()}, request_id=str(n)) for n in range(3)]
    assert "nbtriton-scheduler" in [thread.name for thread in threading.enumerate()]
    for future in futures:
        future.result(WAIT_S)
    # A loaded machine may need longer than the delay for three submits: then it forms more batches.
    assert [name for batch in gate.batches for name in batch] == ["0", "1", "2"]
    first, *_ = server.batches("m")
    assert first.reason == "max_queue_delay"
    assert first.queue_ns >= 30_000_000


def test_a_preferred_size_ends_a_queue_delay_at_once(server: Server):
    gate = Gate(is_open=True)
    # An hour: only the preferred size can be what releases the batch.
    config = dynamic("preferred_batch_size: 4 max_queue_delay_microseconds: 3600000000")
    server.load(config, gated(gate), name="m")
    futures = [server.submit("m", {"IN": ones()}, request_id=str(n)) for n in range(4)]
    for future in futures:
        future.result(WAIT_S)
    assert gate.batches == [["0", "1", "2", "3"]]
    (record,) = server.batches("m")
    assert (record.reason, record.batch_size) == ("preferred_batch_size", 4)


def test_Q2_priorities_and_a_batch_that_spans_levels(server: Server, gate: Gate):
    config = dynamic(
        "preferred_batch_size: 4 priority_levels: 3 default_priority_level: 3",
        max_batch_size=4,
    )
    server.load(config, gated(gate), name="m")
    server.submit("m", {"IN": row(*[0.0] * 4)}, request_id="busy")
    gate.wait_entered()
    futures = [
        server.submit("m", {"IN": ones()}, request_id=f"{priority}{name}", priority=priority)
        for priority, name in ((3, "a"), (2, "b"), (1, "c"), (3, "d"), (1, "e"), (2, "f"))
    ]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert gate.batches[1:] == [["1c", "1e", "2b", "2f"], ["3a", "3d"]]


def test_Q4_a_full_queue_refuses_without_statistics(server: Server, gate: Gate):
    server.load(dynamic("default_queue_policy { max_queue_size: 2 }"), gated(gate), name="m")
    futures = [server.submit("m", {"IN": ones()})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": ones()}) for _ in range(2)]
    refused = server.submit("m", {"IN": ones()}, request_id="late")
    error = refused.exception(WAIT_S)
    assert isinstance(error, UnavailableError)
    assert error.message == "[request id: late] Exceeds maximum queue size"
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    model = server.models()[0]
    assert (model.success_count, model.fail_count) == (3, 0)


def test_Q7_a_timed_out_request_is_rejected_and_counted(server: Server, gate: Gate):
    server.load(
        dynamic(
            "default_queue_policy { default_timeout_microseconds: 3600000000 "
            "allow_timeout_override: true }"
        ),
        gated(gate),
        name="m",
    )
    first = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    late = server.submit("m", {"IN": ones()}, timeout_us=1000)
    error = late.exception(WAIT_S)
    assert isinstance(error, UnavailableError)
    assert isinstance(error, TimeoutError)
    assert error.message == "Request timeout expired"
    gate.open()
    first.result(WAIT_S)
    model = server.models()[0]
    assert (model.success_count, model.fail_count, model.inference_count) == (1, 1, 1)
    assert len(gate.batches) == 1


# -- the direct path ---------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", ["", "dynamic_batching {}"], ids=["default", "dynamic"])
def test_infer_on_an_idle_instance_runs_in_the_callers_thread(server: Server, extra: str):
    gate = Gate(is_open=True)
    server.load(echo(extra), gated(gate), name="m")
    server.infer("m", {"IN": ones()})
    assert gate.threads == [threading.get_ident()]
    server.submit("m", {"IN": ones()}).result(WAIT_S)
    assert gate.threads[1] != threading.get_ident()


def test_infer_on_a_busy_instance_waits_for_its_thread(server: Server, gate: Gate):
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    busy = server.submit("m", {"IN": ones()}, request_id="busy")
    gate.wait_entered()
    outcome = []
    caller = threading.Thread(target=lambda: outcome.append(server.infer("m", {"IN": row(5)})))
    caller.start()
    assert until(lambda: server.models()[0].queued == 1)
    gate.let(1)
    gate.wait_entered()
    assert gate.threads[0] == gate.threads[1] != caller.ident
    gate.open()
    caller.join(WAIT_S)
    busy.result(WAIT_S)
    assert outcome[0]["OUT"][0, 0] == 5


def test_infer_does_not_overtake_the_queue_delay(server: Server):
    gate = Gate(is_open=True)
    server.load(dynamic("max_queue_delay_microseconds: 2000"), gated(gate), name="m")
    result = server.infer("m", {"IN": ones()})
    assert result.timing.queue_ns >= 2_000_000


def test_async_models_never_block_the_callers_loop(server: Server):
    """`async def execute` runs on a loop of the instance's own, not in the caller's thread."""
    seen = []

    class TritonPythonModel:
        async def execute(self, requests):
            import asyncio

            import triton_python_backend_utils as pb_utils

            seen.append((threading.get_ident(), asyncio.get_running_loop()))
            await asyncio.sleep(0)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + 1)])
                for r in requests
            ]

    server.load(echo(), TritonPythonModel, name="m")
    assert server.infer("m", {"IN": ones()})["OUT"][0, 0] == 2
    assert seen[0][0] != threading.get_ident()
