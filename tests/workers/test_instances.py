"""An instance in a process of its own does what one in a thread does (PB12)."""

# ruff: noqa: N803 - tensors have Triton's names

from __future__ import annotations

import json
import logging
import os
import re
import threading

import numpy as np
import pytest

from nbtriton.common.errors import ModelError, NotFoundError
from tests.workers.conftest import ARRAY, TARGET, WORDS

pytestmark = pytest.mark.slow

LARGE = np.arange(150528, dtype=np.float32)


def _renamed(value):
    """Without the names of instances, of which any may have served."""
    return re.sub(r"_0_[01]\b", "", json.dumps(value).replace("apart", "here"))


def test_it_is_another_process(both):
    inside, outside = both("pid")
    assert inside == os.getpid() != outside


@pytest.mark.parametrize("array", [ARRAY, LARGE, np.zeros(0, np.float32)])
def test_tensors_of_any_size_come_and_go(both, array):
    for found in both("double", IN=array):
        np.testing.assert_array_equal(found, array * 2)


def test_inputs_are_the_models_own(ask):
    for array in (ARRAY.copy(), LARGE.copy()):
        before = array.copy()
        np.testing.assert_array_equal(ask("apart", "write", IN=array), before + 1)
        np.testing.assert_array_equal(array, before)


def test_an_input_that_the_model_keeps_stays_as_it_is(ask):
    ask("apart", "forget")
    found = [ask("apart", "keep", IN=np.full_like(LARGE, value)) for value in range(4)]
    assert found == [None, [0, 0], [1, 1], [2, 2]]
    ask("apart", "forget")


def test_outputs_that_the_caller_keeps_stay_as_they_are(ask):
    kept = [ask("apart", "double", IN=np.full_like(LARGE, value)) for value in range(4)]
    assert [(array.min(), array.max()) for array in kept] == [(2 * v, 2 * v) for v in range(4)]


def test_text_travels(server):
    for model in ("here", "apart"):
        result = server.infer(model, {"WORDS": WORDS}, parameters={"program": "text"})
        assert result["TEXT"].tolist() == WORDS[::-1].tolist()


def test_a_request_looks_the_same(server):
    def seen(model):
        result = server.infer(
            model, {"IN": ARRAY}, outputs=["TEXT"], request_id="7", timeout_us=10**7,
            sequence_id=3, parameters={"program": "what_it_sees", "b": True, "s": "x", "i": 5},
        )  # fmt: skip
        return json.loads(result["TEXT"][0])

    inside, outside = seen("here"), seen("apart")
    assert outside == json.loads(json.dumps(inside).replace('"here', '"apart'))


def test_options_that_numpy_made_are_numbers_and_texts(server):
    result = server.infer(
        "apart", {np.str_("IN"): ARRAY}, request_id=np.str_("r"), timeout_us=np.int64(10**7),
        sequence_id=np.int32(3), parameters={"program": np.str_("what_it_sees")},
    )  # fmt: skip
    seen = json.loads(result["TEXT"][0])
    assert [seen[key] for key in ("id", "timeout", "correlation_id", "inputs")] == [
        "r", 10**7, 3, ["IN"],
    ]  # fmt: skip


def test_PB12_an_exception_has_the_same_texts_and_the_users_line(server):
    def failure(model):
        with pytest.raises(ModelError) as caught:
            server.infer(model, {"IN": ARRAY}, parameters={"program": "fail"})
        return caught.value

    inside, outside = failure("here"), failure("apart")
    assert outside.message == inside.message.replace("here_0_0", "apart_0_0")
    assert outside.user_traceback == inside.user_traceback
    assert 'programs.py", line' in outside.user_traceback
    assert outside.user_traceback.splitlines()[-1] == "ValueError: kaboom"
    assert "kaboom" in str(outside.__cause__)


def test_the_worker_goes_on_after_an_exception(server, ask):
    before = ask("apart", "pid")
    for program in ("fail", "leave"):
        with pytest.raises(ModelError):
            ask("apart", program)
    assert ask("apart", "pid") == before


def test_an_error_of_one_request_has_its_status(ask):
    for model in ("here", "apart"):
        with pytest.raises(NotFoundError, match="not this one"):
            ask(model, "error")


def test_what_a_model_says_is_heard_here(ask, capsys, caplog):
    with pytest.warns(RuntimeWarning, match="warned"):
        ask("apart", "say")
    assert capsys.readouterr().out == "printed\n"
    (record,) = [one for one in caplog.records if one.name == "nbtriton.model.apart"]
    assert (record.getMessage(), record.levelno) == ("logged", logging.WARNING)
    assert record.pathname.endswith("programs.py")


@pytest.mark.parametrize(
    "program",
    [
        "bls", "bls_unknown", "bls_failing", "bls_stream", "bls_stream_refused", "bls_in_a_thread",
        "ready", "load", "by_sender", "later",
    ],
)  # fmt: skip
def test_PB12_a_model_uses_the_server(both, program):
    inside, outside = both(program)
    assert _renamed(outside) == _renamed(inside)


def test_calls_carry_large_tensors(ask):
    np.testing.assert_array_equal(ask("apart", "bls_large", IN=LARGE), LARGE + 1)


def test_metrics_are_the_servers(ask):
    first = ask("here", "count")
    assert ask("apart", "count") == first + 2
    assert ask("here", "count") == first + 4
    assert "different type" in ask("apart", "count_otherwise")


def test_dlpack_works_in_place(both):
    for found in both("by_dlpack"):
        np.testing.assert_array_equal(found, ARRAY * 3)


def test_a_running_request_sees_that_it_was_cancelled(server):
    started, cancelled = threading.Event(), threading.Event()

    def note(event):
        def told(IN):
            event.set()
            return {"OUT": IN}

        return told

    server.load(TARGET.format(more=""), model=note(started), name="started")
    server.load(TARGET.format(more=""), model=note(cancelled), name="cancelled")
    future = server.submit("apart", {"IN": ARRAY}, parameters={"program": "wait_for_cancel"})
    assert started.wait(30)
    future.cancel()
    assert cancelled.wait(30)
