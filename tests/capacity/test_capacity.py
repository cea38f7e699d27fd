"""Capacity plans: the choice, the loss of a node, and what one simulated node says about all of them."""

from __future__ import annotations

import random

import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.extensions import capacity as planning
from nbtriton.extensions.capacity import Capacity
from nbtriton.lab.perf.traffic import Call
from nbtriton.lab.simulate.experiment import Due, Experiment
from nbtriton.types import Profile

# Each simulates several fleets.
pytestmark = pytest.mark.medium

TIMES = {1: 10, 8: 24}
BATCHING = "dynamic_batching { }"
SMALL = {"instances": 2, "price_per_hour": 0.5}
BERT = Profile.declared({"bert": TIMES}, {"bert": BATCHING})


def plan(profile: Profile = BERT, **options) -> Capacity:
    given = {"request_rate": 2000, "p99_ms": 40, "machines": {"small": SMALL}} | options
    return nt.capacity(profile, **given)


def at(found: Capacity, nodes: int):
    (fleet,) = (one for one in found.fleets if one.nodes == nodes and one.instances == 2)
    return fleet


@pytest.fixture(scope="module", autouse=True)
def short_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_REQUESTS", 1000)
        patch.setattr(planning, "_PEAK_REQUESTS", 500)
        yield


@pytest.fixture(scope="module")
def found(short_windows) -> Capacity:
    return plan()


def exact_p99_ms(rate: float, nodes: int, choose) -> float:
    """Return the p99 of all requests to several nodes in one replay: each node is a model of its own."""
    names = [f"node{k}" for k in range(nodes)]
    group = BATCHING + " instance_group { count: 2 }"
    profile = Profile.declared(dict.fromkeys(names, TIMES), dict.fromkeys(names, group))
    chance, time_s, due = random.Random(5), 0.0, []
    calls = {name: Call({}, model=name) for name in names}
    for number in range(40_000):
        time_s += chance.expovariate(rate)
        due.append(Due(round(time_s * 1e9), calls[names[choose(chance, number)]], 1))
    run = Experiment(profile, {name: profile.config(name) for name in names}).replay(due)
    latencies = sorted(ns for window in run.windows.values() for ns in window.latencies_ns)
    return latencies[int(0.99 * len(latencies))] / 1e6


def test_the_choice_has_the_fewest_nodes_that_hold_the_limit(found):
    assert found.chosen.holds
    assert found.chosen.p99_ms <= 40
    assert not at(found, found.chosen.nodes - 1).holds
    assert found.chosen.price_per_hour == found.chosen.nodes * 0.5
    assert found.chosen.requests_per_s * found.chosen.nodes == pytest.approx(2000)


def test_without_a_node_the_others_have_the_whole_load(found):
    assert found.after_loss == at(found, found.chosen.nodes - 1)
    assert "over the limit" in found.headline or "overloaded" in found.headline


def test_a_fleet_for_two_losses_has_two_nodes_more(found):
    safe = plan(losses=2)
    assert safe.chosen.nodes == found.chosen.nodes + 2
    assert safe.after_loss == found.chosen
    assert "still within the limit" in safe.headline


def test_a_single_node_leaves_nothing():
    one = plan(request_rate=50)
    assert one.chosen.nodes == 1
    assert one.after_loss is None
    assert "leaves nothing" in one.headline


@pytest.mark.slow
def test_one_node_stands_for_three_behind_a_random_split(monkeypatch):
    monkeypatch.setattr(planning, "_REQUESTS", 10_000)
    for_three = at(plan(request_rate=1300, p99_ms=100), 3)
    exact_ms = exact_p99_ms(1300, 3, lambda chance, _: chance.randrange(3))
    assert for_three.p99_ms == pytest.approx(exact_ms, rel=0.05)
    # Going round makes the gaps of each node more even.
    assert exact_p99_ms(1300, 3, lambda _, number: number % 3) < exact_ms


def test_the_network_is_added(found):
    slower = plan(network_ms=7, p99_ms=47)
    assert slower.chosen.nodes == found.chosen.nodes
    assert slower.chosen.p99_ms == pytest.approx(found.chosen.p99_ms + 7)


def test_a_network_that_varies_is_drawn_for_each_request():
    # Executions take 10 ms, and nothing waits: p99 is that of the network.
    assert plan(request_rate=1, network_ms=[1] * 19 + [20], p99_ms=31).chosen.p99_ms == 30
    assert plan(request_rate=1, network_ms=[1] * 19 + [20], p99_ms=29).chosen is None
    assert plan(request_rate=1, network_ms=[1] * 999 + [20], p99_ms=29).chosen.p99_ms == 11


def test_a_long_way_leaves_a_node_its_capacity(found):
    slower = plan(network_ms=1000, p99_ms=1040)
    assert slower.chosen.utilization == pytest.approx(found.chosen.utilization, rel=0.01)


def test_the_cheapest_machine_is_chosen(found):
    dear = {"instances": 4, "price_per_hour": 3.0}
    both = plan(machines={"dear": dear, "small": SMALL})
    assert both.chosen == found.chosen
    assert {one.machine for one in both.fleets if one.holds} == {"dear", "small"}
    assert sum("no profile of its own" in note for note in both.notes) == 2


def test_a_machine_may_have_a_profile_of_its_own(found):
    fast = Profile.declared({"bert": {1: 5, 8: 12}}, {"bert": BATCHING})
    twice = plan(machines={"small": SMALL, "fast": {**SMALL, "profile": fast}})
    assert twice.chosen.machine == "fast"
    assert twice.chosen.nodes < found.chosen.nodes


def test_only_so_many_nodes_as_there_are(found):
    few = plan(machines={"small": {**SMALL, "nodes": found.chosen.nodes - 1}})
    assert few.chosen is None
    assert "no fleet serves" in few.headline


def test_what_refuses_requests_has_no_p99_to_speak_of():
    full = (
        BATCHING[:-1]
        + "default_queue_policy { default_timeout_microseconds: 2000 allow_timeout_override: true } }"
    )
    found = plan(Profile.declared({"bert": TIMES}, {"bert": full}), machines={"small": {**SMALL, "nodes": 3}})  # fmt: skip
    assert found.chosen is None
    assert {one.outcome for one in found.fleets} <= {"failed", "overloaded"}
    assert found.headline.endswith("within p99 40.0 ms")


@pytest.mark.medium
def test_a_limit_below_the_execution_time_is_out_of_reach():
    found = plan(p99_ms=5)
    assert found.chosen is None
    assert "the lowest p99 is 1" in found.headline


def test_an_instance_has_a_core():
    found = plan(machines={"cores": {"cpus": 3, "price_per_hour": 1}})
    assert found.chosen.instances == 3


@pytest.mark.medium
def test_a_thousand_instances_and_ten_million_requests_an_hour():
    slow = Profile.declared({"bert": {1: 600, 8: 2400}}, {"bert": BATCHING})
    machines = {"eight": {"instances": 8, "price_per_hour": 12.0}}
    found = plan(slow, request_rate=1e7 / 3600, p99_ms=4000, machines=machines, losses=1)
    assert 800 < found.chosen.nodes * found.chosen.instances < 1200
    assert found.after_loss.holds


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no room")])
def test_what_was_simulated_until_an_interrupt_or_an_error_is_returned(error):
    def interrupt(progress):
        if progress.level > most:
            raise error

    most = 2
    found = plan(observer=interrupt)
    interrupted = isinstance(error, KeyboardInterrupt)
    assert (found.interrupted, not found.failure) == (interrupted, interrupted)
    assert 1 <= len(found.fleets) <= 2
    assert found.headline.endswith("interrupted" if interrupted else "ended by an error")
    cheap = plan(p99_ms=1, observer=interrupt).headline  # too low for any
    assert "no fleet" not in cheap
    assert "none of the fleets that were simulated serves" in cheap
    assert ("note: ended before" in found._repr_mimebundle_()["text/plain"]) != interrupted
    most = 0
    with pytest.raises(type(error)):
        plan(observer=interrupt)


def test_the_same_seed_gives_the_same_plan(found):
    assert plan().fleets == found.fleets


def test_it_is_displayed_as_a_picture_and_a_table(found):
    shown = found._repr_mimebundle_()
    assert shown["text/plain"].startswith(found.headline)
    assert "against price, an hour" in shown["text/html"]
    assert "target 40.0 ms" in shown["text/html"]
    assert list(found.frame.nodes) == [one.nodes for one in found.fleets]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"request_rate": None}, "request_rate must be a number above 0; found None"),
        ({"machines": {}}, "machines is empty"),
        ({"machines": {"a": {"instances": 1}}}, "machine 'a' needs a price_per_hour"),
        ({"machines": {"a": {**SMALL, "cpus": 2}}}, "either instances or cpus"),
        ({"machines": {"a": {"instance": 1}}}, "machine 'a' has no 'instance'"),
        ({"machines": {"a": {"cpus": 0.5, "price_per_hour": 1}}}, "an instance keeps 1.00 busy"),
        ({"machines": {"a": {**SMALL, "nodes": 0}}}, "nodes of machine 'a' must be a whole number"),
        ({"p99": 4}, "capacity has no option 'p99'"),
    ],
)
def test_what_is_wrong_is_said(options, words):
    with pytest.raises(InvalidArgumentError) as error:
        plan(**options)
    assert words in str(error.value)


def test_a_decoupled_model_is_refused():
    stream = {"bert": "model_transaction_policy { decoupled: true }"}
    with pytest.raises(UnsupportedError):
        plan(Profile.declared({"bert": 10}, stream))


@pytest.mark.medium
def test_the_magic_plans_for_a_profile_of_the_notebook(found):
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nbtriton")
    shell.user_ns |= {"bert": BERT, "prices": {"small": SMALL}}
    line = "bert --request-rate 2000 --p99 40ms --machines prices -o plan"
    assert shell.run_line_magic("triton_capacity", line).fleets == found.fleets
    assert shell.user_ns["plan"].chosen == found.chosen
