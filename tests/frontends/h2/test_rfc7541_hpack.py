"""RFC 7541, sections 2 to 6: what a decoder must refuse, what both tables hold, and PyPI's hpack as the oracle."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.extensions.grpc.http2.frames import ErrorCode, HpackError
from nbtriton.extensions.grpc.http2.hpack import TABLE_SIZE, Decoder, Encoder, Field

MOST = 1 << 20
FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b":path", b":status", b"te", b"content-type", b"x-a"]) | st.binary(max_size=300),
        st.sampled_from([b"", b"200", b"trailers", b"POST"]) | st.binary(max_size=300),
    ),
    max_size=8,
)  # fmt: skip


def decode(*blocks: str) -> list[Field] | None:
    """Return the fields of the last block, read after those before it."""
    decoder = Decoder()
    return [decoder.decode(bytes.fromhex(block), MOST) for block in blocks][-1]


# -- what a decoder must refuse (h2spec's hpack cases, and their brothers) ------------------------


@pytest.mark.parametrize(
    "block",
    [
        pytest.param("be", id="2.3.3-indexed-field-beyond-the-tables"),
        pytest.param("7f00", id="2.3.3-indexed-name-beyond-the-tables"),
        pytest.param("8220", id="4.2-table-size-update-after-a-field"),
        pytest.param("ff", id="5.1-integer-cut-off"),
        pytest.param("ffffffffff", id="5.1-integer-cut-off-in-its-middle"),
        pytest.param("ffffffffffffffff7f", id="5.1-integer-too-large"),
        pytest.param("40", id="5.2-string-missing"),
        pytest.param("000161", id="5.2-value-missing"),
        pytest.param("00016105616263", id="5.2-string-cut-off"),
        pytest.param("00016182ffff", id="5.2-huffman-padding-longer-than-7-bits"),
        pytest.param("0001618118", id="5.2-huffman-padding-of-zeros"),
        pytest.param("00016185ffffffffff", id="5.2-huffman-with-the-symbol-EOS"),
        pytest.param("80", id="6.1-indexed-field-0"),
        pytest.param("3fe21f", id="6.3-table-size-above-the-setting"),
    ],
)
def test_a_decoding_error_is_a_connection_error_of_type_COMPRESSION_ERROR(block: str) -> None:
    with pytest.raises(HpackError) as caught:
        decode(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    ("blocks", "fields"),
    [
        pytest.param(["83"], [(b":method", b"POST")], id="6.1-indexed"),
        pytest.param(["440161"], [(b":path", b"a")], id="6.2.1-indexing-with-an-indexed-name"),
        pytest.param(["440161", "be"], [(b":path", b"a")], id="6.2.1-what-was-indexed-is-62"),
        pytest.param(["44811f"], [(b":path", b"a")], id="6.2.1-with-a-huffman-value"),
        pytest.param(["4001610162"], [(b"a", b"b")], id="6.2.1-with-a-new-name"),
        pytest.param(["40811f811f"], [(b"a", b"a")], id="6.2.1-with-a-new-huffman-name"),
        pytest.param(["040161"], [(b":path", b"a")], id="6.2.2-without-indexing"),
        pytest.param(["04811f"], [(b":path", b"a")], id="6.2.2-with-a-huffman-value"),
        pytest.param(["0001610162"], [(b"a", b"b")], id="6.2.2-with-a-new-name"),
        pytest.param(["00811f811f"], [(b"a", b"a")], id="6.2.2-with-a-new-huffman-name"),
        pytest.param(["140161"], [(b":path", b"a")], id="6.2.3-never-indexed"),
        pytest.param(["14811f"], [(b":path", b"a")], id="6.2.3-with-a-huffman-value"),
        pytest.param(["1001610162"], [(b"a", b"b")], id="6.2.3-with-a-new-name"),
        pytest.param(["10811f811f"], [(b"a", b"a")], id="6.2.3-with-a-new-huffman-name"),
        pytest.param(["2083"], [(b":method", b"POST")], id="6.3-table-size-update"),
        pytest.param(["203fe11f83"], [(b":method", b"POST")], id="6.3-several-table-size-updates"),
    ],
)
def test_every_representation_is_read(blocks: list[str], fields: list[Field]) -> None:
    assert decode(*blocks) == fields


@given(st.binary(max_size=80))
def test_any_bytes_are_fields_or_refused_as_by_hpack(block: bytes) -> None:
    theirs = hpack.Decoder(max_header_list_size=MOST)
    theirs.max_allowed_table_size = TABLE_SIZE
    try:
        fields = Decoder().decode(block, MOST)
    except HpackError:
        with pytest.raises((hpack.HPACKError, IndexError)):  # an empty string at the end
            theirs.decode(block, raw=True)
    else:
        assert [tuple(field) for field in theirs.decode(block, raw=True)] == fields


# -- both directions against the oracle -------------------------------------------------------------


@given(
    st.lists(FIELDS, max_size=6), st.booleans(), st.lists(st.sampled_from([0, 60, 100, TABLE_SIZE]))
)
@pytest.mark.medium
def test_what_hpack_encodes_is_decoded(lists: list[list[Field]], huffman: bool, sizes: list[int]) -> None:  # fmt: skip
    theirs, ours = hpack.Encoder(), Decoder()
    for n, fields in enumerate(lists):
        if n < len(sizes):
            theirs.header_table_size = sizes[n]
        assert ours.decode(theirs.encode(fields, huffman=huffman), MOST) == fields


@given(
    st.lists(FIELDS, max_size=6), st.sets(st.integers(0, 7)), st.lists(st.sampled_from([0, 60, 100, 300, TABLE_SIZE, 1 << 16]))
)  # fmt: skip
@pytest.mark.medium
def test_what_is_encoded_hpack_decodes(lists: list[list[Field]], indexed: set[int], sizes: list[int]) -> None:  # fmt: skip
    """Fields are indexed or not, blocks are repeated, and the peer changes its table in between."""
    often = {field for fields in lists for n, field in enumerate(fields) if n in indexed}
    ours, theirs = Encoder(often), hpack.Decoder(max_header_list_size=MOST)
    for n, fields in enumerate(lists):
        if n < len(sizes):
            theirs.max_allowed_table_size = sizes[n]
            ours.set_max_table_size(sizes[n])
        for _ in range(2):
            block = ours.encode(tuple(fields))
            assert [tuple(field) for field in theirs.decode(block, raw=True)] == fields


# -- tables ------------------------------------------------------------------------------------------


def test_2_3_2_an_indexed_field_takes_one_byte_until_it_is_evicted() -> None:
    a, b, long = (b"a", b"1"), (b"b", b"2"), (b"d", bytes(TABLE_SIZE - 2 * 34 - 33 + 1))
    encoder, decoder = Encoder({a, b, long}), Decoder()
    decoder.decode(encoder.encode((a, b)), MOST)
    before = decoder.changes
    assert encoder.encode((b, a)) == b"\xbe\xbf"
    assert decoder.decode(b"\xbe\xbf", MOST) == [b, a]
    assert decoder.changes == before
    decoder.decode(encoder.encode((long,)), MOST)
    assert decoder.changes > before
    assert decoder.decode(b"\xbf", MOST) == [b]  # "a" had to go
    with pytest.raises(HpackError):
        decoder.decode(b"\xc0", MOST)
    assert encoder.encode((a,)) == b"\x40\x01a\x011"


def test_4_4_a_field_larger_than_the_table_empties_it() -> None:
    decoder = Decoder()
    theirs = hpack.Encoder()
    decoder.decode(theirs.encode([(b"a", b"1")]), MOST)
    decoder.decode(b"\x40\x01e" + b"\x7f\x81\x7f" + bytes(127 + 0x3F81), MOST)
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe", MOST)


def test_4_2_an_encoder_says_the_smallest_size_and_the_last() -> None:
    encoder = Encoder()
    for size in (100, 0, 200, 1 << 16):
        encoder.set_max_table_size(size)
    assert encoder.encode(()) == b"\x20\x3f\xe1\x1f"
    encoder.set_max_table_size(TABLE_SIZE)
    assert encoder.encode(()) == b""


def test_too_many_fields_are_read_and_not_held() -> None:
    """Numbers of one byte that stand for four kilobytes each: what they cost is bounded."""
    decoder = Decoder()
    large = b"\x40\x01a\x7f\xa1\x1e" + bytes(4000)
    assert decoder.decode(large + b"\xbe" * 60_000, 1 << 16) is None
    assert decoder.decode(b"\xbe", MOST) == [(b"a", bytes(4000))]
