"""The timeline on the Python side: what a page is sent, and what stays."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.timeline import LiveTimeline, live_timeline
from tests.engine.support import WAIT_S, Gate, echo, gated
from tests.widgets.samples import Clock

ROW = np.ones((1, 4), np.float32)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=double, name="double")
        server.infer("double", {"IN": ROW})
        yield server


def test_what_is_in_flight_is_in_every_frame_with_an_end_now():
    install_pb_utils()
    gate = Gate()
    with nt.Server(gpus=()) as server:
        server.load(echo(), gated(gate), name="slow")
        futures = [server.submit("slow", {"IN": ROW}) for _ in range(3)]
        gate.wait_entered()
        clock, hub = Clock(), Hub(threaded=False)
        view = live_timeline(server, "slow", clock=clock, on_hub=hub)
        view.handle_message({"kind": "open", "view": "page"})
        for _ in range(2):
            clock.pass_(0.5)
            hub.tick()
            view.handle_message({"kind": "ack", "view": "page"})
            numbers = struct.unpack(f"<{len(view.frame) // 8}d", view.frame)
            _, batches, requests, _, now, running, inside = numbers[1:8]
            assert (batches, requests, running, inside) == (1, 3, 1, 3)
            batch, *waits = numbers[8:18], numbers[18:26], numbers[26:34], numbers[34:42]
            assert batch[3] == now
            assert [(wait[1], wait[4]) for wait in waits] == [(0, now), (-1, now), (-1, now)]
            assert waits[0][3] == batch[2]
        assert not view.resting
        gate.open()
        for future in futures:
            future.result(WAIT_S)
        clock.pass_(0.5)
        hub.tick()
        assert struct.unpack_from("<8d", view.frame)[6:] == (0, 0)
        view.close()


@pytest.fixture
def live(server):
    """A live timeline, its clock and its hub."""
    clock, hub = Clock(), Hub(threaded=False)
    return live_timeline(server, "double", clock=clock, on_hub=hub), clock, hub


def head(view):
    """Return whether a frame replaces all before, its batches, its requests, and those left out."""
    return struct.unpack_from("<5d", view.frame)[1:]


def test_a_page_gets_everything_and_then_what_is_new(server, live):
    view, clock, hub = live
    view.handle_message({"kind": "open", "view": "page"})
    hub.tick()
    whole, batches, requests, left_out = head(view)
    assert whole
    assert batches == requests == len(server.batches("double"))
    assert not left_out
    for _ in range(3):
        server.infer("double", {"IN": ROW})
    clock.pass_(0.3)
    hub.tick()
    assert head(view) == (0, 3, 3, 0)
    # What comes too fast to be drawn is counted.
    for _ in range(300):
        server.infer("double", {"IN": ROW})
    clock.pass_(0.3)
    hub.tick()
    assert head(view) == (0, 200, 200, 100)
    view.handle_message({"kind": "ack", "view": "page"})
    # One more page needs all of it, and so does one that opens while nothing moves.
    view.handle_message({"kind": "open", "view": "another"})
    clock.pass_(0.3)
    hub.tick()
    assert head(view)[:2] == (1, len(server.batches("double")))
    server.infer("double", {"IN": ROW})
    for _ in range(30):
        clock.pass_(0.5)
        view.handle_message({"kind": "ack", "view": "page"})
        hub.tick()
    assert view.resting
    assert head(view)[:2] == (1, len(server.batches("double")))
    view.stop()
    assert not hub.views


def test_a_timeline_that_does_not_change_needs_no_hub_and_has_its_trace(server):
    hub = Hub(threaded=False)
    shown = nt.timeline(server, "double")
    view = LiveTimeline(shown.timeline, on_hub=hub)
    assert view.frame == b""  # an executed notebook does not carry it
    view.handle_message({"kind": "open", "view": "page"})
    assert head(view)[1] == len(shown.timeline.records[0].batches)
    assert not hub.views
    sent = []
    view.send = lambda content, buffers: sent.append((content, buffers))
    view.handle_message({"kind": "trace", "view": "page"})
    ((content, (trace,)),) = sent
    assert content["name"] == "double-trace.json"
    assert json.loads(trace)["traceEvents"] == json.loads(json.dumps(shown.trace()))["traceEvents"]


def test_live_by_a_call(server):
    shown = nt.timeline(server, "double", live=True)
    assert "double" in repr(shown)
    shown.stop()
