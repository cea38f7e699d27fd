"""RFC 9113, section 3: starting HTTP/2."""

from __future__ import annotations

import pytest

from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.extensions.grpc.http2.streams import ConnectionTerminated
from tests.frontends.h2.peer import Peer, request
from tests.frontends.http2_raw import PREFACE, SETTINGS, WINDOW_UPDATE, frame


def test_3_4_the_servers_preface_is_the_first_frame_that_it_sends() -> None:
    peer = Peer(preface=b"")
    peer.read()
    assert [(one.kind, one.flags, one.stream) for one in peer.frames] == [
        (SETTINGS, 0, 0),
        (WINDOW_UPDATE, 0, 0),
    ]


def test_3_4_a_clients_preface_is_accepted() -> None:
    peer = Peer()
    peer.send(request())
    assert peer.connection.is_greeted
    assert peer.data(1)


@pytest.mark.parametrize(
    "preface",
    [
        pytest.param(b"INVALID CONNECTION PREFACE\r\n\r\n", id="something-else"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", id="HTTP-1.1"),
        pytest.param(PREFACE[:-2] + b"xx", id="almost"),
        pytest.param(PREFACE + request(), id="without-SETTINGS"),
    ],
)
def test_3_4_an_invalid_preface_ends_the_connection(preface: bytes) -> None:
    peer = Peer(preface=preface)
    assert peer.goaway is ErrorCode.PROTOCOL_ERROR
    assert isinstance(peer.events[-1], ConnectionTerminated)
    assert not peer.connection.is_greeted or not peer.fields


def test_3_4_a_preface_may_come_in_pieces() -> None:
    peer = Peer(preface=b"")
    for byte in PREFACE + frame(SETTINGS) + request():
        peer.send(bytes((byte,)))
    assert peer.data(1)
