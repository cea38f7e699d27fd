"""The ensemble scheduler rule by rule."""

from __future__ import annotations

import pytest

from nbtriton.scheduling import EnsemblePlan, EnsembleRun
from tests.scheduling.flow import Flow, step


def start(steps, inputs="I", outputs="O", requested=None, decoupled=()):
    plan = EnsemblePlan(steps, inputs.split(), outputs.split())
    return Flow(plan, set((requested or outputs).split()), set(decoupled))


def running(flow):
    return [index for index, _ in flow.running]


def answer(flow, index, *, finish=True):
    """The first running step of this number responds, and finishes."""
    at = running(flow).index(index)
    flow.respond(at)
    if finish:
        flow.finish(at)


TRITONS_EXAMPLE = [
    step("IMAGE", "preprocessed_image", "image_preprocess_model"),
    step("preprocessed_image", "CLASSIFICATION", "classification_model"),
    step("preprocessed_image", "SEGMENTATION", "segmentation_model"),
]


def example(requested=None):
    return start(TRITONS_EXAMPLE, "IMAGE", "CLASSIFICATION SEGMENTATION", requested)


def test_E2_a_step_starts_when_all_its_inputs_are_there():
    flow = start([step("I", "a"), step("I", "b"), step("a b", "O")])
    assert running(flow) == [0, 1]
    answer(flow, 0)
    assert running(flow) == [1]
    answer(flow, 1)
    assert running(flow) == [2]
    answer(flow, 2)
    assert flow.done
    assert flow.emitted == [0]


def test_E2_an_omitted_optional_input_counts_as_there():
    """The run is told of no inputs at all: all are there at the start."""
    flow = start([step("I J", "O")], inputs="I J")
    assert running(flow) == [0]


def test_E2_a_step_reads_one_tensor_into_two_inputs_once():
    flow = start([step("I", "a"), step("a a", "O")])
    answer(flow, 0)
    assert running(flow) == [1]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_E3_steps_that_are_ready_start_together(order):
    flow = example()
    answer(flow, 0)
    assert running(flow) == [1, 2]
    for index in order:
        assert flow.emitted == []
        answer(flow, index)
    assert flow.emitted == [0]
    assert flow.done


def test_E3_fan_out_and_fan_in():
    wide = [step("I", f"a{at}") for at in range(20)]
    flow = start([*wide, step(" ".join(f"a{at}" for at in range(20)), "O")])
    for index in range(20):
        assert len(flow.running) == 20 - index
        answer(flow, index)
    assert running(flow) == [20]


def test_E3_two_readers_start_together_if_only_one_shares_a_tensor():
    flow = start([step("I", "a b"), step("a", "c"), step("b J", "d"), step("c d J", "O")], "I J")
    answer(flow, 0)
    assert running(flow) == [1, 2]


@pytest.mark.parametrize(
    ("requested", "steps"),
    [("CLASSIFICATION", (0, 1)), ("SEGMENTATION", (0, 2)), (None, (0, 1, 2))],
)
def test_E4_only_what_the_requested_outputs_need_is_run(requested, steps):
    flow = example(requested)
    assert flow.plan.needed(frozenset(flow.requested)) == steps
    answer(flow, 0)
    assert running(flow) == list(steps[1:])


def test_E4_what_hangs_on_a_pruned_step_is_pruned_too():
    flow = start([step("I", "a"), step("a", "b"), step("b", "P"), step("a", "O")], "I", "O P", "O")
    assert flow.needed == {0, 3}


def test_E4_an_output_that_is_read_by_another_step():
    flow = start([step("I", "O"), step("O", "P")], outputs="O P")
    answer(flow, 0)
    assert flow.emitted == []  # one response with both
    answer(flow, 1)
    assert flow.emitted == [0]


def test_E5_a_start_names_the_step_whose_maps_say_what_to_send_and_request():
    plan = EnsemblePlan(TRITONS_EXAMPLE, ["IMAGE"], ["CLASSIFICATION", "SEGMENTATION"])
    (first,) = EnsembleRun(plan, plan.outputs).start().starts
    assert plan.steps[first.step].input_map == {"IN0": "IMAGE"}
    assert plan.steps[first.step].output_map == {"OUT0": "preprocessed_image"}


def test_E11_an_output_that_a_step_did_not_make_counts_as_arrived():
    """A response stands for all mapped outputs of the step, made or not."""
    flow = start([step("I", "a b"), step("b", "O")])
    answer(flow, 0)
    assert running(flow) == [1]


def test_E12_done_without_a_response_is_for_the_caller_to_see():
    flow = start([step("I", "a"), step("a", "O")])
    flow.finish(0)  # it finished without any response
    assert flow.done
    assert flow.emitted == []


def test_E13_after_a_failure_no_step_starts_and_responses_are_dropped():
    flow = start([step("I", "a"), step("I", "b"), step("a b", "O")])
    answer(flow, 0)
    flow.fail()
    answer(flow, 1)
    assert flow.emitted == []
    assert flow.done  # once the sibling has finished


def test_E13_only_the_first_failure_is_an_answer():
    plan = EnsemblePlan(TRITONS_EXAMPLE, ["IMAGE"], ["CLASSIFICATION", "SEGMENTATION"])
    run = EnsembleRun(plan, plan.outputs)
    assert not run.failed
    assert run.fail() is True
    assert run.fail() is False
    assert run.failed


# -- decoupled -----------------------------------------------------------------------------------


def test_E14_each_response_of_a_decoupled_step_runs_what_is_behind_it():
    flow = start([step("I", "a"), step("a", "b"), step("b", "O")], decoupled=[1])
    answer(flow, 0)
    for _ in range(3):
        flow.respond(running(flow).index(1))
    assert sorted(running(flow)) == [1, 2, 2, 2]
    assert len({iteration for _, iteration in flow.running}) == 4
    flow.finish(running(flow).index(1))
    for _ in range(3):
        assert not flow.done
        answer(flow, 2)
    assert flow.done
    assert len(flow.emitted) == 3


def test_E14_no_response_at_all_ends_the_request():
    flow = start([step("I", "O")], decoupled=[0])
    flow.finish(0)
    assert flow.done
    assert flow.emitted == []


def test_E14_decoupled_behind_decoupled():
    flow = start([step("I", "a"), step("a", "O")], decoupled=[0, 1])
    flow.respond(0)
    flow.respond(0)
    flow.finish(0)
    for _ in range(2):
        flow.respond(0)
        flow.respond(0)
        flow.finish(0)
    assert len(flow.emitted) == 4
    assert flow.done


def test_E14_outputs_from_before_the_fork_are_part_of_every_response():
    """Two outputs of one decoupled step, one of them worked on further."""
    flow = start([step("I", "O a"), step("a", "P")], outputs="O P", decoupled=[0])
    flow.respond(0)
    flow.respond(0)
    answer(flow, 1)
    answer(flow, 1)
    assert len(flow.emitted) == 2


def test_E14_an_iteration_is_released_while_the_stream_goes_on():
    """A stream of a thousand responses keeps nothing of those that are through."""
    flow = start([step("I", "a"), step("a", "O")], decoupled=[0])
    for number in range(1000):
        flow.respond(0)
        answer(flow, 1)
        assert list(flow.iterations) == [0], number
    flow.finish(0)
    assert flow.done
    assert flow.run._iterations == {}


# -- tensors -------------------------------------------------------------------------------------


def test_a_tensor_is_let_go_with_its_last_reader():
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


def test_a_response_costs_what_hangs_on_it_not_the_size_of_the_ensemble():
    """Only the steps behind the one that answered are looked at."""
    chain = [step(f"T{at}", f"T{at + 1}") for at in range(200)]
    plan = EnsemblePlan(chain, ["T0"], ["T200"])
    route = plan.route(frozenset(["T200"]))
    assert max(len(readers) for readers in route.readers) == 1
    assert plan.route(frozenset(["T200"])) is route  # worked out once
