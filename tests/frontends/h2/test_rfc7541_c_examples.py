"""RFC 7541, appendix C: its examples, decoded."""

from __future__ import annotations

import pytest

from nbtriton.extensions.grpc.http2.hpack import Decoder

MOST = 1 << 16
PLAIN = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]  # fmt: skip
REQUESTS = [
    PLAIN,
    [*PLAIN, (b"cache-control", b"no-cache")],
    [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"),
     (b":authority", b"www.example.com"), (b"custom-key", b"custom-value")],
]  # fmt: skip
RESPONSES = [
    [(b":status", b"302"), (b"cache-control", b"private"),
     (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"), (b"location", b"https://www.example.com")],
    [(b":status", b"307"), (b"cache-control", b"private"),
     (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"), (b"location", b"https://www.example.com")],
    [(b":status", b"200"), (b"cache-control", b"private"),
     (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"), (b"location", b"https://www.example.com"),
     (b"content-encoding", b"gzip"),
     (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")],
]  # fmt: skip


@pytest.mark.parametrize(
    "blocks",
    [
        # C.3
        ("828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865",
         "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"),
        # C.4
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf",
         "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"),
    ],
    ids=["plain", "Huffman"],
)  # fmt: skip
def test_the_requests_of_the_standard(blocks: tuple[str, ...]) -> None:
    decoder = Decoder()
    assert [decoder.decode(bytes.fromhex(block), MOST) for block in blocks] == REQUESTS


def test_the_responses_of_the_standard_with_a_table_of_256_bytes() -> None:
    decoder = Decoder()
    resized = "3fe101"
    first = (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f"
        "0b97c8e9ae82ae43d3"
    )
    last = (
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335df"
        "dfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
    )
    blocks = (resized + first, "4883640effc1c0bf", last)
    assert [decoder.decode(bytes.fromhex(block), MOST) for block in blocks] == RESPONSES
