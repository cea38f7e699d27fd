"""What explains a model shows also what is inside it: a model that hangs is the first trouble of all."""

from __future__ import annotations

import json
import math

import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.lab.explain.parts import inside_sentence, is_long
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.widgets.show import Shown
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones

S = 1_000_000_000
NOW = 1000 * S


def inside(model, number, age_s, *, instance="", ran_s=0.0, ended=False, caller=0):
    batch = None
    if instance:
        start = NOW - int(ran_s * S)
        batch = BatchRecord(
            model, 1, instance, (number,), 1, "no_delay", 0, start, NOW * ended, False
        )
    return RequestRecord(
        model, 1, number, "", caller, 0, 1, NOW - int(age_s * S), 1, 0, 0, 0, batch, "", "", ""
    )


SAYS = {
    "nothing": ([], ""),
    "one runs": (
        [inside("m", 1, 28.2, instance="m_0", ran_s=28)],
        "1 request is inside: 1 has run for 28 s on m_0",
    ),
    "one runs, others wait": (
        [inside("m", 1, 28.2, instance="m_0", ran_s=28), *(inside("m", n, 25 + n) for n in (1, 2))],
        "3 requests are inside: 1 has run for 28 s on m_0, 2 wait, the longest for 27 s",
    ),
    "two run": (
        [inside("m", n, 9, instance=f"m_{n}", ran_s=0.25 * n) for n in (1, 2)],
        "2 requests are inside: 2 run, the longest for 500 ms on m_2",
    ),
    "one is computed": (
        [inside("m", 1, 3, instance="m_0", ran_s=3, ended=True)],
        "1 request is inside: 1 has been computed and not answered for 0 ms",
    ),
    "in its steps": (
        [
            inside("m", 1, 4),
            inside("m", 2, 3),
            inside("m", 3, 2),
            inside("a", 4, 3.5, instance="a_0", ran_s=3, caller=1),
            inside("b", 5, 2.5, caller=2),
        ],
        "3 requests are inside: 1 has run in a for 3.0 s on a_0, 1 has waited for 2.0 s, 1 has waited in b for 2.5 s",
    ),
    "in a step of a step": (
        [inside("m", 1, 4), inside("inner", 2, 4, caller=1), inside("a", 3, 4, caller=2)],
        "1 request is inside: 1 has waited in a for 4.0 s",
    ),
    "others": ([inside("other", 1, 4)], ""),
}


@pytest.mark.parametrize("situation", SAYS)
def test_what_is_inside_in_words(situation):
    requests, said = SAYS[situation]
    assert inside_sentence("m", requests, NOW) == said


def test_what_is_inside_for_longer_than_any_answered_request_is_news():
    old = inside("m", 1, 5)
    took_10_s = old._replace(answered_ns=old.arrival_ns + 10 * S)
    assert is_long("m", [old], [], NOW)
    assert not is_long("m", [old], [took_10_s], NOW)
    assert not is_long("m", [inside("m", 1, 0.9)], [], NOW)
    assert not is_long("m", [], [], NOW)


@pytest.fixture
def hung():
    """A server whose model stands in its first request; four wait, behind an ensemble's."""
    install_pb_utils()
    gate = Gate()
    with nt.Server(gpus=()) as server:
        server.load(echo(), gated(gate), name="slow")
        step = ("slow", {"IN": "X"}, {"OUT": "Y"})
        text = ensemble_text(step, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"})
        server.load(text, name="both")
        futures = [server.submit("both", {"X": ones()})]
        gate.wait_entered()
        futures += [server.submit("slow", {"IN": ones()}) for _ in range(4)]
        yield server
        gate.open()
        for future in futures:
            future.result(WAIT_S)


def html_of(view):
    if isinstance(view, Shown):
        view = view.view.static()
    if hasattr(view, "_repr_html_"):
        return view._repr_html_()
    return view._repr_mimebundle_()["text/html"]


def test_no_view_of_a_model_that_hangs_says_that_nothing_happens(hung):
    views = {
        "why": nt.why(hung, "slow"),
        "why of an ensemble": nt.why(hung, "both"),
        "timeline": nt.timeline(hung, "slow"),
        "graph": nt.dag(hung, "slow"),
        "graph of an ensemble": nt.dag(hung, "both"),
        "watch": nt.watch(hung),
    }
    shown = {what: repr(view) + html_of(view) for what, view in views.items()}
    for what, text in shown.items():
        for lie in ("no request", "no batch", "nothing is recorded", "idle"):
            assert lie not in text, (what, text)
    for what in ("why", "timeline", "graph"):
        assert "5 requests are inside: 1 has run for" in shown[what], what
        assert "on slow_0, 4 wait, the longest for" in shown[what], what
    for what in ("why of an ensemble", "graph of an ensemble"):
        assert "1 request is inside: 1 has run in slow for" in shown[what], what
    assert "1 running, 4 waiting" in shown["watch"]
    assert "1 running · 4 waiting" in shown["graph"]


def test_the_timeline_has_open_ends(hung):
    (lanes,) = nt.timeline(hung, "slow").timeline.models
    (bar,) = lanes.bars
    span = nt.timeline(hung, "slow").timeline.span_ms
    assert bar.open
    assert bar.end_ms <= span
    assert [wait.open for wait in lanes.waits] == [False, True, True, True, True]


def test_the_trace_has_begins_without_an_end(hung):
    events = json.loads(json.dumps(nt.timeline(hung, "slow").trace()))["traceEvents"]
    begun = [event["name"].split()[0] for event in events if event["ph"] == "B"]
    assert sorted(begun) == ["batch", *["request"] * 5]
    assert not [event for event in events if event["ph"] in "EX"]
    assert [e["args"]["requests"] for e in events if e["ph"] == "C"][-1] == 4


def test_events_of_what_has_not_ended(hung):
    names = nt.events(hung, "slow")["event"].tolist()
    assert sorted(names) == [*["arrival"] * 5, "batch", "start"]
    (batch,) = nt.events(hung, "slow", by="batch").to_dict("records")
    assert batch["handover_us"] >= 0
    assert math.isnan(batch["compute_output_us"])
    first, *rest = nt.events(hung, "slow", by="request").to_dict("records")
    assert (first["batch"], first["instance"]) == (batch["batch"], "slow_0")
    assert all(
        math.isnan(row["total_us"]) and math.isnan(row["answer_us"]) for row in (first, *rest)
    )
    assert all(math.isnan(row["queue_us"]) and row["batch"] == 0 for row in rest)
