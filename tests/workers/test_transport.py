"""Channels, shared memory and packed tensors, without a process."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import ExitStack
from socket import socketpair

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nbtriton.backends.base import Response
from nbtriton.backends.core.messages import ScatteredResponses
from nbtriton.common.errors import ConfigError, ModelError
from nbtriton.runtime.workers.core.channel import Channel, ChannelClosed
from nbtriton.runtime.workers.core.codec import decode_responses, encode_responses
from nbtriton.runtime.workers.core.memory import INLINE_BYTES, Incoming, Outgoing
from nbtriton.runtime.workers.core.packing import Packer, read_column
from nbtriton.runtime.workers.protocol import WorkerTraceback, decode_error, encode_error, plain
from tests.workers.support import blocks

DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8"]
TENSORS = arrays.arrays(
    st.sampled_from(DTYPES), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
)


def unused(*_: object) -> None:
    """Hear of a segment: there is none for what is so small."""
    raise AssertionError("shared memory for a small message")


class Heap:
    """Both sides of shared memory in one process."""

    def __init__(self):
        self.incoming = Incoming()
        self.dropped = []
        self.outgoing = Outgoing(
            lambda number, fd, size: self.incoming.add(number, os.dup(fd), size), self._drop
        )

    def _drop(self, number):
        self.dropped.append(number)
        self.incoming.drop(number)

    def read(self, place, behind):
        return bytearray(behind) if place is None else self.incoming.view(place)

    def give_back(self):
        self.outgoing.release(self.incoming.pop_released())


@pytest.fixture
def channels():
    with ExitStack() as stack:
        ends = [Channel(one, descriptors=True) for one in socketpair()]
        for end in ends:
            stack.callback(end.close)
        yield ends


def test_messages_of_any_size_arrive_in_order(channels):
    here, there = channels
    sent = [
        ((1, "a", None, {"k": [1.5, b"x", ("t",)]}), b""),
        ((2,), bytes(200_000)),
        ((3,), b"end"),
    ]
    thread = threading.Thread(target=lambda: [here.send(*one) for one in sent])
    thread.start()
    for message, behind in sent:
        found, rest = there.receive()
        assert (found, bytes(rest)) == (message, behind)
    thread.join()


def test_who_looks_before_sleeping_misses_no_message(channels):
    here, there = channels

    def answer() -> None:
        for _ in range(500):
            there.spin()
            message, behind = there.receive()
            there.send(message, bytes(behind))

    thread = threading.Thread(target=answer)
    thread.start()
    for number in range(0, 500, 2):
        here.send((number,), b"x")
        here.send((number + 1,), b"y")
        for expected, behind in ((number, b"x"), (number + 1, b"y")):
            here.spin()
            message, found = here.receive()
            assert (message, bytes(found)) == ((expected,), behind)
    thread.join()


def test_a_closed_end_is_no_reason_to_look(channels):
    here, there = channels
    there.close()
    here.spin()
    with pytest.raises(ChannelClosed):
        here.receive()


def test_numbers_and_texts_of_numpy_become_plain():
    found = plain((np.int64(3), {"a": np.float32(0.5)}, np.bool_(True), np.str_("s"), [None, b"b"]))
    assert repr(found) == "(3, {'a': 0.5}, True, 's', (None, b'b'))"


def test_an_object_is_refused_before_anything_is_sent(channels):
    here, there = channels
    with pytest.raises(TypeError, match="a control message cannot hold a object"):
        here.send((object(),))
    here.send((1,))
    assert there.receive()[0] == (1,)


def test_the_end_of_the_other_side_is_heard(channels):
    here, there = channels
    here.close()
    with pytest.raises(ChannelClosed):
        there.receive()
    with pytest.raises(ChannelClosed):
        there.send((1,))


def test_descriptors_come_with_their_message(channels):
    here, there = channels
    reader, writer = os.pipe()
    here.send((1,), fds=(writer,))
    os.close(writer)
    assert there.receive()[0] == (1,)
    with os.fdopen(there.pop_descriptor(), "wb") as file:
        file.write(b"by another number")
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"by another number"


@pytest.mark.medium
@given(st.lists(st.lists(TENSORS, min_size=1, max_size=4), min_size=1, max_size=3))
def test_tensors_come_back_as_they_were(columns):
    packer = Packer()
    sizes = [[array.shape[0] if array.ndim else 1 for array in column] for column in columns]
    described = [packer.column(list(c), rows) for c, rows in zip(columns, sizes, strict=True)]
    memory = bytearray(packer.finish(Outgoing(unused, unused))[1])
    for column, rows, written in zip(columns, sizes, described, strict=True):
        for before, after in zip(column, read_column(written, rows, memory), strict=True):
            assert (before.dtype, before.shape) == (after.dtype, after.shape)
            assert before.tobytes() == after.tobytes()
            assert after.flags.writeable
            assert after.flags.aligned


def test_rows_of_large_tensors_are_copied_once():
    heap = Heap()
    rows = [np.full((2, INLINE_BYTES), value, np.uint8) for value in range(3)]
    packer = Packer()
    column = packer.column(list(rows), [2, 2, 2])
    place, behind = packer.finish(heap.outgoing)
    assert place is not None
    assert behind == b""
    found = read_column(column, [2, 2, 2], heap.read(place, behind))
    assert [int(one[0, 0]) for one in found] == [0, 1, 2]
    # Views of the block itself: the reader has copied nothing.
    found[0][:] = 9
    again = read_column(column, [2, 2, 2], heap.incoming.view(place))
    assert int(again[0][1, 5]) == 9


@pytest.mark.medium
def test_a_block_is_free_when_the_last_view_has_gone():
    heap = Heap()
    place, memory = heap.outgoing.allocate(1000)
    memory[:] = bytes([7]) * 1000
    block = heap.incoming.view(place)
    view = block[100:200].reshape(10, 10)[3]
    del block
    before = heap.incoming.pop_released()
    assert view.tolist() == [7] * 10
    del view
    gc.collect()
    assert (
        before == []
    )  # of a message that waits to be sent: it would tell what the next one tells again
    assert heap.incoming.pop_released() == [place]


def test_blocks_are_used_again_and_joined():
    heap = Heap()
    places = [heap.outgoing.allocate(100_000)[0] for _ in range(10)]
    assert len({number for number, _, _ in places}) == 1
    heap.outgoing.release(places[::2])
    heap.outgoing.release(places[1::2])
    assert blocks(heap.outgoing) == 0
    assert heap.outgoing.allocate(1_000_000)[0][:2] == (places[0][0], 0)


def test_the_heap_grows_and_gives_back_what_it_needs_no_more():
    heap = Heap()
    small, _ = heap.outgoing.allocate(100)
    large, _ = heap.outgoing.allocate(50_000_000)
    assert large[0] != small[0]
    heap.outgoing.release([large])
    for _ in range(200):
        place, _ = heap.outgoing.allocate(100)
        heap.outgoing.release([place])
    assert heap.dropped == [large[0]]
    assert heap.outgoing.size < 2_000_000


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300_000)), max_size=60))
def test_blocks_never_overlap(steps):
    heap = Heap()
    live: list[tuple[int, int, int]] = []
    for frees, size in steps:
        if frees and live:
            heap.outgoing.release([live.pop(size % len(live))])
            continue
        number, offset, length = heap.outgoing.allocate(size)[0]
        assert length >= size
        for other, start, extent in live:
            assert other != number or offset >= start + extent or start >= offset + length
        live.append((number, offset, length))
    heap.outgoing.release(live)
    assert blocks(heap.outgoing) == 0


@pytest.mark.parametrize("rows", [1, 3])
def test_responses_of_any_kind_come_back(rows):
    listed = [
        Response({"A": np.ones((rows, 2), np.float32), "B": np.array([b"x"], object)}),
        None,
        Response(error=ModelError("no", user_traceback="line 1\n")),
        Response({"A": np.zeros(3, np.int64)}, parameters={"k": 1}),
    ]
    packer = Packer()
    body = encode_responses(listed, packer)
    found = decode_responses(body, bytearray(packer.finish(Outgoing(unused, unused))[1]))
    assert found[1] is None
    assert found[0].outputs["A"].tolist() == [[1, 1]] * rows
    assert found[0].outputs["B"].tolist() == [b"x"]
    assert (found[2].error.message, found[2].error.user_traceback) == ("no", "line 1\n")
    assert (found[3].outputs["A"].tolist(), found[3].parameters) == ([0, 0, 0], {"k": 1})


def test_scattered_outputs_stay_whole_until_they_are_used():
    whole = np.arange(12, dtype=np.float32).reshape(6, 2)
    pieces = [np.zeros(1, np.int32), np.ones(5, np.int32)]
    wanted = [frozenset({"A"}), frozenset({"A", "B"})]
    packer = Packer()
    body = encode_responses(ScatteredResponses({"A": whole, "B": pieces}, [2, 4], wanted), packer)
    found = decode_responses(body, bytearray(packer.finish(Outgoing(unused, unused))[1]))
    assert isinstance(found, ScatteredResponses)
    assert found[0].outputs.keys() == {"A"}
    assert found[1].outputs["A"].tolist() == whole[2:].tolist()
    assert found[1].outputs["B"].tolist() == [1] * 5


def test_an_error_keeps_its_class_and_texts():
    error = ConfigError("wrong", hint="right", field="input", line=3)
    found = decode_error(encode_error(error))
    assert type(found) is ConfigError
    assert (found.message, found.hint, found.field, found.line) == ("wrong", "right", "input", 3)
    try:
        try:
            raise ValueError("inner")
        except ValueError as inner:
            raise ModelError("outer", user_traceback="the user's line") from inner
    except ModelError as raised:
        again = decode_error(encode_error(decode_error(encode_error(raised))))
    assert isinstance(again.__cause__, WorkerTraceback)
    assert "the user's line" in str(again.__cause__)
