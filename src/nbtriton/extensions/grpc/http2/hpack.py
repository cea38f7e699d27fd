"""HPACK, header compression (RFC 7541): a full decoder, and an encoder without Huffman code.

A block that does not change the table has the same meaning until the table changes. So the connection caches
decoded blocks by their bytes (`Decoder.changes`), and the encoder caches its blocks by their fields.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Container, Sequence
from functools import cache
from typing import Any

from nbtriton.extensions.grpc.http2 import frames

Field = tuple[bytes, bytes]

# Static table (appendix A), from index 1.
_STATIC: tuple[Field, ...] = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"),
    (b":status", b"200"), (b":status", b"204"), (b":status", b"206"), (b":status", b"304"),
    (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""),
    (b"accept", b""), (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""),
    (b"authorization", b""), (b"cache-control", b""), (b"content-disposition", b""),
    (b"content-encoding", b""), (b"content-language", b""), (b"content-length", b""),
    (b"content-location", b""), (b"content-range", b""), (b"content-type", b""),
    (b"cookie", b""), (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""),
    (b"from", b""), (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""),
    (b"if-none-match", b""), (b"if-range", b""), (b"if-unmodified-since", b""),
    (b"last-modified", b""), (b"link", b""), (b"location", b""), (b"max-forwards", b""),
    (b"proxy-authenticate", b""), (b"proxy-authorization", b""), (b"range", b""),
    (b"referer", b""), (b"refresh", b""), (b"retry-after", b""), (b"server", b""),
    (b"set-cookie", b""), (b"strict-transport-security", b""), (b"transfer-encoding", b""),
    (b"user-agent", b""), (b"vary", b""), (b"via", b""), (b"www-authenticate", b""),
)  # fmt: skip
_STATIC_FIELDS = {field: n for n, field in reversed([*enumerate(_STATIC, 1)])}
_STATIC_NAMES = {name: n for (name, _), n in _STATIC_FIELDS.items()}
# Overhead of a table entry in bytes (section 4.1), and the table's initial size.
_OVERHEAD, TABLE_SIZE = 32, 4096
_MAX_INTEGER = 1 << 28
# Representations of section 6: the pattern, and the bits of the integer's prefix.
_INDEXED, _INDEXING, _RESIZE, _LITERAL = (0x80, 7), (0x40, 6), (0x20, 5), (0x00, 4)
_MAX_CACHED = 64


class _DynamicTable:
    """Dynamic table, the newest entry first (section 2.3.2)."""

    __slots__ = ("changes", "fields", "max_size", "size")

    def __init__(self, max_size: int) -> None:
        self.fields: deque[Field] = deque()
        self.size = 0
        self.max_size = max_size
        self.changes = 0

    def add(self, field: Field) -> None:
        """Insert a field; a field larger than the table empties it (section 4.4)."""
        size = _size(field)
        self._evict(size)
        if size <= self.max_size:
            self.fields.appendleft(field)
            self.size += size

    def resize(self, max_size: int) -> None:
        self.max_size = max_size
        self._evict(0)

    def _evict(self, room: int) -> None:
        self.changes += 1
        while self.fields and self.size + room > self.max_size:
            self.size -= _size(self.fields.pop())


def _size(field: Field) -> int:
    return len(field[0]) + len(field[1]) + _OVERHEAD


class Decoder:
    """HPACK decoder of one connection.

    Parameters
    ----------
    max_table_size : int
        SETTINGS_HEADER_TABLE_SIZE as sent to the peer.
    """

    __slots__ = ("_max_table_size", "_table")

    def __init__(self, max_table_size: int = TABLE_SIZE) -> None:
        self._max_table_size = max_table_size
        self._table = _DynamicTable(max_table_size)

    @property
    def changes(self) -> int:
        """Count of the table's changes: while it is the same, equal blocks have equal fields."""
        return self._table.changes

    def decode(self, block: bytes, max_list_size: int) -> list[Field] | None:
        """Return the fields of a complete block; None if they exceed `max_list_size`.

        Raises
        ------
        HpackError
        """
        fields: list[Field] = []
        size = offset = 0
        while offset < len(block):
            first = block[offset]
            if first & 0xE0 == _RESIZE[0]:
                if size:
                    raise frames.HpackError("the table's size changes after a field")
                max_size, offset = _read_integer(block, offset, 5)
                if max_size > self._max_table_size:
                    text = f"a table of {max_size} bytes is more than {self._max_table_size}"
                    raise frames.HpackError(text)
                self._table.resize(max_size)
                continue
            if first >= _INDEXED[0]:
                index, offset = _read_integer(block, offset, 7)
                field = self._entry(index)
            else:
                indexing = first >= _INDEXING[0]
                index, offset = _read_integer(block, offset, 6 if indexing else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, offset = _read_string(block, offset)
                value, offset = _read_string(block, offset)
                field = (name, value)
                if indexing:
                    self._table.add(field)
            size += _size(field)
            if size <= max_list_size:  # further fields only update the table
                fields.append(field)
        return fields if size <= max_list_size else None

    def _entry(self, index: int) -> Field:
        if not index:
            raise frames.HpackError("no field has the index 0")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        try:
            return self._table.fields[index - len(_STATIC) - 1]
        except IndexError:
            raise frames.HpackError(f"no field has the index {index}") from None


def _read_integer(block: bytes, offset: int, bits: int) -> tuple[int, int]:
    mask = (1 << bits) - 1
    value = block[offset] & mask
    offset += 1
    if value < mask:
        return value, offset
    shift = 0
    try:
        while True:
            byte = block[offset]
            offset += 1
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value, offset
            shift += 7
            if value > _MAX_INTEGER or shift > 28:
                raise frames.HpackError("an integer is too large")
    except IndexError:
        raise frames.HpackError("an integer is cut off") from None


def _read_string(block: bytes, offset: int) -> tuple[bytes, int]:
    if offset >= len(block):
        raise frames.HpackError("a string is missing")
    is_huffman = block[offset] >= 0x80
    size, offset = _read_integer(block, offset, 7)
    text = block[offset : offset + size]
    if len(text) < size:
        raise frames.HpackError("a string is cut off")
    return (_decode_huffman(text) if is_huffman else text), offset + size


class Encoder:
    """HPACK encoder of one connection.

    Parameters
    ----------
    indexed : container of fields
        Frequent fields: each uses an entry of the peer's table, and one byte in every later block.
    """

    __slots__ = ("_blocks", "_indexed", "_smallest", "_table")

    def __init__(self, indexed: Container[Field] = ()) -> None:
        self._indexed = indexed
        self._table = _DynamicTable(TABLE_SIZE)
        self._blocks: dict[tuple[Field, ...], bytes] = {}
        self._smallest: int | None = None  # smallest table size that no block has announced yet

    def set_max_table_size(self, size: int) -> None:
        """Apply the peer's SETTINGS_HEADER_TABLE_SIZE; the next block announces it (section 4.2)."""
        size = min(size, TABLE_SIZE)
        if size != self._table.max_size or self._smallest is not None:
            self._smallest = min(size, size if self._smallest is None else self._smallest)
            self._table.resize(size)
            self._blocks.clear()

    def cached(self, fields: tuple[Field, ...]) -> bytes:
        """Return the cached block of some fields; empty if there is none, or the table must change first."""
        return self._blocks.get(fields, b"")

    def encode(self, fields: tuple[Field, ...]) -> bytes:
        """Return a block of fields."""
        block = self.cached(fields)
        if block:
            return block
        changes = self._table.changes
        resized = b""
        if self._smallest is not None:
            sizes = {self._smallest: None, self._table.max_size: None}
            resized = b"".join(_integer(size, *_RESIZE) for size in sizes)
            self._smallest = None
        block = b"".join(map(self._encode_field, fields))
        if self._table.changes != changes or len(self._blocks) >= _MAX_CACHED:
            self._blocks.clear()
        if self._table.changes == changes:
            self._blocks[fields] = block
        return resized + block

    def _encode_field(self, field: Field) -> bytes:
        index = _STATIC_FIELDS.get(field, 0)
        if not index and field in self._table.fields:
            index = len(_STATIC) + 1 + self._table.fields.index(field)
        if index:
            return _integer(index, *_INDEXED)
        name, value = field
        representation = _LITERAL
        if field in self._indexed and _size(field) <= self._table.max_size:
            representation = _INDEXING
            self._table.add(field)
        named = _STATIC_NAMES.get(name, 0)
        head = _integer(named, *representation)
        return head + (b"" if named else _string(name)) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 0, 7) + text


def _integer(value: int, pattern: int, bits: int) -> bytes:
    mask = (1 << bits) - 1
    if value < mask:
        return bytes((pattern | value,))
    out = bytearray((pattern | mask,))
    value -= mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Huffman code (section 5.2, appendix B). Code lengths, which determine a canonical code: one digit of base 36 for each byte, and one for EOS.
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad677777777777777777777"
    "77878djde6f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmo"
    "lmnnllmlnmnnkmmmnmmnqqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
_END = 256


def _tree() -> tuple[list[list[int]], frozenset[int]]:
    """Return the code as a tree, and the nodes at which a string may end.

    A node holds its successors for bits 0 and 1: another node, or a symbol as -1 - symbol.
    """
    nodes = [[0, 0]]
    code = length = 0
    for size, symbol in sorted((int(digit, 36), n) for n, digit in enumerate(_LENGTHS)):
        code <<= size - length
        length = size
        at = 0
        for shift in range(size - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[at][bit]:
                nodes[at][bit] = len(nodes)
                nodes.append([0, 0])
            at = nodes[at][bit]
        nodes[at][code & 1] = -1 - symbol
        code += 1
    ends, at = [0], 0
    for _ in range(7):  # padding: less than a byte of EOS, which is all ones
        at = nodes[at][1]
        ends.append(at)
    return nodes, frozenset(ends)


_NODES, _ENDS = _tree()


def _decode_huffman(text: bytes) -> bytes:
    """Decode a Huffman-coded string; raises HpackError."""
    node = 0
    out = []
    for byte in text:
        symbols, node = _step(node, byte)
        out.append(symbols)
    if node not in _ENDS:
        raise frames.HpackError("a string ends within a symbol")
    return b"".join(out)


@cache  # at most 256 nodes with 256 bytes each
def _step(node: int, byte: int) -> tuple[bytes, int]:
    """Return the symbols that a byte completes, and the next node."""
    symbols = bytearray()
    for shift in range(7, -1, -1):
        node = _NODES[node][byte >> shift & 1]
        if node < 0:
            symbol = -1 - node
            if symbol == _END:
                raise frames.HpackError("a string holds the symbol EOS")
            symbols.append(symbol)
            node = 0
    return bytes(symbols), node


# Limits: cached header blocks, bytes of each, and frames of one block.
_MAX_CACHED, _MAX_CACHED_SIZE, _MAX_FRAGMENTS = 256, 4096, 64


class HeaderBlockReader:
    """Reader of header blocks; a block that does not change the table is cached by its bytes.

    Parameters
    ----------
    max_list_size : int
        Limit of a block's fields, as HPACK counts them.
    max_size : int
        Limit of a block in bytes.

    Attributes
    ----------
    cached : dict of bytes to HeaderBlock
        Valid until the decoder's table changes. A repeated call has the same bytes.
    continued : (int, int), optional
        Stream and flags of the HEADERS frame whose block is continued.
    """

    __slots__ = ("_decoder", "_fragments", "_max_list_size", "_max_size", "cached", "continued")

    def __init__(self, max_list_size: int, max_size: int) -> None:
        self.cached: dict[bytes, HeaderBlock] = {}
        self.continued: tuple[int, int] | None = None
        self._decoder = Decoder()
        self._fragments: list[bytes] = []
        self._max_list_size = max_list_size
        self._max_size = max_size

    def begin(self, stream_id: int, flags: int, fragment: bytes) -> None:
        """Read HEADERS that lacks END_HEADERS."""
        self.continued = (stream_id, flags)
        self._fragments = [fragment]

    def append(
        self, kind: int, flags: int, stream_id: int, fragment: bytes
    ) -> tuple[int, bytes] | None:
        """Read the next frame; return the flags of HEADERS and the block once it is complete."""
        if self.continued is None or kind != frames.CONTINUATION or stream_id != self.continued[0]:
            raise frames.Http2ConnectionError(
                f"Failed parsing HTTP/2 (Expected CONTINUATION frame, got frame type {kind:02x})"
            )
        self._fragments.append(fragment)
        if len(self._fragments) > _MAX_FRAGMENTS or sum(map(len, self._fragments)) > self._max_size:
            raise frames.Http2ConnectionError(
                "received metadata size exceeds hard limit", frames.ErrorCode.ENHANCE_YOUR_CALM
            )
        if not flags & frames.END_HEADERS:
            return None
        found = self.continued[1], b"".join(self._fragments)
        self._fragments, self.continued = [], None
        return found

    def decode(self, block: bytes) -> HeaderBlock:
        """Decode a block that is not cached."""
        changes = self._decoder.changes
        headers = HeaderBlock(self._decoder.decode(block, self._max_list_size))
        if self._decoder.changes != changes or len(self.cached) >= _MAX_CACHED:
            self.cached.clear()
        if self._decoder.changes == changes and len(block) <= _MAX_CACHED_SIZE:
            self.cached[block] = headers
        return headers


_PSEUDO_FIELDS = frozenset({b":method", b":scheme", b":path", b":authority"})
_CONNECTION_FIELDS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME = re.compile(rb"[!-9;-@\[-~]+")  # no capital letters, colons, spaces or control characters
_VALUE = re.compile(rb"[^\0\r\n]*")


class HeaderBlock:
    """Decoded fields and their properties, shared by all blocks of the same bytes.

    Parameters
    ----------
    fields : sequence of (name, value), optional
        None if they exceed the limit.

    Attributes
    ----------
    is_request, are_trailers : bool
        Whether the fields are valid as a request's header, and as its trailers.
    content_length : int, optional
    parsed : object
        For the user of the connection: its reading of the fields.
    """

    __slots__ = ("are_trailers", "content_length", "fields", "is_request", "parsed")

    def __init__(self, fields: Sequence[Field] | None) -> None:
        self.fields = fields
        self.parsed: Any = None
        self.content_length: int | None = None
        pseudo: dict[bytes, bytes] = {}
        self.is_request = self.are_trailers = self._read(fields or (), pseudo)
        if pseudo:
            self.are_trailers = False
        if fields is not None:
            needed = _PSEUDO_FIELDS - {b":authority"}
            if pseudo.get(b":method") == b"CONNECT":
                needed = frozenset({b":method", b":authority"})
            self.is_request &= all(pseudo.get(name) for name in needed)

    def _read(self, fields: Sequence[Field], pseudo: dict[bytes, bytes]) -> bool:
        """Collect pseudo-header fields and the content's length; False if a field is malformed."""
        for name, value in fields:
            if name not in _PSEUDO_FIELDS or name in pseudo:
                break
            pseudo[name] = value
        lengths = set()
        for name, value in fields[len(pseudo) :]:
            if not _NAME.fullmatch(name) or name in _CONNECTION_FIELDS:
                return False
            if name == b"te" and value != b"trailers":
                return False
            if name == b"content-length":
                lengths.add(value)
        if lengths:
            length = lengths.pop()
            # Python refuses to read thousands of digits.
            if lengths or not length.isdigit() or len(length) > 19:
                return False
            self.content_length = int(length)
        return all(_VALUE.fullmatch(value) for _, value in fields)
