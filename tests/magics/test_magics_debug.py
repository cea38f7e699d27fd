"""Debuggers stop in a model's cell: set_trace, %debug after an error, and debugpy as front ends use it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.kernels import Kernel, started_kernel

pytestmark = pytest.mark.slow

PATIENCE_S = 60
ASK = "np.ones((1, 4), np.float32)"
STOPPING = """\
%%triton_model stopping --max-batch-size 4
def stopping(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    secret = IN.sum()
    set_trace()
    return {"OUT": IN * 2}
"""
FAILING = """\
%%triton_model failing --max-batch-size 4
def failing(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    hidden = IN.sum() + 38
    return {"OUT": IN / nothing}
"""
PLAIN = """\
%%triton_model plain --max-batch-size 4
def plain(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    half = IN / 2
    return {"OUT": half}
"""
BREAKING = """\
%%triton_model breaking --max-batch-size 4
def breaking(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    breakpoint()
    return {"OUT": IN / 2}
"""


class Debugger:
    """Runs cells of a kernel, types into their prompts, and speaks to the debugger."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.client = kernel.client
        self._number = 0

    def run(self, cell: str, *typed: str) -> str:
        """What a cell writes while these lines are typed."""
        lines, written = list(typed), []

        def show(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                written.append(message["content"]["text"])

        self.client.execute_interactive(
            cell, output_hook=show, allow_stdin=True, timeout=PATIENCE_S,
            stdin_hook=lambda _message: self.client.input(lines.pop(0)),
        )  # fmt: skip
        assert not lines, "".join(written)
        return re.sub(r"\x1b\[[0-9;]*m", "", "".join(written))

    def debug(self, command: str, **arguments: Any) -> Any:
        """The answer to a request of the debug adapter protocol."""
        self._number += 1
        request = {
            "type": "request",
            "seq": self._number,
            "command": command,
            "arguments": arguments,
        }
        message = self.client.session.msg("debug_request", request)
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=PATIENCE_S)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                assert reply["content"].get("success"), reply["content"]
                return reply["content"].get("body")

    def event(self, kind: str) -> Any:
        """The next event of the debugger of this kind."""
        while True:
            message = self._kernel.next_message()
            if message["msg_type"] == "debug_event" and message["content"]["event"] == kind:
                return message["content"]["body"]


@pytest.fixture(scope="module")
def kernel():
    with started_kernel() as started:
        kernel = Debugger(started)
        kernel.run(
            "%load_ext nbtriton\n"
            "import numpy as np\nimport nbtriton as nt\n"
            "from IPython.core.debugger import set_trace"
        )
        yield kernel


@pytest.mark.parametrize(
    "cell",
    [
        f"result = %triton_infer stopping IN={ASK}",  # in the caller's thread
        f"nt.server().submit('stopping', {{'IN': {ASK}}}).result({PATIENCE_S})",
    ],
    ids=["infer", "submit"],
)
def test_set_trace_stops_in_the_model(kernel, cell):
    kernel.run(STOPPING)
    said = kernel.run(cell, "p secret + 38", "c")
    assert '----> 5     return {"OUT": IN * 2}' in said
    assert "42.0" in said


def test_debug_after_an_error_reaches_the_line_of_the_model(kernel):
    kernel.run(FAILING)
    kernel.run(f"%triton_infer failing IN={ASK}")
    said = kernel.run("%debug", "exceptions 0", "p hidden", "q")
    assert '----> 4     return {"OUT": IN / nothing}' in said
    assert "42.0" in said


def test_a_breakpoint_of_the_front_end_and_one_in_the_code_stop_in_the_cell(kernel):
    pytest.importorskip("debugpy", reason="ipykernel brings it on most machines")
    kernel.debug("initialize", clientID="test", adapterID="", pathFormat="path",
                 linesStartAt1=True, columnsStartAt1=True)  # fmt: skip
    kernel.debug("attach")
    cell = PLAIN.rstrip("\n")  # as front ends keep the text of a cell
    path = kernel.debug("dumpCell", code=cell)["sourcePath"]
    kernel.debug(
        "setBreakpoints", source={"path": path}, breakpoints=[{"line": 4}], sourceModified=False
    )
    kernel.debug("configurationDone")
    kernel.run(cell)
    kernel.client.execute(f"nt.server().infer('plain', {{'IN': {ASK}}})")
    thread = kernel.event("stopped")["threadId"]
    (top, *_) = kernel.debug("stackTrace", threadId=thread)["stackFrames"]
    assert (top["name"], top["line"], top["source"]["path"]) == ("plain", 4, path)
    kernel.debug("continue", threadId=thread)
    # While the debugger is on, `breakpoint()` does the same.
    kernel.run(BREAKING)
    kernel.client.execute(f"nt.server().infer('breaking', {{'IN': {ASK}}})")
    thread = kernel.event("stopped")["threadId"]
    (top, *_) = kernel.debug("stackTrace", threadId=thread)["stackFrames"]
    assert (top["name"], top["line"]) == ("breaking", 4)
    kernel.debug("continue", threadId=thread)
    kernel.debug("disconnect", restart=False, terminateDebuggee=False)
