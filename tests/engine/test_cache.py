"""The response cache: rules K1 to K11 and E19, with the deliberate differences."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from nbtriton import compiled
from nbtriton.backends.base import RequestOptions
from nbtriton.common.errors import ConfigError, InvalidArgumentError, TritonError
from nbtriton.runtime.engine import Server, Submission
from tests.engine.support import (
    WAIT_S,
    Gate,
    echo,
    ensemble_text,
    failing,
    fields,
    gated,
    ones,
    order_of,
    row,
)

CACHED = "response_cache { enable: true }"


@pytest.fixture
def cached() -> Iterator[Server]:
    with Server(gpus=(), cache_bytes=1 << 20) as server:
        yield server


def counting(calls: list) -> object:
    def model(IN):
        calls.append(float(IN[0, 0]))
        return {"OUT": IN * 2}

    return model


@pytest.mark.parametrize("extra", ["", "dynamic_batching {}"], ids=["default", "dynamic"])
def test_K3_a_hit_is_answered_without_an_execution(cached: Server, extra: str):
    calls: list = []
    cached.load(echo(f"{CACHED} {extra}"), counting(calls), name="m")
    for request_id in ("one", "two"):
        result = cached.infer("m", {"IN": row(3)}, request_id=request_id)
        assert result.request_id == request_id  # the new request's own
        np.testing.assert_array_equal(result["OUT"], row(6))
    assert cached.submit("m", {"IN": row(3)}).result(WAIT_S)["OUT"][0, 0] == 6
    cached.infer("m", {"IN": row(4)})
    assert calls == [3, 4]


def test_K9_statistics_separate_hits_from_executions(cached: Server):
    cached.load(echo(CACHED), counting([]), name="m")
    for value in (1, 1, 1, 2):
        cached.infer("m", {"IN": row(value)})
    counts = fields(cached.statistics(), "m")
    assert (counts["success"], counts["cache_hit"], counts["cache_miss"]) == (4, 2, 2)
    assert (counts["inference_count"], counts["execution_count"]) == (2, 2)
    assert counts["queue"] == 4
    assert counts["compute_infer"] == 2
    (found,) = cached.statistics("m")["model_stats"]
    for field in ("cache_hit", "cache_miss"):
        assert found["inference_stats"][field]["ns"] > 0
    assert cached.engine.lifecycle.builder.cache.statistics().hits == 2
    assert cached.engine.lifecycle.builder.cache.statistics().entries == 2


def test_K1_without_a_cache_or_without_the_setting_nothing_is_kept(server: Server, cached: Server):
    calls: list = []
    server.load(echo(CACHED), counting(calls), name="m")
    cached.load(echo(), counting(calls), name="m")
    for each in (server, server, cached, cached):
        each.infer("m", {"IN": ones()})
    assert len(calls) == 4


def test_K2_the_key_holds_all_that_the_answer_depends_on(cached: Server):
    """Triton's key has neither shapes nor requested outputs, and mixes these up."""
    cached.load(
        """
        backend: "python" response_cache { enable: true }
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1, -1 ] }
        output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1, -1 ] },
                 { name: "MORE" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
        """,
        lambda IN: {"OUT": IN, "MORE": IN + 1},
        name="m",
    )
    flat, square = np.ones((1, 4), np.float32), np.ones((2, 2), np.float32)
    assert cached.infer("m", {"IN": flat})["OUT"].shape == (1, 4)
    assert cached.infer("m", {"IN": square})["OUT"].shape == (2, 2)
    assert set(cached.infer("m", {"IN": flat}, outputs=["MORE"])) == {"MORE"}
    assert set(cached.infer("m", {"IN": flat})) == {"OUT", "MORE"}


def test_K5_errors_are_not_kept(cached: Server):
    """Triton keeps them, as successes without outputs."""
    cached.load(echo(CACHED), failing(), name="m")
    for _ in range(2):
        for how in (1, 6):
            with pytest.raises(TritonError):
                cached.infer("m", {"IN": row(how)})
    assert cached.engine.lifecycle.builder.cache.statistics().entries == 0


def test_K4_twins_in_flight_both_execute(cached: Server):
    gate = Gate()
    cached.load(echo(f"{CACHED} dynamic_batching {{}}"), gated(gate), name="m")
    futures = [cached.submit("m", {"IN": row(5)}) for _ in range(2)]
    gate.wait_entered()
    gate.open()
    for future in futures:
        assert future.result(WAIT_S)["OUT"][0, 0] == 5
    counts = fields(cached.statistics(), "m")
    assert (counts["cache_hit"], counts["cache_miss"]) == (0, 1)
    assert counts["inference_count"] == 2


def test_K4_what_the_cache_cannot_keep_is_a_miss_each_time():
    """An answer larger than the cache, and an error: seen on the server, also through an ensemble."""
    with Server(gpus=(), cache_bytes=300) as small:
        small.load(echo(CACHED, max_batch_size=32), counting([]), name="m")
        for rows in (30, 30, 1, 1):
            small.infer("m", {"IN": row(*[0.0] * rows)})
        counts = fields(small.statistics(), "m")
        assert (counts["cache_miss"], counts["cache_hit"]) == (3, 1)
        chain = ensemble_text(
            ("m", {"IN": "X"}, {"OUT": "Y"}),
            inputs={"X": "FP32[4]"},
            outputs={"Y": "FP32[4]"},
            max_batch_size=32,
        )
        small.load(f"{chain} {CACHED}", name="e")
        for _ in range(2):
            small.infer("e", {"X": row(*[0.0] * 30)})
        assert fields(small.statistics(), "m")["cache_miss"] == 5
        assert fields(small.statistics(), "e")["cache_miss"] == 2
        small.load(echo(CACHED), failing(), name="bad")
        for _ in range(2):
            with pytest.raises(TritonError):
                small.infer("bad", {"IN": row(1)})
        assert fields(small.statistics(), "bad")["cache_miss"] == 2


def test_K4_of_an_ensemble_every_twin_is_a_miss(cached: Server):
    gate = Gate()
    cached.load(echo(), gated(gate), name="m")
    chain = ensemble_text(
        ("m", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
    )
    cached.load(f"{chain} {CACHED}", name="e")
    twins = [cached.submit("e", {"X": row(1)}) for _ in range(2)]
    gate.wait_entered()
    gate.open()
    for twin in twins:
        twin.result(WAIT_S)
    assert fields(cached.statistics(), "e")["cache_miss"] == 2


def test_K7_the_least_recently_used_answers_are_evicted():
    with Server(gpus=(), cache_bytes=400) as server:  # room for three answers of 16 bytes (K11)
        calls: list = []
        server.load(echo(CACHED, max_batch_size=32), counting(calls), name="m")
        for value in (1, 2, 3, 1, 4, 1, 2):
            server.infer("m", {"IN": row(value)})
        assert calls == [1, 2, 3, 4, 2]
        assert server.engine.lifecycle.builder.cache.statistics().evictions == 2
        for _ in range(2):  # larger than the cache: not kept, and no harm
            server.infer("m", {"IN": row(*range(30))})
        assert calls[5:] == [0, 0]


@pytest.mark.skipif(compiled, reason="a compiled function is called directly")
def test_an_answer_that_cannot_be_copied_out_of_the_cache_is_computed_again(
    cached: Server, monkeypatch, caplog
):
    """As where no memory is left; of requests that came together none is lost."""
    calls: list = []
    cached.load(echo(CACHED), counting(calls), name="m")
    cached.infer("m", {"IN": row(1)})

    def copies_of(_: object) -> None:
        raise MemoryError("no room for the copy")

    monkeypatch.setattr("nbtriton.runtime.engine.core.cache.copies_of", copies_of)
    answers: queue.SimpleQueue = queue.SimpleQueue()
    together = [
        Submission(
            "m", -1, {"IN": row(value)}, RequestOptions(),
            lambda _, response, final: answers.put(response.error),
        )
        for value in (2, 1, 3)
    ]  # fmt: skip
    assert len(cached.engine.dispatcher.submit_many(together)) == 3
    assert [answers.get(timeout=WAIT_S) for _ in together] == [None] * 3
    assert sorted(calls) == [1, 1, 2, 3]
    assert "no room for the copy" in caplog.text


def test_K11_an_answer_with_an_empty_tensor_is_not_kept(cached: Server):
    """Seen on the server, which logs an error for it."""
    calls: list = []

    def model(IN):
        calls.append(1)
        return {"OUT": IN, "NONE": np.zeros((1, 0), np.float32)}

    cached.load(
        echo(CACHED) + 'output { name: "NONE" data_type: TYPE_FP32 dims: [ -1 ] }', model, name="m"
    )
    for _ in range(2):
        cached.infer("m", {"IN": row(1)})
    assert len(calls) == 2
    assert fields(cached.statistics(), "m")["cache_miss"] == 2


def test_K8_answers_survive_a_reload_of_the_same_version(cached: Server):
    calls: list = []
    cached.load(echo(CACHED), counting(calls), name="m")
    cached.infer("m", {"IN": row(1)})
    cached.load(echo(CACHED), counting(calls), name="m", version=2)
    cached.infer("m", {"IN": row(1)})
    assert len(calls) == 2, "another version has other answers"


def test_a_callers_changes_do_not_reach_the_cache(cached: Server):
    cached.load(echo(CACHED), counting([]), name="m")
    first = cached.infer("m", {"IN": row(1)})["OUT"]
    first[:] = 99
    again = cached.infer("m", {"IN": row(1)})["OUT"]
    assert again[0, 0] == 2
    again[:] = 99
    assert cached.infer("m", {"IN": row(1)})["OUT"][0, 0] == 2


def test_E19_members_and_the_ensemble_cache_on_their_own(cached: Server):
    calls: list = []
    cached.load(echo(CACHED), counting(calls), name="m")
    config = ensemble_text(
        ("m", {"IN": "X"}, {"OUT": "t"}),
        ("m", {"IN": "t"}, {"OUT": "Y"}),
        inputs={"X": "FP32[4]"},
        outputs={"Y": "FP32[4]"},
    )
    cached.load(config, name="e")
    for _ in range(3):
        assert cached.infer("e", {"X": row(1)})["Y"][0, 0] == 4
    assert calls == [1, 2]
    cached.load(f"{config} {CACHED}", name="e")
    for _ in range(3):
        result = cached.infer("e", {"X": row(1)})
        assert result["Y"][0, 0] == 4
    # Once through the steps, both hits; then from the ensemble's own, without a step.
    assert fields(cached.statistics(), "m")["cache_hit"] == 3 * 2 - 2 + 2
    counts = fields(cached.statistics(), "e")
    assert (counts["success"], counts["cache_hit"]) == (3, 2)
    assert result.parameters == {}  # E7: not on what comes from the top-level cache


def test_D12_hits_take_part_in_the_order(cached: Server):
    gate = Gate(is_open=True)
    cached.load(
        echo(f"{CACHED} dynamic_batching {{ preserve_ordering: true }}"), gated(gate), name="m"
    )
    cached.infer("m", {"IN": row(1)})
    gate.shut()
    slow = cached.submit("m", {"IN": row(2)})
    gate.wait_entered(2)
    hit = cached.submit("m", {"IN": row(1)})
    assert not slow.done()
    assert not hit.done()
    order = order_of({"slow": slow, "hit": hit})
    gate.open()
    assert order() == ["slow", "hit"]
    # In Triton nothing would be answered any more.
    np.testing.assert_array_equal(cached.submit("m", {"IN": row(3)}).result(WAIT_S)["OUT"], row(3))


def test_K10_decoupled_and_sequence_models_cannot_cache(cached: Server):
    for extra in ("model_transaction_policy { decoupled: true }", "sequence_batching {}"):
        with pytest.raises(ConfigError):
            cached.load(echo(f"{CACHED} {extra}"), counting([]), name="m")


def test_a_cache_needs_a_size():
    with pytest.raises(InvalidArgumentError, match="needs 192 bytes or more, found 191"):
        Server(gpus=(), cache_bytes=191)


def test_many_threads_share_the_cache(cached: Server):
    cached.load(echo(f"{CACHED} dynamic_batching {{}}"), counting([]), name="m")
    wrong: list = []

    def ask(worker: int) -> None:
        for n in range(300):
            value = (n * 7 + worker) % 40
            if cached.infer("m", {"IN": row(value)})["OUT"][0, 0] != 2 * value:
                wrong.append(value)

    workers = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WAIT_S)
    assert not wrong
    counts = fields(cached.statistics(), "m")
    assert counts["success"] == 1200
    assert counts["inference_count"] + counts["cache_hit"] == 1200
    assert cached.engine.lifecycle.builder.cache.statistics().entries == 40
