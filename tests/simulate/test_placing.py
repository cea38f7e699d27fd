"""Auto-placement: the cheapest assignment within a limit, beside all assignments worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.tuning.placing import HOST, Copies, Measured, PlacementSearch, edges_of
from nbtriton.extensions.tuning.search import Goal
from nbtriton.lab.perf.sweep import SweepPlan, model_tree
from nbtriton.lab.simulate.model_profile import EngineCosts, Profile
from tests.simulate.gpu_replay import Replay
from tests.simulate.profiles import model_profile
from tests.simulate.random_graphs import random_graph

DEVICES = ("cpu", "gpu:0", "gpu:1")
MB_PER_MS = 0.04


def copy_ms(size, source, target):
    return 0.0 if source == target else 0.1 + size * 4 / 1e6 / MB_PER_MS


def measured(graph):
    """What would be measured of a graph: execution times with the copies of inputs from the host."""
    names = list(graph.reads)
    profiles = {}
    for device in graph.devices:
        models = {}
        for name in names:
            copies = sum(copy_ms(graph.sizes[t], "cpu", device) for t in graph.reads[name])
            took = graph.times_ms[name][device] + copies
            models[name] = model_profile(graph.model(name), {(1, 1): took})
        profiles[device] = Profile(
            "all", models, {"all": graph.ensemble()}, EngineCosts(), shared_interpreter=False
        )
    ensembles, _ = model_tree(profiles[HOST], "all")
    edges = edges_of(ensembles, "all")
    pairs = [pair for pair in itertools.product(graph.devices, repeat=2) if pair[0] != pair[1]]
    copies = {}
    for edge in edges:
        tensor = f"t{edge.writer[1:]}" if edge.writer else "in"
        times = {pair: copy_ms(graph.sizes[tensor], *pair) * 1000 for pair in pairs}
        copies[edge] = Copies({1: times})
    return Measured(profiles, edges, copies)


def cost_by_hand(graph, where):
    """Return how long a request keeps devices and copies busy in an assignment, in milliseconds."""
    total = 0.0
    for name, tensors in graph.reads.items():
        here = where[name]
        sources = [where[graph.writers[t]] if t in graph.writers else "cpu" for t in tensors]
        made = f"t{name[1:]}"
        total += graph.times_ms[name][here]
        total += sum(
            copy_ms(graph.sizes[t], s, here) for t, s in zip(tensors, sources, strict=True)
        )
        total += copy_ms(graph.sizes[made], here, "cpu") if made in graph.outputs else 0.0
    return total


def replay(graph, where, **options):
    return Replay(graph, where, copy_latency_us=100, gb_per_s=MB_PER_MS, **options)


def by_hand(graph, where):
    """Return the cost, and the latency on simulated GPUs, in milliseconds."""
    (latency_ms,) = replay(graph, where).latencies_ms
    return cost_by_hand(graph, where), latency_ms


def search(graph, goal, enough=1):
    found = measured(graph)
    ensembles, others = model_tree(found.profiles[HOST], "all")
    one = PlacementSearch(found, SweepPlan(ensembles, others), goal)
    one.run(600.0, lambda _: None, enough)
    return one


def placement(candidate):
    return {name: options["placement"] for name, options in candidate.options.items()}


@pytest.mark.parametrize("seed", range(10))
def test_the_choice_is_that_of_an_exhaustive_search_by_hand(seed):
    devices = DEVICES if seed % 2 else DEVICES[:2]
    graph = random_graph(seed, steps=4, devices=devices)
    every = [
        dict(zip(graph.reads, chosen, strict=True))
        for chosen in itertools.product(devices, repeat=len(graph.reads))
    ]
    worked_out = [(*by_hand(graph, where), where) for where in every]
    # The cheapest of all is too slow by a little, if anything else is faster.
    cheapest, fastest = min(worked_out, key=lambda w: w[0]), min(worked_out, key=lambda w: w[1])
    for limit_ms in (1e6, (cheapest[1] + fastest[1]) / 2):
        within = [one for one in worked_out if one[1] <= limit_ms]
        best = min(within, key=lambda w: w[0])
        chosen = search(graph, Goal("cost", p99_ms=limit_ms, concurrency=1)).best()[0]
        cost_ms, latency_ms = by_hand(graph, placement(chosen))
        assert cost_ms == pytest.approx(best[0], rel=1e-6)
        assert latency_ms <= limit_ms
        assert chosen.predicted.latency_p99_us / 1000 == pytest.approx(latency_ms, rel=0.02)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("seed", "largest"), [(0, 100_000), (3, 100_000), (6, 100_000), (2, 200_000), (9, 200_000)]
)
def test_copies_and_computing_overlap_as_on_the_simulated_gpu(seed, largest):
    """Several requests at once: what one copies takes no time of another one that computes.

    Each graph has two outputs, and copies of up to 20 ms.
    """
    graph = random_graph(seed, 3, DEVICES if seed % 2 else DEVICES[:2], largest)
    assert len(graph.outputs) == 2
    found = search(graph, Goal("throughput", concurrency=4))
    faster = 0
    for candidate in found.found:
        where = placement(candidate)
        ends_ns = replay(graph, where, outstanding=4, requests=240).ends
        per_s = 160e9 / (ends_ns[-1] - ends_ns[79])
        assert candidate.predicted.infer_per_s == pytest.approx(per_s, rel=0.05), where
        faster += per_s > 1.2 * 1000 / max(cost_by_hand(graph, where), 1e-3)
    assert faster > 1


def test_other_objectives_look_at_every_assignment():
    graph = random_graph(3, steps=3)
    fastest = search(graph, Goal("latency", concurrency=1))
    assert fastest.simulated == 2**3
    latencies = [
        by_hand(graph, dict(zip(graph.reads, chosen, strict=True)))[1]
        for chosen in itertools.product(graph.devices, repeat=3)
    ]
    found = by_hand(graph, placement(fastest.best()[0]))[1]
    assert found == pytest.approx(min(latencies), rel=0.02)


def test_a_limit_that_nothing_keeps_gives_the_closest():
    graph = random_graph(1, steps=3)
    one = search(graph, Goal("cost", p99_ms=0.001, concurrency=1))
    assert one.simulated == 2**3
    latencies = [candidate.predicted.latency_p99_us for candidate in one.found]
    assert one.best()[0].predicted.latency_p99_us == min(latencies)


def test_tensors_that_stay_on_the_host_are_not_copied():
    graph = random_graph(2, steps=2)
    found = measured(graph)
    where = dict.fromkeys(graph.reads, "gpu:0")
    stays = frozenset(
        ("gpu:0", name, tensor)
        for name, tensors in graph.reads.items()
        for tensor in ("Y", *(f"X{at}" for at in range(len(tensors))))
    )
    assert found.copying_us("s0", 1, where) > 0
    on_host = Measured(found.profiles, found.edges, found.copies, stays)
    assert [on_host.copying_us(name, 1, where) for name in graph.reads] == [0, 0]


def test_too_many_assignments_are_refused():
    graph = random_graph(0, steps=11, devices=DEVICES)
    with pytest.raises(InvalidArgumentError, match="can be placed in 177147 ways"):
        search(graph, Goal("cost"))


SIZE = "data_type: TYPE_FP32 dims: 4"


@pytest.mark.slow
def test_a_pipeline_is_placed_by_what_was_measured_and_applied():
    """On a simulated GPU `slow_here` is fast but for one stall, and `slow_there` is not."""
    from time import sleep

    stalls = iter([False] * 9 + [True])

    def step(host_ms, gpu_ms):
        def run(X):  # noqa: N803
            on_host = isinstance(X, np.ndarray)
            stalled = not on_host and host_ms > gpu_ms and next(stalls, False)
            sleep(0.5 if stalled else (host_ms if on_host else gpu_ms) / 1000)
            return {"Y": X}

        return run

    with nt.Server(gpus="simulated:1,module=1000") as server:
        tensors = f"""max_batch_size: 1 instance_group {{ kind: KIND_CPU }}
            input {{ name: "X" {SIZE} }} output {{ name: "Y" {SIZE} }}"""
        server.load(tensors, step(20, 1), name="slow_here")
        server.load(tensors, step(1, 20), name="slow_there")
        server.load(
            f"""name: "both" platform: "ensemble" max_batch_size: 1
            input {{ name: "IN" {SIZE} }} output {{ name: "OUT" {SIZE} }}
            ensemble_scheduling {{
              step {{ model_name: "slow_here" model_version: -1
                      input_map {{ key: "X" value: "IN" }} output_map {{ key: "Y" value: "t" }} }}
              step {{ model_name: "slow_there" model_version: -1
                      input_map {{ key: "X" value: "t" }} output_map {{ key: "Y" value: "OUT" }} }}
            }}"""
        )
        best = nt.tune(server, "both", placement="auto", finalists=1, p99_ms=10_000, duration_s=4)
        assert best.models == {
            "slow_here": {"placement": "gpu:0"}, "slow_there": {"placement": "cpu"}
        }  # fmt: skip
        assert best.configuration == {
            "placement": {"slow_here": "gpu:0", "slow_there": "cpu"}, "concurrency": 1
        }  # fmt: skip
        assert "the times are simulated" in best.notes[0]
        kinds = {m.name: {i.kind for i in m.instances} for m in server.models() if m.instances}
        assert kinds == {"slow_here": {"KIND_CPU"}, "slow_there": {"KIND_CPU"}}
        best.apply()
        kinds = {m.name: {i.kind for i in m.instances} for m in server.models() if m.instances}
        assert kinds == {"slow_here": {"KIND_GPU"}, "slow_there": {"KIND_CPU"}}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"placement": "gpu"}, "unknown placement 'gpu': it is auto"),
        ({"placement": "auto", "instances": [1, 2]}, "are as they are"),
        ({"placement": "auto", "minimize": "instances"}, "are as they are"),
        ({"minimize": "cost"}, "cost is that of a placement"),
        ({"placement": "auto"}, "there is one device, the host"),
    ],
)
def test_what_cannot_be_placed_is_refused(options, text):
    with nt.Server(gpus=()) as server:
        server.load(f'max_batch_size: 1 input {{ name: "X" {SIZE} }} output {{ name: "X" {SIZE} }}',
                    lambda X: {"X": X}, name="m")  # noqa: N803  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=text):
            nt.tune(server, "m", **options)
