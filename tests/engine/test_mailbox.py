"""The mailbox of a state that one thread at a time may touch."""

# ruff: noqa: N803 - a model function names its tensors

from __future__ import annotations

import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton import compiled
from nbtriton.runtime.engine import InferenceFuture, Server
from nbtriton.runtime.engine.core.history import ModelHistory
from nbtriton.runtime.engine.core.runtime import Mailbox
from tests.engine.support import WAIT_S, echo, ones, waited


@given(st.lists(st.sampled_from(["post", "acquire", "pop", "release", "next"]), max_size=40))
def test_messages_are_popped_in_order_by_the_one_that_has_the_right(steps: list[str]) -> None:
    """Beside a plain model: a queue and a flag."""
    mailbox: Mailbox[int] = Mailbox()
    queue: deque[int] = deque()
    acquired = False
    for number, step in enumerate(steps):
        if step == "post":
            mailbox.post(number)
            queue.append(number)
        elif step == "acquire":
            assert mailbox.try_acquire() is not acquired
            acquired = True
        elif step == "next":
            free = not acquired
            found = mailbox.acquire_next()
            assert found == (queue.popleft() if free and queue else None)
            acquired = acquired or found is not None
        elif step == "pop" and acquired:
            assert mailbox.pop() == (queue.popleft() if queue else None)
        elif step == "release" and acquired:
            mailbox.release()
            acquired = False
        assert mailbox.messages == queue


def test_nothing_is_posted_behind_the_last_message() -> None:
    mailbox: Mailbox[str] = Mailbox()
    assert mailbox.post_if_open("first")
    mailbox.close("last")
    assert mailbox.closed
    assert not mailbox.post_if_open("late")
    found: list[str] = []
    mailbox.drain(found.append)
    assert found == ["first", "last"]


def test_a_message_that_a_handler_posts_is_handled_behind_it() -> None:
    mailbox: Mailbox[int] = Mailbox()
    found: list[int] = []

    def handle(number: int) -> None:
        if number < 3:
            mailbox.post(number + 1)
            mailbox.drain(handle)  # not nested: this thread has the right already
            assert found == list(range(number))
        found.append(number)

    mailbox.post(0)
    mailbox.drain(handle)
    assert found == [0, 1, 2, 3]


def test_a_handler_that_raises_leaves_the_right_and_the_other_messages() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in (0, 1):
        mailbox.post(number)
    with pytest.raises(ZeroDivisionError):
        mailbox.drain(lambda number: 1 // number)
    found: list[int] = []
    mailbox.drain(found.append)
    assert found == [1]


def test_a_thread_that_posts_does_not_wait_for_the_one_that_handles() -> None:
    mailbox: Mailbox[str] = Mailbox()
    entered, leave = threading.Event(), threading.Event()
    found: list[tuple[str, str]] = []

    def handle(message: str) -> None:
        found.append((message, threading.current_thread().name))
        entered.set()
        waited(leave)

    mailbox.post("slow")
    thread = threading.Thread(target=mailbox.drain, args=(handle,), name="first")
    thread.start()
    waited(entered)
    mailbox.post("second")
    mailbox.drain(lambda _: pytest.fail("another thread has the right"))
    leave.set()
    thread.join(WAIT_S)
    assert found == [("slow", "first"), ("second", "first")]


def test_threads_at_once_lose_no_message_and_handle_one_at_a_time() -> None:
    """Each posts and drains; no thread knows which one handles what it posted."""
    mailbox: Mailbox[tuple[int, int]] = Mailbox()
    found: list[tuple[int, int]] = []
    inside = [0]
    together: list[int] = []
    begin = threading.Barrier(4, timeout=WAIT_S)

    def handle(message: tuple[int, int]) -> None:
        inside[0] += 1
        if inside[0] != 1:
            together.append(inside[0])
        found.append(message)
        inside[0] -= 1

    def post(thread: int) -> None:
        begin.wait()
        for number in range(2000):
            mailbox.post((thread, number))
            mailbox.drain(handle)

    threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not together
    assert not mailbox.messages
    for number in range(4):
        assert [n for thread, n in found if thread == number] == list(range(2000))


@pytest.mark.skipif(compiled, reason="a compiled class has no subclass of Python's")
def test_what_comes_as_the_batcher_is_released_does_not_wait_for_a_callback(server: Server):
    """The callback of a refused request waits for it."""
    others: list[InferenceFuture] = []
    heard: list[object] = []

    def send() -> None:
        options = {"sequence_id": 8, "sequence_start": True, "sequence_end": True}
        others.append(server.submit("m", {"IN": ones()}, **options))

    class Meanwhile(ModelHistory):
        def note_depth(self, now_ns: int, depth: int) -> None:
            armed = self.depth == -1
            super().note_depth(now_ns, depth)
            if armed:  # between the last look at the mailbox and the release
                sender = threading.Thread(target=send)
                sender.start()
                sender.join(WAIT_S)

    server.load(echo("sequence_batching {}"), lambda IN: {"OUT": IN}, name="m")
    history = Meanwhile("m", 1, 8)
    server.engine.registry.resolve("m").history = history
    history.depth = -1
    server.submit(
        "m",
        {"IN": ones()},
        sequence_id=7,  # which has not begun
        on_response=lambda response, final: heard.append(others[0].result(WAIT_S)["OUT"].shape),
    )
    assert heard == [(1, 4)]
