"""Ensemble scheduler rule by rule."""

from __future__ import annotations

import pytest

from nbtriton.scheduling import EnsemblePlan, EnsembleRun
from tests.scheduling.ensemble_oracle import EnsemblePair, step


def start(steps, inputs="I", outputs="O", requested=None, decoupled=()):
    plan = EnsemblePlan(steps, inputs.split(), outputs.split())
    return EnsemblePair(plan, set((requested or outputs).split()), set(decoupled))


def running(pair):
    return [index for index, _ in pair.running]


def answer(pair, index, *, finish=True):
    """The first running step of this number responds and finishes."""
    at = running(pair).index(index)
    pair.respond(at)
    if finish:
        pair.finish(at)


TRITONS_EXAMPLE = [
    step("IMAGE", "preprocessed_image", "image_preprocess_model"),
    step("preprocessed_image", "CLASSIFICATION", "classification_model"),
    step("preprocessed_image", "SEGMENTATION", "segmentation_model"),
]


def example(requested=None):
    return start(TRITONS_EXAMPLE, "IMAGE", "CLASSIFICATION SEGMENTATION", requested)


def test_E2_a_step_starts_when_all_its_inputs_have_arrived():
    pair = start([step("I", "a"), step("I", "b"), step("a b", "O")])
    assert running(pair) == [0, 1]
    answer(pair, 0)
    assert running(pair) == [1]
    answer(pair, 1)
    assert running(pair) == [2]
    answer(pair, 2)
    assert pair.done
    assert pair.emitted == [0]


def test_E2_an_omitted_optional_input_counts_as_arrived():
    """The run does not know the request's inputs: at the start all count as arrived."""
    pair = start([step("I J", "O")], inputs="I J")
    assert running(pair) == [0]


def test_E2_a_step_reads_one_tensor_into_two_inputs_once():
    pair = start([step("I", "a"), step("a a", "O")])
    answer(pair, 0)
    assert running(pair) == [1]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_E3_steps_that_are_ready_start_together(order):
    pair = example()
    answer(pair, 0)
    assert running(pair) == [1, 2]
    for index in order:
        assert pair.emitted == []
        answer(pair, index)
    assert pair.emitted == [0]
    assert pair.done


def test_E3_fan_out_and_fan_in():
    wide = [step("I", f"a{at}") for at in range(20)]
    pair = start([*wide, step(" ".join(f"a{at}" for at in range(20)), "O")])
    for index in range(20):
        assert len(pair.running) == 20 - index
        answer(pair, index)
    assert running(pair) == [20]


def test_E3_two_readers_start_together_if_only_one_shares_a_tensor():
    flow = start([step("I", "a b"), step("a", "c"), step("b J", "d"), step("c d J", "O")], "I J")
    answer(flow, 0)
    assert running(flow) == [1, 2]


@pytest.mark.parametrize(
    ("requested", "steps"),
    [("CLASSIFICATION", (0, 1)), ("SEGMENTATION", (0, 2)), (None, (0, 1, 2))],
)
def test_E4_only_steps_that_the_requested_outputs_need_run(requested, steps):
    pair = example(requested)
    assert pair.plan.route(frozenset(pair.requested)).steps == steps
    answer(pair, 0)
    assert running(pair) == list(steps[1:])


def test_E4_steps_that_depend_on_a_pruned_step_are_pruned_too():
    pair = start([step("I", "a"), step("a", "b"), step("b", "P"), step("a", "O")], "I", "O P", "O")
    assert pair.needed == {0, 3}


def test_E4_an_output_that_is_read_by_another_step():
    pair = start([step("I", "O"), step("O", "P")], outputs="O P")
    answer(pair, 0)
    assert pair.emitted == []  # one response with both
    answer(pair, 1)
    assert pair.emitted == [0]


def test_E5_a_start_has_the_step_with_its_input_and_output_maps():
    plan = EnsemblePlan(TRITONS_EXAMPLE, ["IMAGE"], ["CLASSIFICATION", "SEGMENTATION"])
    (first,) = EnsembleRun(plan, plan.outputs).start().starts
    assert plan.steps[first.step].input_map == {"IN0": "IMAGE"}
    assert plan.steps[first.step].output_map == {"OUT0": "preprocessed_image"}


def test_E11_an_output_that_a_step_did_not_make_counts_as_arrived():
    """A response stands for all mapped outputs of the step, made or not."""
    pair = start([step("I", "a b"), step("b", "O")])
    answer(pair, 0)
    assert running(pair) == [1]


def test_E12_a_run_may_be_done_without_a_response():
    pair = start([step("I", "a"), step("a", "O")])
    pair.finish(0)  # it finished without any response
    assert pair.done
    assert pair.emitted == []


def test_E13_after_a_failure_no_step_starts_and_responses_are_dropped():
    pair = start([step("I", "a"), step("I", "b"), step("a b", "O")])
    answer(pair, 0)
    pair.fail()
    answer(pair, 1)
    assert pair.emitted == []
    assert pair.done  # once the sibling has finished


def test_E13_only_the_first_failure_is_an_answer():
    plan = EnsemblePlan(TRITONS_EXAMPLE, ["IMAGE"], ["CLASSIFICATION", "SEGMENTATION"])
    run = EnsembleRun(plan, plan.outputs)
    assert not run.failed
    assert run.fail() is True
    assert run.fail() is False
    assert run.failed


# -- decoupled -----------------------------------------------------------------------------------


def test_E14_each_response_of_a_decoupled_step_runs_the_steps_behind_it():
    pair = start([step("I", "a"), step("a", "b"), step("b", "O")], decoupled=[1])
    answer(pair, 0)
    for _ in range(3):
        pair.respond(running(pair).index(1))
    assert sorted(running(pair)) == [1, 2, 2, 2]
    assert len({iteration for _, iteration in pair.running}) == 4
    pair.finish(running(pair).index(1))
    for _ in range(3):
        assert not pair.done
        answer(pair, 2)
    assert pair.done
    assert len(pair.emitted) == 3


def test_E14_no_response_at_all_ends_the_request():
    pair = start([step("I", "O")], decoupled=[0])
    pair.finish(0)
    assert pair.done
    assert pair.emitted == []


def test_E14_decoupled_behind_decoupled():
    pair = start([step("I", "a"), step("a", "O")], decoupled=[0, 1])
    pair.respond(0)
    pair.respond(0)
    pair.finish(0)
    for _ in range(2):
        pair.respond(0)
        pair.respond(0)
        pair.finish(0)
    assert len(pair.emitted) == 4
    assert pair.done


def test_E14_outputs_from_before_the_fork_are_part_of_every_response():
    """Two outputs of one decoupled step, one of them worked on further."""
    pair = start([step("I", "O a"), step("a", "P")], outputs="O P", decoupled=[0])
    pair.respond(0)
    pair.respond(0)
    answer(pair, 1)
    answer(pair, 1)
    assert len(pair.emitted) == 2


def test_E14_an_iteration_is_released_while_the_stream_goes_on():
    """A stream of a thousand responses keeps no state of the finished ones."""
    pair = start([step("I", "a"), step("a", "O")], decoupled=[0])
    for number in range(1000):
        pair.respond(0)
        answer(pair, 1)
        assert list(pair.iterations) == [0], number
    pair.finish(0)
    assert pair.done
    assert pair.run._iterations == {}


# -- tensors -------------------------------------------------------------------------------------


def test_a_tensor_is_released_with_its_last_reader():
    plan = EnsemblePlan(TRITONS_EXAMPLE, ["IMAGE"], ["CLASSIFICATION", "SEGMENTATION"])
    run = EnsembleRun(plan, plan.outputs)
    (first,) = run.start().starts
    assert first.release == ("IMAGE",)
    _, advance = run.response(0, 0, new_iteration=False)
    assert [start.release for start in advance.starts] == [(), ("preprocessed_image",)]


def test_a_requested_tensor_is_kept_for_the_response():
    plan = EnsemblePlan([step("I", "O"), step("O", "P")], ["I"], ["O", "P"])
    run = EnsembleRun(plan, plan.outputs)
    run.start()
    _, advance = run.response(0, 0, new_iteration=False)
    assert [start.release for start in advance.starts] == [()]
    assert not run.finished(0).over
    _, advance = run.response(1, 0, new_iteration=False)
    assert advance.emit
    last = run.finished(0)
    assert (last.over, last.done, last.emit, list(last.starts)) == (True, True, False, [])


def test_the_cost_of_a_response_depends_on_its_readers_not_on_the_size_of_the_ensemble():
    """Only the steps that read from the responding one are visited."""
    chain = [step(f"T{at}", f"T{at + 1}") for at in range(200)]
    plan = EnsemblePlan(chain, ["T0"], ["T200"])
    route = plan.route(frozenset(["T200"]))
    assert max(len(readers) for readers in route.readers) == 1
    assert plan.route(frozenset(["T200"])) is route  # computed once
