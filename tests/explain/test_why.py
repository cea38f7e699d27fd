"""``nt.why``: in scenarios with a known cause the sentence has to name it."""

# ruff: noqa: F821, N803, UP037 - annotations name tensors

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import NotFoundError, UnavailableError
from nbtriton.lab.explain.explanation import Explanation, explain, predict_effect
from nbtriton.lab.explain.findings import ModelRecord, Settings
from nbtriton.lab.explain.parts import PARTS, BusyTimes, critical_path, parts_of, time_text
from nbtriton.lab.simulate.experiment import Experiment
from nbtriton.runtime.engine import RequestRecord
from nbtriton.runtime.engine.diagnostics.interpreter import has_interpreter_lock, is_waiting
from tests.engine.support import Gate, echo, ensemble_text, gated, ones
from tests.explain.scenarios import MS, US, explained, poisson, simulate
from tests.simulate.profiles import profile

SEEDS = range(10)


def model(**changes: object) -> Settings:
    return Settings("m", **{"max_batch_size": 8, "dynamic": True, **changes})


def text(found: Explanation) -> str:
    return "\n".join(found.findings)


# Each gives what the sentences have to say, and the configuration that is proposed.
Scenario = Callable[[int], tuple[ModelRecord, str, str | None]]


def unbatched(seed: int):
    load = poisson(seed, 400, 500)
    found = simulate(model(dynamic=False), load, lambda rows: 400 * US + rows * 20 * US)
    return found, "the model has no dynamic_batching", "dynamic_batching { }"


def cannot_batch(seed: int):
    load = poisson(seed, 400, 500)
    found = simulate(model(dynamic=False, max_batch_size=0), load, lambda _: 450 * US)
    return found, "one request each", "count: 2"


def lone_in_bursts(seed: int):
    rng = random.Random(seed)
    load = []
    for burst in range(150):
        at = burst * 10 * MS
        for _ in range(4):
            load.append((at, 1, None))
            at += rng.randint(20, 40) * US + 100 * US
    found = simulate(model(), load, lambda _: 15 * US)
    return (
        found,
        "an instance was idle when each request came and no delay is set",
        "microseconds: 500",
    )


def sparse(seed: int):
    load = [(n * 20 * MS + random.Random(seed + n).randint(0, MS), 1, None) for n in range(200)]
    found = simulate(model(), load, lambda _: MS)
    return found, "an instance was idle when each request came and no delay is set", None


def useless_delay(seed: int):
    load = poisson(seed, 200, 60_000)
    found = simulate(model(delay_ns=5 * MS), load, lambda _: MS)
    return found, "waited for the delay of 5000 µs", "max_queue_delay_microseconds: 0"


def saturated_by_fixed_cost(seed: int):
    load = poisson(seed, 2000, 100)
    rng = random.Random(seed)
    found = simulate(model(), load, lambda rows: MS + rows * 10 * US + rng.randint(0, 9) * US)
    return (
        found,
        "were full or could take no further request (max_batch_size: 8)",
        "max_batch_size: 16",
    )


def saturated_by_rows(seed: int):
    load = poisson(seed, 2000, 100)
    found = simulate(model(), load, lambda rows: rows * 150 * US)
    return found, "were full or could take no further request (max_batch_size: 8)", "count: 2"


def mixed_shapes(seed: int):
    rng = random.Random(seed)
    load = [(at, rows, rng.choice("ab")) for at, rows, _ in poisson(seed, 1000, 100)]
    found = simulate(model(), load, lambda _: 300 * US)
    return found, "other input shapes", "allow_ragged_batch"


def queue_too_short(seed: int):
    load = poisson(seed, 1000, 100)
    found = simulate(model(max_queue_size=4, max_batch_size=2), load, lambda _: 500 * US)
    return found, "of requests never ran: max_queue_size requests", "count: 2"


SCENARIOS = (
    unbatched, cannot_batch, lone_in_bursts, sparse, useless_delay, saturated_by_fixed_cost,
    saturated_by_rows, mixed_shapes, queue_too_short,
)  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_the_cause_is_named_and_the_change_that_it_asks_for(scenario: Scenario):
    for seed in SEEDS:
        record, sentence, change = scenario(seed)
        found = explain(record)
        assert sentence in text(found), (seed, text(found))
        if change is None:
            assert found.proposal is None
        else:
            assert found.proposal is not None
            assert change in found.proposal.cell
            assert found.proposal.cell.startswith("%%triton_config m\n")


def line(fixed: float, row: float, rows: int = 16) -> dict[int, float]:
    return {1: fixed + row, rows: fixed + row * rows}


BATCHES = "max_batch_size: 8 dynamic_batching { }"


@pytest.mark.parametrize(
    ("takes_ms", "config", "load", "change"),
    [
        pytest.param(line(8, 0.3), "max_batch_size: 8", {"concurrency": 8}, "dynamic_batching { }",
                     id="no batching under load"),
        pytest.param(line(4, 0.3), "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 50000 }",
                     {"request_rate": 40}, "max_queue_delay_microseconds: 0", id="a long delay and little traffic"),
        pytest.param(line(6, 0.2), "max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 16 ] "
                     "max_queue_delay_microseconds: 20000 }", {"concurrency": 6},
                     "max_queue_delay_microseconds: 0", id="a preferred size that is never reached"),
        pytest.param(line(0.5, 4), BATCHES, {"concurrency": 16}, "count: 2", id="cost by the row"),
        pytest.param(line(0.5, 4), BATCHES, {"concurrency": 8}, "count: 2", id="cost by the row, in one batch"),
        pytest.param(line(10, 2), "max_batch_size: 4 dynamic_batching { }", {"request_rate": 400},
                     "max_batch_size: 8", id="overload of small batches"),
        pytest.param(line(10, 1), "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 4 } }",
                     {"request_rate": 600}, "count: 2", id="a queue that is too short"),
        pytest.param(line(3, 0.1), BATCHES, {"request_rate": 50}, None, id="enough capacity"),
        pytest.param(line(4, 0.1), "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 2000 }",
                     {"request_rate": 900}, None, id="a delay that fills batches"),
        pytest.param(line(4, 0.1), BATCHES, {"concurrency": 8}, None, id="batches that grow with the load"),
        pytest.param(line(40, 0.1), "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }",
                     {"request_rate": 45}, None, id="a delay that ends while the instance is busy"),
    ],
)  # fmt: skip
def test_the_change_that_is_proposed_helps(takes_ms, config, load, change):
    """In virtual time: the load again, with what the first time suggests."""
    profile = nt.types.Profile.declared({"m": takes_ms}, {"m": config})
    before, found = explained(profile, load, requests=400)
    found = found.proposal
    if change is None:
        assert found is None
        return
    assert found is not None
    assert change in found.fragment
    after, _ = explained(profile, load, requests=400, config=found.fragment)
    faster = before.latency_p50_us / after.latency_p50_us
    answered = after.request_count / before.request_count
    more = after.infer_per_s / before.infer_per_s
    assert max(faster, answered, more) > 1.25


def test_the_step_that_holds_an_ensemble_up_gets_the_change():
    profile = nt.types.Profile.declared(
        {"pre": line(1, 0.1), "main": line(12, 0.2)},
        {"pre": "max_batch_size: 8", "main": "max_batch_size: 8"},
    )
    text = """name: "ens" platform: "ensemble" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
        ensemble_scheduling {
          step { model_name: "pre" model_version: -1
            input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "a" } }
          step { model_name: "main" model_version: -1
            input_map { key: "IN" value: "a" } output_map { key: "OUT" value: "OUT" } } }"""
    profile = replace(profile, model="ens", ensembles={"ens": text})
    _, found = explained(profile, {"concurrency": 8}, requests=100)
    assert found.bottleneck == "main"
    assert found.proposal.cell == "%%triton_config main\ndynamic_batching { }"


def test_what_a_lost_instance_did_is_not_the_delay_s():
    load = [(n * 10 * MS, 1, None) for n in range(200)]
    record = simulate(model(delay_ns=2 * MS), load, lambda _: 3 * MS)
    # An instance that is lost is given no batch for 398 ms.
    late = record.requests[100]
    moved = late.batch._replace(
        **{
            name: getattr(late.batch, name) + 398 * MS
            for name in ("formed_ns", "start_ns", "end_ns")
        }
    )
    held_up = late._replace(batch=moved, answered_ns=late.answered_ns + 398 * MS)
    requests = [held_up if request is late else request for request in record.requests]
    batches = [moved if batch is late.batch else batch for batch in record.batches]
    for delay_ns in (0, 2 * MS):
        found = explain(
            replace(
                record,
                requests=requests,
                batches=batches,
                settings=replace(record.settings, delay_ns=delay_ns),
            )
        )
        assert next(iter(found.slow.more_us)) == "no instance"
        assert "are no instance" in found.slow.sentence


def test_refusals_are_not_blamed_on_what_did_not_refuse():
    def refused(outcome: str, status: str, at_ms: int):
        return RequestRecord(
            "m", 1, at_ms, "", 0, 0, 1, at_ms * MS, 0, 1000 * MS, 1000 * MS, 0, None, outcome, status, ""
        )  # fmt: skip

    record = simulate(model(), poisson(1, 100, 1000), lambda _: MS)
    # Chaos refuses where the queue has no limit.
    full = [refused("queue_full", "UNAVAILABLE", at) for at in range(50)]
    found = explain(replace(record, requests=[*record.requests, *full]))
    assert "which has no limit here" in text(found)
    assert found.proposal is None


def slow_part(record: ModelRecord) -> str:
    found = explain(record)
    assert found.slow is not None
    assert len(found.slow.examples) == 3
    return next(iter(found.slow.more_us))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_part_that_makes_the_slowest_slow_is_named(seed: int):
    rng = random.Random(seed)
    # One execution in 150 takes long.
    slow = set(rng.sample(range(600), 4))
    count = iter(range(10_000))
    steady = [(n * 10 * MS, 1, None) for n in range(600)]
    execution = simulate(model(), steady, lambda _: (9 if next(count) in slow else 1) * MS)
    assert slow_part(execution) == "execution"
    # One burst among steady requests.
    burst = sorted([*steady, *((3005 * MS + n, 1, None) for n in range(30))])
    assert slow_part(simulate(model(), burst, lambda _: 2 * MS)) == "queue"
    # The last of pairs waits for a third that seldom comes.
    pairs = sorted((n * 10 * MS + k * US, 1, None) for n in range(300) for k in range(2))
    lone = sorted([*pairs, (3005 * MS, 1, None), (3505 * MS, 1, None)])
    delayed = simulate(model(max_batch_size=2, delay_ns=4 * MS), lone, lambda _: MS)
    assert slow_part(delayed) == "delay"


def test_a_share_is_said_as_it_is():
    record = simulate(model(), poisson(1, 1000, 1000), lambda _: MS)
    failed = record.requests[5]._replace(status="INTERNAL", error="no memory")
    found = explain(replace(record, requests=[*record.requests * 5, failed]))
    assert "0.02% of requests failed, 1 of them with: no memory" in text(found)
    assert "the slowest 1% (10 requests) took " in text(explain(record))
    # One of sixty is more than a hundredth of them.
    few = explain(replace(record, requests=record.requests[:60]))
    assert few.slow.sentence.startswith("the slowest request took ")
    assert "slowest 1%" not in repr(few)


def test_parts_add_up_to_the_whole_and_tell_queue_from_delay():
    load = [(n * 700 * US, 1, None) for n in range(100)]
    record = simulate(
        model(delay_ns=300 * US, max_batch_size=4), load, lambda _: 1500 * US, hand_over=50 * US
    )
    busy = BusyTimes(record.batches, 1)
    for request in record.requests:
        parts = parts_of(request, busy, delay_ns=300 * US)
        assert set(parts) == set(PARTS)
        assert sum(parts.values()) == request.answered_ns - request.arrival_ns
        assert min(parts.values()) >= 0
        assert parts["hand-over"] == 50 * US
        assert parts["execution"] == 1500 * US
    first = record.requests[0]
    assert parts_of(first, busy, delay_ns=300 * US)["delay"] == 300 * US
    assert parts_of(first, busy)["queue"] == 300 * US


def step(number: int, name: str, caller: int, begin: int, end: int) -> RequestRecord:
    return RequestRecord(
        name, 1, number, "", caller, 0, 1, begin, begin, end, end, 0, None, "", "", ""
    )  # fmt: skip


def test_the_path_through_an_ensemble_is_what_it_waited_for():
    whole = step(1, "e", 0, 0, 100)
    children = {
        1: [
            step(2, "first", 1, 0, 30),
            step(3, "short", 1, 30, 50),
            step(4, "inner", 1, 30, 80),
            step(7, "last", 1, 81, 99),
        ],
        4: [step(5, "deep", 4, 31, 50), step(6, "deeper", 4, 50, 79)],
    }
    path = [one.model for one in critical_path(whole, children)]
    assert path == ["first", "deep", "deeper", "last"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bottleneck_of_an_ensemble_is_the_step_that_takes_the_time(seed: int):
    rng = random.Random(seed)
    costs = {"a": 200, "b": 300, "c": 250}
    slowest = rng.choice(sorted(costs))
    costs[slowest] = 3000
    members = {}
    begin = poisson(seed, 200, 6000)
    starts = {n: at for n, (at, _, _) in enumerate(begin)}
    first = dict(starts)
    children: dict[int, list[RequestRecord]] = {}
    for name, cost in costs.items():
        settings = Settings(name, 8, dynamic=True)
        order = sorted(starts, key=starts.get)
        record = simulate(
            settings, [(starts[n], 1, None) for n in order], lambda _, cost=cost: cost * US
        )
        by_number = {request.number: request for request in record.requests}
        for at, n in enumerate(order, 1):
            request = by_number[at]._replace(caller=100_000 + n)
            children.setdefault(100_000 + n, []).append(request)
            starts[n] = request.answered_ns
        members[name] = record
    whole = [
        step(100_000 + n, "e", 0, first[n], starts[n] + 10 * US)._replace(model="e") for n in starts
    ]
    record = ModelRecord(Settings("e", 8, ensemble=True), whole, [], children)
    found = explain(record, members)
    assert found.bottleneck == slowest
    assert found.findings[0].startswith(f"{slowest} is the bottleneck: ")
    assert found.slow is not None
    assert next(iter(found.slow.more_us)).startswith(f"{slowest}: ")


def test_the_effect_of_a_change_is_predicted_from_a_profile_or_not_at_all():
    record, _, _ = unbatched(1)
    found = explain(record)
    measured = profile({(1, 1): 0.42, (8, 1): 0.56}, more="")
    effect = predict_effect(measured, "m", found.proposal, record.answered)
    assert effect.before.latency_p99_us > 3 * effect.after.latency_p99_us
    assert "predicted under the recorded arrivals (simulated): p50 " in effect.sentence
    # The simulation without the change is what was recorded.
    waited = sorted(r.answered_ns - r.arrival_ns for r in record.answered)
    assert effect.before.latency_p50_us == pytest.approx(waited[len(waited) // 2] / 1e3, rel=0.25)
    assert "predicted" in repr(replace(found, effect=effect))
    assert "predicted" not in repr(found)
    shapes, _, _ = mixed_shapes(1)  # what-if has no such parameter
    change = explain(shapes).proposal
    assert predict_effect(measured, "m", change, shapes.answered) is None
    assert predict_effect(measured, "other", found.proposal, record.answered) is None


def test_an_interrupt_of_a_prediction_is_one(monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    record, _, _ = unbatched(1)
    monkeypatch.setattr(Experiment, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        predict_effect(profile(more=""), "m", explain(record).proposal, record.answered)


# -- on a server ---------------------------------------------------------------------------------------


def test_a_model_and_an_ensemble_of_a_server_are_explained():
    install_pb_utils()
    same = gated(Gate(is_open=True))
    tensor = {"A": "FP32[4]"}
    steps = [("m", {"IN": "A"}, {"OUT": "B"}), ("m", {"IN": "B"}, {"OUT": "C"})]
    with nt.Server(gpus=()) as server:
        server.load(echo("dynamic_batching { }"), same, name="m")
        server.load(ensemble_text(*steps, inputs=tensor, outputs={"C": "FP32[4]"}), name="e")
        empty = nt.why(server, "m")
        assert "none of its requests has been answered" in empty.headline
        assert repr(empty).endswith("Try: a measurement sends requests\n    %triton_perf m")
        assert "%triton_perf m" in empty._repr_html_()
        for _ in range(30):
            server.infer("e", {"A": ones()})
        found = nt.why(server, "m")
        assert (found.requests, found.batches, found.reasons) == (60, 60, {"no_delay": 60})
        assert found.findings[0].startswith("100% of batches had one row: an instance was idle")
        whole = nt.why(server, "e")
        assert whole.bottleneck == "m"
        assert set(whole.slow.slow_us) >= {"m: queue", "m: execution", "elsewhere"}
        shown = repr(found)
        assert "60 requests in 60 batches" in shown
        assert "no_delay" in shown
        assert "<table" in found._repr_html_()
        with pytest.raises(NotFoundError):
            nt.why(server, "n")
        history = server.history
        server.history = lambda: (server.unload("e"), history())[1]
        with pytest.raises(NotFoundError, match="'e' was unloaded while"):
            nt.why(server, "e")
        del server.history
        server.load(echo("dynamic_batching { }", max_batch_size=4), name="m")
        assert nt.why(server, "m").requests == 0  # of this configuration
    with nt.Server(gpus=(), recorder=False) as server:
        server.load(echo(), same, name="m")
        with pytest.raises(UnavailableError, match="recorder"):
            nt.why(server, "m")


@pytest.mark.parametrize(
    ("us", "text"),
    [(999.0, "999 µs"), (1000.0, "1.00 ms"), (40_300.0, "40.3 ms"), (-2500.0, "\u22122.50 ms")],
)
def test_times_are_in_milliseconds_from_one_on(us, text):
    assert time_text(us) == text


@pytest.mark.slow
@pytest.mark.skipif(not has_interpreter_lock(), reason="without a lock threads run side by side")
def test_instances_that_wait_for_each_others_python_code_are_named_with_the_option_to_type():
    def slow(IN: "INT64[1]") -> {"OUT": "INT64[1]"}:
        sum(i * i for i in range(20000))
        return {"OUT": IN}

    one = np.ones((1, 1), np.int64)
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 1 instance_group { count: 2 kind: KIND_CPU }", slow, name="m")
        while not is_waiting(server.models()[0].interpreter):
            for future in [server.submit("m", {"IN": one}) for _ in range(20)]:
                future.result()
        seen = None
        # The last sample may come after all answers.
        while seen != (seen := server.models()[0].interpreter):
            found = nt.why(server, "m")
            told = [one.text for one in nt.doctor(server, "m").findings]
    (said,) = [one for one in found.findings if "Python code" in one]
    assert said.startswith("the instances of 'm' waited for each other's Python code")
    assert said.endswith("--isolation process lets them run side by side")
    assert said in told
