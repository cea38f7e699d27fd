"""The Python side of the live views: when they send, what they send, what stays."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from types import SimpleNamespace

import pytest
from tornado.ioloop import IOLoop

from nbtriton.widgets.curve import CurveView
from nbtriton.widgets.dag import DagView
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.view import resume_busy
from nbtriton.widgets.watch import WatchView
from tests.until import until
from tests.widgets.samples import (
    SECOND,
    Clock,
    FakeServer,
    digits_graph,
    loaded,
    model,
    sweep,
)


@pytest.fixture(autouse=True)
def free(monkeypatch):
    """A frame costs nothing: what it costs on this machine decides about its pace."""
    monkeypatch.setattr("time.thread_time", lambda: 0.0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hub():
    return Hub(threaded=False)


@pytest.fixture
def server():
    return FakeServer(loaded("image_preprocess_model", 0), model("classification_model"))


@pytest.fixture
def watch(server, clock, hub):
    return WatchView(server, clock=clock, on_hub=hub)


def say(view, kind, who="page"):
    view.handle_message({"kind": kind, "view": who})


def run(hub, clock, server, seconds, step=0.1, ack=None):
    """Let time pass, the hub asking as it does; return how many frames were sent."""
    sent = 0
    for _ in range(round(seconds / step)):
        clock.pass_(step)
        server.now_ns += int(step * SECOND)
        before = ack.frames_sent if ack is not None else 0
        hub.tick()
        if ack is not None and ack.frames_sent != before:
            sent += 1
            say(ack, "ack")
    return sent


def test_nothing_is_sent_before_a_page_opens(watch, hub, clock, server):
    before = watch.frame
    hub.tick()
    run(hub, clock, server, 3)
    assert watch.frame == before


def moving(hub, clock, server, seconds, view, step=0.1, ack=False):
    """Let requests come all the time; return how many frames were sent."""
    before = view.frames_sent
    for at in range(round(seconds / step)):
        server.shown = (loaded("image_preprocess_model", clock.now + at * step),)
        run(hub, clock, server, step, step)
        if ack:
            say(view, "ack")
    return view.frames_sent - before


def test_an_open_page_gets_five_frames_a_second(watch, hub, clock, server):
    say(watch, "open")
    assert 45 <= moving(hub, clock, server, 10, watch, ack=True) <= 50


def test_a_page_that_does_not_answer_gets_one_frame_in_two_seconds(watch, hub, clock, server):
    say(watch, "open")
    moving(hub, clock, server, 2, watch)
    assert moving(hub, clock, server, 10, watch) in (5, 6)


def test_a_page_does_not_wait_for_answers_to_what_was_sent_before_it(watch, hub, clock, server):
    watch.handle_displayed()
    assert moving(hub, clock, server, 1.5, watch) == 3
    say(watch, "open")
    assert moving(hub, clock, server, 1, watch) == 3


def test_a_closed_page_is_sent_nothing(watch, hub, clock, server):
    say(watch, "open")
    moving(hub, clock, server, 1, watch)
    say(watch, "close")
    assert moving(hub, clock, server, 3, watch) == 0
    assert not hub.views


def test_a_page_that_opens_again_at_once_keeps_it(watch, hub, clock, server):
    say(watch, "open", "a")
    say(watch, "close", "a")
    run(hub, clock, server, 1)
    say(watch, "open", "b")
    assert moving(hub, clock, server, 5, watch, ack=True) > 20


def test_a_page_silent_for_half_a_minute_is_gone(watch, hub, clock, server):
    say(watch, "open")
    run(hub, clock, server, 29)
    assert hub.views
    run(hub, clock, server, 2)
    assert not hub.views


def test_a_resting_page_that_is_there_is_kept(watch, hub, clock, server):
    server.drain()
    say(watch, "open")
    for _ in range(10):
        run(hub, clock, server, 10)
        say(watch, "here")
    assert watch.resting
    assert moving(hub, clock, server, 2, watch) > 0
    assert not watch.resting


@pytest.mark.medium
def test_a_view_rests_after_ten_seconds_and_wakes_with_the_next_request(watch, hub, clock, server):
    looks = []
    watch.handle_displayed(lambda: looks.append(watch.resting))
    say(watch, "open")
    moving(hub, clock, server, 3, watch, ack=True)
    run(hub, clock, server, 60, ack=watch)
    assert not watch.resting  # three requests wait and four run: it says for how long
    server.drain()
    run(hub, clock, server, 9, ack=watch)
    assert not watch.resting
    run(hub, clock, server, 2, ack=watch)
    assert watch.resting
    assert looks[-1]
    before, beat = watch.frames_sent, watch.beat
    run(hub, clock, server, 60)
    assert (watch.frames_sent, watch.beat) == (before, beat)
    server.shown = (loaded("image_preprocess_model", 1000),)
    run(hub, clock, server, 1)
    assert not watch.resting
    assert not looks[-1]
    watch.stop()
    assert not hub.views


def test_a_view_without_news_says_every_second_that_the_kernel_lives(hub, clock, server):
    curve = CurveView(on_hub=hub, clock=clock)
    say(curve, "open")
    run(hub, clock, server, 10)
    assert 9 <= curve.beat <= 10
    assert not curve.resting  # a measurement runs until it is stopped


def test_one_of_two_pages_is_enough(watch, hub, clock, server):
    say(watch, "open", "a")
    say(watch, "open", "b")
    say(watch, "close", "a")
    assert run(hub, clock, server, 5, ack=watch) > 20


def test_a_shown_view_is_sent_to_while_its_cell_blocks_all_messages(watch, hub, clock, server):
    # Hosts without subshells deliver nothing while a cell runs: no "open", no "ack".
    watch.handle_displayed()
    with watch.recording():
        before = watch.frames_sent
        moving(hub, clock, server, 60, watch)
        assert watch.frames_sent - before >= 29
    assert watch.alive()  # until it is stopped it may move again
    assert not watch.watched()


def test_structure_is_sent_only_when_it_changes(watch, hub, clock, server):
    say(watch, "open")
    run(hub, clock, server, 1, ack=watch)
    scene = watch.scenes
    run(hub, clock, server, 1, ack=watch)
    assert watch.scenes is scene
    server.shown = (*server.shown, model("segmentation_model"))
    run(hub, clock, server, 1, ack=watch)
    assert [shown["name"] for shown in watch.models][-1] == "segmentation_model"
    assert watch.scenes is not scene


def test_a_server_that_fails_ends_the_view_and_the_page_says_why(
    watch, hub, clock, server, capfd, monkeypatch
):
    say(watch, "open")
    with monkeypatch.context() as broken:
        broken.setattr(server, "history", lambda: 1 / 0)
        run(hub, clock, server, 1)
    assert not hub.views
    assert watch.failure == "ZeroDivisionError: division by zero"
    say(watch, "here")  # a page is still there, and the server answers again
    run(hub, clock, server, 1)
    assert hub.views == (watch,)
    assert watch.failure == ""
    assert capfd.readouterr() == ("", "")


def test_the_last_state_waits_for_a_frame_that_is_being_sent(hub, clock):
    """The hub's thread sends a frame, and meanwhile a cell stops the view."""
    sends, go, sent = threading.Event(), threading.Event(), []

    class Slow(CurveView):
        def _send_state(self, state):
            sent.append("begins")
            sends.set()
            go.wait(60)
            super()._send_state(state)
            sent.append("ends")

    view = Slow(clock=clock, on_hub=hub)
    say(view, "open")
    ticking, stopping = threading.Thread(target=hub.tick), threading.Thread(target=view.stop)
    ticking.start()
    assert sends.wait(60)
    stopping.start()
    assert until(lambda: view._news)  # it is in `stop`
    go.set()
    for thread in (ticking, stopping):
        thread.join(60)
    assert sent == ["begins", "ends"] * 2


def test_only_the_named_models_are_watched(server, hub, clock):
    view = WatchView(server, ["classification_model"], on_hub=hub, clock=clock)
    assert [shown["name"] for shown in view.models] == ["classification_model"]


def test_traits_are_json_and_the_frame_bytes(watch, hub):
    dag = DagView(digits_graph(), on_hub=hub)
    curve = CurveView(on_hub=hub)
    for view in (watch, dag, curve):
        state = view.get_state()
        assert isinstance(state["frame"], bytes)
        json.dumps({k: v for k, v in state.items() if k != "frame" and not k.startswith("_")})


def test_front_end_code_is_small_and_needs_no_network(watch, hub):
    for view in (watch, DagView(digits_graph(), on_hub=hub), CurveView(on_hub=hub)):
        assert len(view._esm) < 60_000
        assert "import" not in view._esm.replace("important", "")
        assert "innerHTML" not in view._esm
        assert "http" not in view._esm.replace("http://www.w3.org/2000/svg", "")


def test_dag_sends_queued_and_executing_of_each_model(hub, clock):
    server = FakeServer(loaded("image_preprocess_model", 1, batch=4, queued=7))
    view = DagView(digits_graph(), server, on_hub=hub, clock=clock)
    say(view, "open")
    clock.pass_(1)
    hub.tick()
    numbers = struct.unpack(f"<{len(view.frame) // 8}d", view.frame)
    assert numbers[1] == 3
    assert numbers[2:5] == (7, 4, 0)
    assert numbers[5:8] == (0, 0, 3)  # not loaded: UNAVAILABLE


def test_dag_without_a_server_sends_nothing(hub, clock):
    view = DagView(digits_graph(), on_hub=hub, clock=clock)
    say(view, "open")
    clock.pass_(1)
    hub.tick()
    assert view.frame == b""
    assert "image_preprocess_model" in view.static().text


def test_curve_grows_and_stops(hub, clock):
    stops = []
    view = CurveView(title="digits", on_stop=lambda: stops.append(1), on_hub=hub, clock=clock)
    say(view, "open")
    view.update(sweep()[:1])
    view.show_progress("concurrency 1 of 5", 0.2)
    clock.pass_(1)
    hub.tick()
    assert view.progress == "concurrency 1 of 5"
    assert view.fraction == 0.2
    assert "1 instance, no batching" in json.dumps(view.scenes)
    before = view.frames_sent
    say(view, "ack")
    clock.pass_(1)
    hub.tick()
    assert view.frames_sent == before  # no news
    for _ in range(2):
        view.handle_message({"kind": "stop"})
    assert stops == [1]
    assert view.stop_requested.is_set()
    assert view.stopping
    view.update(sweep())
    view.stop()
    assert not view.running
    assert "2 instances + dynamic batching" in json.dumps(view.scenes)
    assert not hub.views


def test_reprs_are_short(watch):
    assert repr(watch) == "<WatchView>"


class KernelComm:
    """A comm as ipykernel 7.4 has it: it remembers which shell sent on it last."""

    comm_id = "c"

    def on_msg(self, _call):
        pass

    def __init__(self):
        self.sent = []

    def send(self, data=None, buffers=None, **_):
        self.sent.append(data)
        self._reply_subshell_id = None  # the main shell

    def close(self, *_, **__):
        pass


def test_replies_are_not_bound_to_the_busy_main_shell(watch):
    watch.comm = KernelComm()
    watch.refresh()
    assert watch.comm.sent
    assert watch.comm._reply_subshell_for({}, "subshell") == "subshell"


class ShellKernel:
    """The parts of ipykernel's kernel that say its status."""

    def __init__(self):
        self._main_asyncio_lock = asyncio.Lock()
        self.io_loop = IOLoop.current()
        self.said = []

    def _publish_status(self, state, _channel):
        self.said.append(state)

    async def cell(self, pages):
        """Run a cell; pages send a message each, the last ones after it has said that it is done."""
        async with self._main_asyncio_lock:
            self.said.append("busy: cell")
            for _ in range(pages):
                await asyncio.to_thread(asyncio.run, self.message())
            self.said.append("idle: cell")
            await asyncio.to_thread(asyncio.run, self.message())

    async def message(self):
        """Handle a page's message on a subshell, which ends at once."""
        resume_busy(self)
        self.said.append("idle: message")
        await asyncio.sleep(0)


def test_the_last_state_of_a_kernel_is_idle_even_if_the_page_has_gone():
    async def run() -> list[str]:
        kernel = ShellKernel()
        first, second = (asyncio.ensure_future(kernel.cell(pages)) for pages in (2, 1))
        await first
        await second
        # Those that wait for the shell get it in order.
        async with kernel._main_asyncio_lock:
            return kernel.said

    message = ["idle: message", "busy"]
    assert asyncio.run(run()) == [
        "busy: cell", *message, *message, "idle: cell", *message,
        "busy: cell", *message, "idle: cell", *message, "idle",
    ]  # fmt: skip


def test_a_kernel_without_the_names_that_its_status_needs_is_left_alone():
    """Those of ipykernel 6 and of hosts without ipykernel, and of versions to come."""

    async def run() -> list[str]:
        kernel = ShellKernel()
        names = ("_main_asyncio_lock", "_publish_status", "io_loop")
        async with kernel._main_asyncio_lock:
            for missing in names:
                others = {name: getattr(kernel, name) for name in names if name != missing}
                resume_busy(SimpleNamespace(**others))
            resume_busy(None)
            await asyncio.sleep(0)
        return kernel.said

    assert asyncio.run(run()) == []
