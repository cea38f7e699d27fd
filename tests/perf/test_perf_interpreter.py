"""A report says where instances waited for each other's Python code, and what to type."""

# ruff: noqa: F821, N803 - annotations name tensors

import pytest

import nbtriton as nt
from nbtriton.runtime.engine.diagnostics.interpreter import has_interpreter_lock

pytestmark = pytest.mark.skipif(
    not has_interpreter_lock(), reason="a free-threaded interpreter has no lock to wait for"
)


def slow(IN: "INT32[1]") -> {"OUT": "INT32[1]"}:
    sum(i * i for i in range(20000))
    return {"OUT": IN}


@pytest.mark.medium
def test_python_code_in_two_instances_is_noted_with_the_option_to_type():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 1 instance_group { count: 1 }", model=slow, name="slow")
        # On a machine without a free processor instances wait for that instead.
        for _ in range(20):
            report = nt.perf(
                server, "slow", concurrency=4, instances=[1, 2], measurement_interval_ms=200,
                max_trials=3,
            )  # fmt: skip
            if any("Python code" in note for note in report.notes):
                break
    one, two = report.points
    assert one.interpreter_wait == 0
    assert 0.15 <= two.interpreter_wait <= 0.5
    (note,) = report.notes
    assert note.startswith(
        "instances=2: the instances of 'slow' waited for each other's Python code"
    )
    assert note.endswith("--isolation process lets them run side by side")
    assert note in report._repr_mimebundle_()["text/plain"]
    assert "interpreter wait" in report._repr_mimebundle_()["text/plain"]
