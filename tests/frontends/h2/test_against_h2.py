"""`Http2Connection` against PyPI's h2 in memory: random conversations, every request answered, nothing refused."""

from __future__ import annotations

from collections import Counter

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nbtriton.extensions.grpc.http2.connection import Http2Connection
from nbtriton.extensions.grpc.http2.streams import ConnectionTerminated, Event, Http2Limits
from tests.frontends.h2.peer import REQUEST, RESPONSE, TRAILERS, block, ended_request
from tests.frontends.http2_raw import PREFACE, SETTINGS, frame

SIZES = st.sampled_from([0, 1, 5, 100, 5_000, 16_384, 40_000])
STREAM = st.integers(0, 1 << 30)


class Conversation(RuleBasedStateMachine):
    """A client that does anything that h2 lets it, and a server that answers whole requests."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Http2Limits(
            max_concurrent_streams=10, stream_window=50_000, connection_window=100_000,
            settings_at_once=10_000, resets_per_s=1e6, turn_bytes=1000,
        )  # fmt: skip
        self.server = Http2Connection(self.limits, 0.0, frozenset({RESPONSE[1], TRAILERS[0]}))
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.now = 0.0
        self.open: list[int] = []  # the client has not ended them
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}  # by the server
        self.expected: dict[int, int] = {}  # bytes of the answer
        self.answered: dict[int, int] = {}
        self.ended: set[int] = set()

        self.exchange()

    def exchange(self) -> None:
        """Carry bytes to and fro until there are none."""
        self.now += 1.0
        while True:
            to_server = self.client.data_to_send()
            found = self.server.receive_data(to_server, self.now)
            while self.server.has_more:
                found += self.server.receive_data(b"", self.now)
            for event in found:
                self.serve(event)
            sent = self.server.data_to_send()
            for event in self.client.receive_data(
                sent if isinstance(sent, bytes) else b"".join(sent)
            ):
                self.hear(event)
            if not (sent or to_server):
                return

    def serve(self, event: Event) -> None:
        assert not isinstance(event, ConnectionTerminated), event
        if isinstance(event, tuple) and event[1] is None:
            begun, _, data, _ = event
            number = begun.stream_id
            self.received[number] = self.received.get(number, 0) + len(data)
            self.server.acknowledge(begun)
        stream = ended_request(event)
        if stream is not None:
            size = self.received.get(stream.stream_id, 0)
            self.expected[stream.stream_id] = size
            self.server.send_response(stream, RESPONSE, (bytes(size // 2), bytes(size - size // 2)), TRAILERS)  # fmt: skip

    def hear(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            self.answered[event.stream_id] = self.answered.get(event.stream_id, 0) + len(event.data or b"")  # fmt: skip
            self.client.acknowledge_received_data(
                event.flow_controlled_length or 0, event.stream_id
            )
        elif isinstance(event, h2.events.TrailersReceived):
            assert event.stream_id is not None
            self.ended.add(event.stream_id)
        assert not isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset), event

    @precondition(lambda self: len(self.open) < 8)
    @rule(end=st.booleans())
    def begin(self, end: bool) -> None:
        number = self.client.get_next_available_stream_id()
        self.client.send_headers(number, REQUEST, end_stream=end)
        if not end:
            self.open.append(number)
        self.exchange()

    @precondition(lambda self: self.open)
    @rule(which=STREAM, size=SIZES, pad=st.none() | st.integers(0, 255), end=st.booleans())
    def send(self, which: int, size: int, pad: int | None, end: bool) -> None:
        number = self.open[which % len(self.open)]
        room = self.client.local_flow_control_window(number) - (0 if pad is None else pad + 1)
        size = min(size, room, self.client.max_outbound_frame_size - 300)
        if size < 0:
            return
        self.client.send_data(number, bytes(size), end_stream=end, pad_length=pad)
        self.sent[number] = self.sent.get(number, 0) + size
        if end:
            self.open.remove(number)
        self.exchange()

    @precondition(lambda self: self.open)
    @rule(which=STREAM)
    def end_with_trailers(self, which: int) -> None:
        number = self.open.pop(which % len(self.open))
        self.client.send_headers(number, [(b"x-end", b"1")], end_stream=True)
        self.exchange()

    @precondition(lambda self: self.open)
    @rule(which=STREAM)
    def give_up(self, which: int) -> None:
        number = self.open.pop(which % len(self.open))
        self.client.reset_stream(number, 8)

        self.exchange()

    @rule(
        window=st.sampled_from([0, 10, 65_535, 1 << 20]),
        table=st.sampled_from([0, 100, 4096]),
        size=st.sampled_from([16_384, 20_000, 1 << 20]),
    )
    def change_settings(self, window: int, table: int, size: int) -> None:
        codes = h2.settings.SettingCodes
        self.client.update_settings(
            {codes.INITIAL_WINDOW_SIZE: window, codes.HEADER_TABLE_SIZE: table, codes.MAX_FRAME_SIZE: size}
        )  # fmt: skip
        self.exchange()

    @rule(which=STREAM)
    def ping_and_prioritize(self, which: int) -> None:
        self.client.ping(b"12345678")
        self.client.prioritize(2 * which + 1, weight=3)
        self.exchange()

    @invariant()
    def the_server_has_read_what_was_sent(self) -> None:
        # Trailers, and an empty frame of DATA, are frames of no byte.
        assert +Counter(self.received) == +Counter(self.sent)

    def teardown(self) -> None:
        for number in list(self.open):
            self.client.end_stream(number)
            self.open.remove(number)
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 28})
        self.exchange()
        assert self.ended == set(self.expected)
        assert {n: self.answered.get(n, 0) for n in self.expected} == self.expected
        assert not self.server.streams


TestConversation = pytest.mark.medium(Conversation.TestCase)
TestConversation.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.medium
@given(st.data())
def test_any_frames_are_read_without_an_exception(data: st.DataObject) -> None:
    """Frames of any type, flags, stream and payload: events, an error for the peer, never an exception of ours."""
    server = Http2Connection(Http2Limits(max_concurrent_streams=3), 0.0)
    server.receive_data(PREFACE + frame(SETTINGS), 0.0)
    payloads = st.binary(max_size=40) | st.just(block()) | st.just(b"\0" * 8) | st.just(b"\0\0\0\1")
    for _ in range(data.draw(st.integers(1, 20))):
        sent = frame(
            data.draw(st.integers(0, 10)),
            data.draw(st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 255])),
            data.draw(st.sampled_from([0, 1, 1, 2, 3, 5, 1 << 31])),
            data.draw(payloads),
        )
        for event in server.receive_data(sent, 0.0):
            stream = ended_request(event)
            if stream is not None:
                server.send_response(stream, RESPONSE, (b"x",), TRAILERS)
        assert all(stream.state.name != "CLOSED" for stream in server.streams.values())
    assert server.data_to_send()
