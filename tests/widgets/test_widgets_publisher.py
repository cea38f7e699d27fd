"""When live views are sent something. Time passes only when a test says so."""

from __future__ import annotations

import gc
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.widgets import publisher as module
from nbtriton.widgets.publisher import Hub, Publisher
from tests.until import until
from tests.widgets.samples import Clock


@pytest.fixture
def clock():
    return Clock()


def test_newest_wins(clock):
    sent = []
    publisher = Publisher(sent.append, clock=clock)
    for state in (1, 2, 3):
        publisher.offer(state)
    assert publisher.poll()
    assert sent == [3]
    assert not publisher.poll()


def test_three_in_flight_until_they_are_acknowledged(clock):
    sent = []
    publisher = Publisher(sent.append, clock=clock)
    for state in (1, 2, 3):
        publisher.offer(state)
        assert publisher.poll()
        clock.pass_(1.0)
    publisher.offer(4)
    assert not publisher.is_due()
    assert not publisher.poll()
    publisher.ack()
    assert publisher.is_due()
    assert publisher.poll()
    assert sent == [1, 2, 3, 4]


def test_a_missing_acknowledgement_is_forgotten_after_two_seconds(clock):
    sent = []
    publisher = Publisher(sent.append, clock=clock)
    for _ in range(3):
        clock.pass_(1.0)
        publisher.offer(1)
        publisher.poll()
    publisher.offer(2)
    clock.pass_(1.99)
    assert not publisher.poll()
    clock.pass_(0.02)
    assert publisher.poll()


@given(st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from(["offer", "ack", "poll"]))))
def test_never_more_than_ten_a_second_and_never_an_older_state(steps):
    clock, sent = Clock(), []
    publisher = Publisher(lambda state: sent.append((clock.now, state)), clock=clock)
    offered = 0
    for seconds, what in steps:
        clock.pass_(seconds)
        if what == "offer":
            offered += 1
            publisher.offer(offered)
        elif what == "ack":
            publisher.ack()
        else:
            publisher.poll()
    times = [at for at, _ in sent]
    assert all(b - a >= 0.0899 for a, b in itertools.pairwise(times))
    states = [state for _, state in sent]
    assert states == sorted(set(states))


class View:
    def __init__(self, lives=10**9, error=None):
        self.lives = lives
        self.error = error
        self.ticks = 0
        self.ticked = threading.Event()

    def alive(self):
        return self.ticks < self.lives

    def tick(self):
        self.ticks += 1
        self.ticked.set()
        if self.error is not None:
            raise self.error


def view_threads():
    return [thread for thread in threading.enumerate() if thread.name == "nbtriton-views"]


def test_one_thread_serves_all_and_ends_with_the_last():
    hub = Hub()
    before = set(view_threads())  # of which some may just end
    one, two = View(), View()
    hub.open(one)
    hub.open(two)
    assert one.ticked.wait(60)
    assert two.ticked.wait(60)
    (mine,) = set(view_threads()) - before
    hub.close(one)
    assert hub._thread is mine
    hub.close(two)
    mine.join(60)
    assert not mine.is_alive()
    assert hub._thread is None


def test_nothing_is_sent_once_the_interpreter_exits(monkeypatch):
    monkeypatch.setattr(module, "_EXIT_S", 60.0)
    hub, view = Hub(), View()
    hub.open(view)
    assert view.ticked.wait(60)
    (mine,) = [thread for thread in view_threads() if thread is hub._thread]
    hub.stop()
    assert not mine.is_alive()
    hub.open(view)  # a page says that it is still there
    assert hub._thread is None
    assert hub.views == ()


def test_the_thread_starts_again_when_there_is_something_to_show():
    hub = Hub()
    for _ in range(3):
        view = View(lives=1)
        hub.open(view)
        assert view.ticked.wait(60)
        assert until(lambda: not hub.views)


@pytest.mark.medium
def test_an_error_closes_the_feed_and_prints_nothing(capfd):
    hub = Hub()
    bad, good = View(error=RuntimeError("gone")), View()
    hub.open(bad)
    hub.open(good)
    assert until(lambda: hub.views == (good,))
    assert good.ticked.wait(60)
    hub.close(good)
    gc.collect()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_a_thread_that_could_not_be_started_is_started_later(monkeypatch):
    hub, view = Hub(), View()
    with monkeypatch.context() as full, pytest.raises(RuntimeError):
        full.setattr(threading.Thread, "start", no_more_threads)
        hub.open(view)
    hub.open(view)
    assert view.ticked.wait(60)
    hub.close(view)


def no_more_threads(_thread):
    raise RuntimeError("can't start new thread")


def test_opening_twice_is_opening_once():
    hub = Hub(threaded=False)
    view = View()
    hub.open(view)
    hub.open(view)
    hub.tick()
    assert view.ticks == 1
    hub.close(view)
    hub.tick()
    assert view.ticks == 1
