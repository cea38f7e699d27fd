"""The search on given execution times, where the best is known; and one live run, through to `apply`."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.tuning.device_profiles import measure_memory
from nbtriton.extensions.tuning.search import Goal, InstanceMemory, Search
from nbtriton.lab.perf.progress import progress_line
from nbtriton.lab.perf.sweep import SweepPlan, model_tree
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.model.config import format_pbtxt
from tests.children import run_python
from tests.simulate.profiles import chain, config, model_profile, profile

SLEEPS = """name: "sleeps" backend: "identity" max_batch_size: 4 dynamic_batching {}
    input { name: "INPUT0" data_type: TYPE_FP32 dims: 2 }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
    instance_group { count: 1 kind: KIND_CPU }
    parameters { key: "execute_delay_ms" value { string_value: "3" } }"""
FOREVER_S = 600.0
MEGABYTES = 24
HUNGRY = f"""
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.kept = np.ones({MEGABYTES} * 10**6 // 8)

    def execute(self, requests):
        time.sleep(0.002)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
            for r in requests
        ]
"""


def search(found, goal, spaces, seconds=FOREVER_S, memory=None):
    ensembles, others = model_tree(found, found.model)
    one = Search(found, SweepPlan(ensembles, others), spaces, goal, memory=memory)
    one.run(seconds, lambda _: None)
    return one


SPACE = {"instances": [1, 2, 4], "max_batch_size": [1, 4, 8], "max_queue_delay_us": [0]}


def test_a_small_space_is_searched_whole():
    # The larger the batch the more throughput; four instances do not disturb each other.
    found = search(
        profile({(1, 1): 1.0, (8, 1): 2.0, (1, 4): 1.0, (8, 4): 2.0}), Goal(), {"m": SPACE}
    )
    assert len(found.found) == 3 * 3
    best = found.best()[0]
    assert best.options["m"]["instances"] == 4
    assert best.options["m"]["max_batch_size"] == 8
    assert best.predicted.infer_per_s == pytest.approx(16_000, rel=0.05)


def test_instances_that_bring_nothing_are_not_taken():
    # Two at once take twice as long: a second instance is memory for nothing.
    contended = profile({(1, 1): 1.0, (8, 1): 2.0, (1, 4): 4.0, (8, 4): 8.0}, cores=1.0)
    best = search(contended, Goal(), {"m": SPACE}).best()[0]
    assert best.options["m"]["instances"] == 1
    assert best.options["m"]["max_batch_size"] == 8


def test_a_latency_limit_holds():
    # A batch of eight takes 8 ms: with a limit of 5 ms only smaller ones are possible.
    slow = profile({(1, 1): 1.0, (8, 1): 8.0, (1, 4): 1.0, (8, 4): 8.0})
    best = search(slow, Goal(p99_ms=5), {"m": SPACE}).best()[0]
    assert best.predicted.latency_p99_us <= 5000
    assert best.options["m"]["instances"] == 4


def test_the_fewest_instances_for_a_rate():
    goal = Goal("instances", request_rate=5000, p99_ms=10)
    best = search(profile({(1, 1): 1.0, (8, 1): 2.0, (1, 4): 1.0, (8, 4): 2.0}), goal, {"m": SPACE})
    # One does 4000 requests a second at most, two do 8000.
    assert best.best()[0].options["m"]["instances"] == 2


@pytest.mark.medium
def test_a_rate_that_is_served_is_no_miss_where_few_of_its_random_gaps_were_short():
    # Two instances serve 900 a second; whether some 300 of such requests come in 1/3 s is chance.
    for seed in range(5):
        found = profile({(1, 1): 1.0, (8, 1): 2.0, (8, 2): 2.0})
        one = Search(
            found, SweepPlan(*model_tree(found, "m")), {"m": SPACE}, Goal("instances", request_rate=900),
            seed=seed,
        )  # fmt: skip
        one.run(FOREVER_S, lambda _: None)
        assert one.best()[0].instances == 1


def test_a_batcher_that_a_candidate_adds_forms_batches_as_a_loaded_one():
    # Without a batcher in its own configuration; one instance needs batches for 1500 a second.
    found = profile({(1, 1): 1.0, (8, 1): 2.0, (8, 2): 2.0}, more="")
    best = search(found, Goal("instances", request_rate=1500), {"m": SPACE}).best()[0]
    assert best.options["m"]["instances"] == 1
    assert best.predicted.mean_batch_size > 1


@pytest.mark.medium
def test_the_least_memory_for_a_rate():
    # Both steps need two instances of one or the other for the rate; those of b are the small ones.
    space = {"instances": [1, 2, 3]}
    memory = {"a": InstanceMemory(100.0), "b": InstanceMemory(1.0, shared_mb=30.0)}
    goal = Goal("memory", request_rate=400)
    found = search(chain({"a": 2, "b": 4}, rows=1), goal, {"a": space, "b": space}, memory=memory)
    best = found.best()[0]
    assert {name: each["instances"] for name, each in best.options.items()} == {"a": 1, "b": 2}
    assert best.memory_mb == 100 + 30 + 2
    # Of those that take too little to be measured the fewest.
    nothing = search(profile(), Goal("memory"), {"m": SPACE}, memory={"m": InstanceMemory(0.0)})
    assert nothing.best()[0].instances == 1


# Memory is measured in processes of their own: what other tests free meanwhile would count too.


def in_a_process(function: Callable[..., object], *arguments: str) -> None:
    code = f"from {__name__} import {function.__name__} as run; run(*{arguments!r})"
    run_python("-c", code, check=True)


@pytest.fixture
def hungry(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(HUNGRY)
    return str(path)


def minimize_memory(hungry: str) -> None:
    text = config("hungry")
    with nt.Server() as server:
        server.load(text, hungry)
        found = Profile("hungry", {"hungry": model_profile(text, {(1, 1): 2.0, (8, 4): 2.0})})
        best = nt.tune(
            server, "hungry", minimize="memory", concurrency=1, instances=[1, 2], duration_s=FOREVER_S,
            finalists=1, max_batch_size=[8], max_queue_delay_us=[0], profile=found,
        )  # fmt: skip
        assert best.models["hungry"]["instances"] == 1
        assert best.finalists[0].memory_mb == pytest.approx(MEGABYTES, rel=0.05)
        assert "memory [MB]" in best._repr_mimebundle_()["text/plain"]
        assert any(note.startswith("hungry: an instance takes") for note in best.notes)
        assert server.config("hungry").instance_group[0].count == 1


@pytest.mark.slow
def test_the_memory_of_further_instances_is_measured_and_minimized(hungry: str):
    in_a_process(minimize_memory, hungry)


def measure_workers(hungry: str) -> None:
    with nt.Server(isolation="process") as server:
        server.load(config("hungry"), hungry)
        others = {"hungry": server.config("hungry")}
        found = measure_memory(server, "hungry", others, lambda: None, lambda _: None)
    assert 0.8 * MEGABYTES < found["hungry"].each_mb < 10 * MEGABYTES


@pytest.mark.slow
def test_a_worker_takes_what_its_model_keeps_and_an_interpreter(hungry: str):
    in_a_process(measure_workers, hungry)


def measure_weights() -> None:
    import torch

    module = torch.nn.Linear(1000, 1000, bias=False)
    text = (
        config("linear", group="").replace("KIND_CPU", "KIND_GPU").replace("dims: 1", "dims: 1000")
    )
    with nt.Server(gpus="simulated:1") as server:
        server.load(text.replace('"python"', '"pytorch"'), module)
        others = {"linear": server.config("linear")}
        found = measure_memory(server, "linear", others, lambda: None, lambda _: None)
    assert found["linear"].shared_mb == pytest.approx(4.0)
    assert found["linear"].of(3) - found["linear"].of(1) == pytest.approx(0, abs=4)


@pytest.mark.slow
def test_weights_on_a_device_are_shared():
    pytest.importorskip("torch", reason="weights are those of a torch model")
    in_a_process(measure_weights)


@pytest.mark.medium
def test_the_steps_of_an_ensemble_have_options_of_their_own():
    space = {"instances": [1, 2, 3, 4]}
    found = search(chain({"a": 1, "b": 3}, rows=1), Goal(concurrency=16), {"a": space, "b": space})
    best = found.best()[0].options
    # The slow step limits: with four instances it does 1333 a second, for which the fast one needs two.
    assert best["b"]["instances"] == 4
    assert best["a"]["instances"] == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maximize": "profit"}, "unknown maximize 'profit': it is throughput"),
        ({"minimize": "memori"}, "unknown minimize 'memori'"),
        ({"minimize": "memory", "placement": "auto"}, "instances with their memory"),
        ({"minimize": "latency"}, "the lowest latency is that of no load"),
        ({"p99_ms": 0}, "p99_ms must be a number above 0"),
        ({"concurrency": 1, "request_rate": 5}, "not both"),
        ({"finalists": 0}, "finalists must be a whole number from 1"),
    ],
)
def test_goals_that_make_no_sense_are_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        nt.tune(None, "m", **options)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no room")])
@pytest.mark.parametrize("during", ["2 rows", "configurations simulated", "finalist 1"])
def test_an_interrupt_or_an_error_leaves_what_was_predicted(during, error):
    def stop(progress):
        if during in progress.what:
            raise error

    with nt.Server() as server:
        server.load(SLEEPS)
        found = Profile(
            "sleeps",
            {"sleeps": model_profile(format_pbtxt(server.config("sleeps")), {(1, 1): 3.0})},
        )
        best = nt.tune(
            server, "sleeps", instances=[1], max_queue_delay_us=[0], concurrency=2, observer=stop,
            profile=None if during == "2 rows" else found,
        )  # fmt: skip
        interrupted = isinstance(error, KeyboardInterrupt)
        assert (best.interrupted, not best.failure) == (interrupted, interrupted)
        assert best.best is best.finalists[0].predicted
        assert best.finalists[0].measured is None
        words = "interrupted" if interrupted else "ended by an error"
        assert best.headline.endswith(words)
        shown = best._repr_mimebundle_()["text/plain"]
        assert (
            f"note: {words} before a configuration was measured: the figures are predicted" in shown
        )
        assert ("no room" in shown) != interrupted
        assert "0 measured" in best.headline
        assert server.config("sleeps").instance_group[0].count == 1


@pytest.mark.medium
def test_the_next_candidate_is_measured_where_a_finalist_misses_a_limit():
    with nt.Server() as server:
        server.load(SLEEPS)
        text = format_pbtxt(server.config("sleeps"))
        # Single rows do not take 0.1 ms, but 3 ms: 333 a second at most.
        found = Profile("sleeps", {"sleeps": model_profile(text, {(1, 1): 0.1, (4, 1): 3.1})})
        seen = []
        best = nt.tune(
            server, "sleeps", instances=[1], max_batch_size=[1, 4], max_queue_delay_us=[0], concurrency=8,
            minimize="latency", min_throughput=500, profile=found, finalists=1, observer=seen.append,
        )  # fmt: skip
        assert sorted(each.options["sleeps"]["max_batch_size"] for each in best.finalists) == [1, 4]
        assert all(each.measured is not None for each in best.finalists)
        assert not best.interrupted
        # Also while it measures it says how far it is, and shows what it has.
        measuring = [progress for progress in seen if progress.what.startswith("finalist")]
        assert all(progress.eta_s is not None and progress.points for progress in measuring)
        assert all(0 < progress_line(progress)[1] <= 1 for progress in measuring)


def test_a_measurement_without_an_answer_is_within_no_limit():
    with nt.Server() as server:
        server.load(SLEEPS)
        text = format_pbtxt(server.config("sleeps"))
        found = Profile("sleeps", {"sleeps": model_profile(text, {(1, 1): 3.0})})
        server.infer, server.submit = refuse, refuse
        best = nt.tune(
            server, "sleeps", instances=[1], max_batch_size=[1], max_queue_delay_us=[0], concurrency=2,
            p99_ms=20, profile=found, finalists=1,
        )  # fmt: skip
    assert best.best.error_count > 0
    assert "within the limit" not in best.finding
    (note,) = best.notes
    assert "no configuration was measured within the limits" in note
    assert "failed, the first with: no memory" in note
    assert "nan" not in best._repr_mimebundle_()["text/html"].lower()


def test_a_configuration_that_cannot_be_loaded_gives_its_place_to_the_next():
    class Once:
        made = 0

        def initialize(self, args):
            if args["model_instance_name"].endswith("_1"):
                raise MemoryError("no memory")

        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(one, "IN").as_numpy())
                ])
                for one in requests
            ]  # fmt: skip

    with nt.Server() as server:
        server.load(
            'backend: "python" max_batch_size: 1 input { name: "IN" data_type: TYPE_FP32 dims: 1 } '
            'output { name: "OUT" data_type: TYPE_FP32 dims: 1 }',
            Once, name="once",
        )  # fmt: skip
        found = Profile.declared({"once": 10.0})
        best = nt.tune(
            server, "once", instances=[1, 2], max_batch_size=[1], max_queue_delay_us=[0], concurrency=2,
            profile=found, finalists=1, duration_s=FOREVER_S,
        )  # fmt: skip
        assert best.models == {
            "once": {"instances": 1, "max_batch_size": 1, "max_queue_delay_us": 0}
        }
        assert best.finalists[0].measured is not None
        assert any("instances=2" in note and "no memory" in note for note in best.notes)
        assert server.config("once").instance_group[0].count == 1


def refuse(*_: object, **__: object) -> None:
    raise nt.TritonError("no memory")


@pytest.mark.medium
def test_a_model_is_tuned_and_the_best_applied():
    with nt.Server() as server:
        server.load(SLEEPS)
        seen = []
        text = format_pbtxt(server.config("sleeps"))
        found = Profile("sleeps", {"sleeps": model_profile(text, {(1, 1): 3.1, (1, 2): 3.1})})
        best = nt.tune(
            server, "sleeps", instances=[1, 2], max_queue_delay_us=[0], duration_s=FOREVER_S, finalists=1,
            profile=found, observer=seen.append,
        )  # fmt: skip
        assert any("configurations simulated" in progress.what for progress in seen)
        # A busy machine measures anything: what is shown is what was predicted.
        (finalist,) = best.finalists
        assert finalist.measured is not None
        best = replace(best, finalists=(replace(finalist, measured=finalist.predicted),))
        # 3 ms for up to four rows: what has more of both is better.
        assert best.models == {
            "sleeps": {"instances": 2, "max_batch_size": 4, "max_queue_delay_us": 0}
        }
        assert best.configuration.items() >= best.models["sleeps"].items()
        assert best.configuration["concurrency"] >= 8
        assert server.config("sleeps").instance_group[0].count == 1
        assert list(best.frontier["infer_per_s"]) == sorted(best.frontier["infer_per_s"])
        shown = best._repr_mimebundle_()
        assert "config.pbtxt" in shown["text/plain"]
        chosen = best.finding
        assert chosen.startswith(
            f"chosen: concurrency {best.best.value:g}, instances=2, max_batch_size=4"
        )
        assert "; measured " in chosen
        unmeasured = (replace(best.finalists[0], measured=None),)
        assert "; predicted " in replace(best, finalists=unmeasured).finding
        assert shown["text/plain"].startswith(f"{chosen}\n")
        # What is long is folded.
        assert shown["text/html"].rindex("<details>") < shown["text/html"].rindex("<pre")
        # From what to what, and what would change; without a limit none is spoken of.
        assert best.today.infer_per_s < best.finalists[0].predicted.infer_per_s
        assert "; predicted from " in chosen
        assert "limit" not in chosen
        assert ", within the limit of 900 ms" in replace(best, p99_ms=900.0).finding
        assert "ms over the limit of 0.500 ms" in replace(best, p99_ms=0.5).finding
        changed = [line for line in best.difference.splitlines() if re.match("[-+] ", line)]
        assert [line.split() for line in changed] == [["-", "count:", "1"], ["+", "count:", "2"]]
        assert "best.apply()" in shown["text/html"]
        assert shown["text/html"].count('class="nbt-fig') == 2
        # These take milliseconds.
        assert "p99 [ms]" in shown["text/plain"]
        assert "µs" not in shown["text/plain"].replace("queue delay [µs]", "")
        assert "predicted" in shown["text/html"]
        for copied in (pickle.loads(pickle.dumps(best)), copy.deepcopy(best)):
            assert copied.config_pbtxt == best.config_pbtxt
            assert copied.frontier.equals(best.frontier)
            assert copied.server is None
        applied = copy.copy(best).apply()
        assert server.config("sleeps").instance_group[0].count == 2
        assert applied.config_pbtxt.split() == best.config_pbtxt.split()
