"""In a real kernel: what reaches a front end, and what an interrupt does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels import SILENT_S, started_kernel
from tests.magics.cells import DOUBLE

pytestmark = pytest.mark.slow

SLOW = """\
%%triton_model slow --max-batch-size 4
import time
def slow(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    time.sleep(0.002)
    return {"OUT": IN * 2}
"""


@pytest.fixture(scope="module")
def kernel():
    model = f"%%triton_model double --max-batch-size 8\n{DOUBLE}"
    with started_kernel() as kernel:
        for cell in ("%load_ext nbtriton", model, SLOW):
            assert not errors(kernel.run(cell))
        yield kernel


def errors(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m["content"] for m in messages if m["msg_type"] == "error"]


def outputs(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [m["content"]["data"] for m in messages if m["msg_type"] == kind]


def test_an_interrupt_keeps_what_was_measured_and_the_server(kernel):
    kernel.text("before = nt = __import__('nbtriton'); n = len(nt.server().models()); print(n)")
    # Requests and no windows: a busy machine may answer none in one, which would end the sweep.
    sent = kernel.send("report = %triton_perf slow --concurrency 1:1000 --request-count 50")
    shown: list[dict[str, Any]] = []
    while not shown or "<svg" not in shown[-1]["text/html"]:  # until a level is done
        shown.append(kernel.wait_for(sent, "update_display_data")["content"]["data"])
    kernel.manager.interrupt_kernel()
    messages = kernel.until_idle(sent)
    assert not errors(messages)
    assert "<svg" in [*shown, *outputs(messages, "update_display_data")][-1]["text/html"]
    assert kernel.text("print(report.interrupted, len(report.points) >= 1)") == "True True"
    assert kernel.text("print(len(nt.server().models()) == n)") == "True"
    answer = kernel.text(
        "import numpy as np\n"
        "for name in ('slow', 'double'):\n"
        "    print(nt.server().infer(name, {'IN': np.ones((1, 4), np.float32)})['OUT'][0, 0])"
    )
    assert answer == "2.0\n2.0"


def test_an_interrupted_configuration_sweep_restores_the_configuration(kernel):
    sent = kernel.send("report = %triton_perf slow -c 1:64 --instances 2,3 -p 100")
    kernel.wait_for(sent, "display_data")
    kernel.manager.interrupt_kernel()
    messages = kernel.until_idle(sent)
    assert not errors(messages)
    count = kernel.text(
        "print(__import__('nbtriton').server().config('slow').instance_group[0].count)"
    )
    assert count == "1"


def test_a_request_to_an_ensemble_is_drawn_and_one_to_a_model_is_not(kernel):
    assert not errors(
        kernel.run("%%triton_ensemble twice\nmid = double(IN=IN)\nOUT = double(IN=mid)")
    )
    cell = "%triton_infer {} IN=[[1, 2, 3, 4]]"
    (drawn,) = outputs(kernel.run(cell.format("twice")), "display_data")
    assert drawn["text/html"].count('data-role="batch"') == 2
    assert "double (2)" in drawn["text/html"]
    assert outputs(kernel.run(cell.format("double")), "display_data") == []
    assert outputs(kernel.run(cell.format("twice") + ";"), "display_data") == []


def test_a_long_run_stands_once_in_the_notebook_above_its_last_batches(kernel):
    messages = kernel.run("%triton_perf double -c 1,2 -p 100")
    _, batches = outputs(messages, "display_data")
    assert 'data-role="batch"' in batches["text/html"]
    assert "<svg" in outputs(messages, "update_display_data")[-1]["text/html"]
    assert outputs(messages, "execute_result") == []
    assert not errors(messages)


def test_a_short_run_is_a_plain_result(kernel):
    # However long it takes on a busy machine.
    kernel.run(
        "from nbtriton.magics import live; before, live._SHOW_AFTER_S = live._SHOW_AFTER_S, 3600"
    )
    messages = kernel.run("%triton_perf double --request-count 5")
    kernel.run("live._SHOW_AFTER_S = before")
    assert outputs(messages, "display_data") == []
    assert "<svg" in outputs(messages, "execute_result")[0]["text/html"]


def test_completion_reaches_the_front_end(kernel):
    for code, expected in (
        ("%triton_perf double --conc", "--concurrency"),
        ("%triton_infer dou", "double"),
        ("%triton_infer double I", "IN="),
    ):
        reply = kernel.client.complete(code, reply=True, timeout=60)
        assert expected in reply["content"]["matches"]


def test_an_error_reaches_the_front_end_as_one_sentence(kernel):
    (error,) = errors(kernel.run("%triton_infer double IN=[1, 2, 3, 4]"))
    assert error["ename"] == "InvalidArgumentError"
    _, hint = error["traceback"]
    assert hint == "  hint: add the batch dimension: IN[None] is a batch of one"
    (error,) = errors(kernel.run("%%triton_model double\ndef double(:\n    pass\n"))
    assert error["ename"] == "SyntaxError"
    assert "line 2" in "".join(error["traceback"])
    kernel.run('%%triton_model m\ndef m(IN: "FP32[4]") -> {"O": "FP32[4]"}:\n    1 / 0\n')
    (error,) = errors(kernel.run("%triton_infer m IN=[1, 2, 3, 4]"))
    assert error["ename"] == "ModelError"
    assert "line 3, in m" in "".join(error["traceback"])
    assert "Cell In[" in "".join(error["traceback"])


def test_a_kernel_that_runs_a_cell_stays_busy_through_what_a_page_says(kernel):
    """ipykernel says idle after each message of a page, also while a cell runs on the main shell."""
    client = kernel.client
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    subshell = client.get_control_msg(timeout=SILENT_S)["content"]["subshell_id"]
    sent = kernel.send(
        "import threading; over = threading.Event()\n"
        "watch = %triton_watch double\n"
        "watch.view.on_msg(lambda _, said, __: said['view'] == 'last' and over.set())\n"
        "print('ready', flush=True); over.wait(60)"
    )
    opened: dict[str, Any] = {"data": {"state": {}}}
    while "place" not in opened["data"]["state"]:  # not that of its layout
        opened = kernel.wait_for(sent, "comm_open")["content"]
    kernel.wait_for(sent, "stream")

    def say(page: str) -> str:
        data = {"method": "custom", "content": {"kind": "here", "view": page}}
        message = client.session.msg("comm_msg", {"comm_id": opened["comm_id"], "data": data})
        message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    first, states = say("first"), []
    while len(states) < 3:
        states.append(kernel.wait_for(first, "status")["content"]["execution_state"])
    say("last")
    kernel.until_idle(sent)
    # Once more behind the cell's own, as "busy" may have been said after that.
    states.append(kernel.wait_for(first, "status")["content"]["execution_state"])
    kernel.run("watch.stop()")
    assert states == ["busy", "idle", "busy", "idle"]
