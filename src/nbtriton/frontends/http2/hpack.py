"""Header fields of HTTP/2 as they travel (RFC 7541): read in full, written in the plainest way."""

from __future__ import annotations

from collections import deque

__all__ = ["Decoder", "Field", "HpackError", "indexed", "literal", "remembered"]

Field = tuple[bytes, bytes]

# Appendix A, from 1 on.
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
# Appendix B. The code is canonical: how long each symbol's is says what it is. One digit of base 36
# for each byte, and one for the end.
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad677777777777777777777"
    "77878djde6f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmo"
    "lmnnllmlnmnnkmmmnmmnqqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
_END = 256
# What a field costs in the table and in a list of fields, besides its texts.
_OVERHEAD = 32
_TABLE_SIZE = 4096
_LARGEST = 1 << 28


class HpackError(Exception):
    """These bytes are no header fields."""


class Decoder:
    """The reading side of one connection.

    Attributes
    ----------
    changes : int
        Grows with every change of the table: the same bytes mean the same until then.
    """

    __slots__ = ("_most", "_size", "_table", "changes")

    def __init__(self) -> None:
        self._table: deque[Field] = deque()  # the newest first
        self._size = 0
        self._most = _TABLE_SIZE
        self.changes = 0

    def decode(self, block: bytes, most: int) -> list[Field] | None:
        """Return the fields of a complete block; None if they are larger than `most` bytes.

        Raises
        ------
        HpackError
            The connection is of no use any more.
        """
        fields: list[Field] = []
        size = at = 0
        end = len(block)
        while at < end:
            first = block[at]
            if first >= 0x80:
                index, at = _integer(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:
                if size:
                    raise HpackError("the table's size changes after a field")
                wanted, at = _integer(block, at, 0x1F)
                if wanted > _TABLE_SIZE:
                    raise HpackError(f"a table of {wanted} bytes is more than {_TABLE_SIZE}")
                self._most = wanted
                self._shrink(0)
                continue
            else:
                kept = first >= 0x40
                index, at = _integer(block, at, 0x3F if kept else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                field = (name, value)
                if kept:
                    self._keep(field)
            size += len(field[0]) + len(field[1]) + _OVERHEAD
            if size <= most:  # what is too much is read for the table's sake, and not held
                fields.append(field)
        return fields if size <= most else None

    def _entry(self, index: int) -> Field:
        if not index:
            raise HpackError("there is no field 0")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        try:
            return self._table[index - len(_STATIC) - 1]
        except IndexError:
            raise HpackError(f"there is no field {index}") from None

    def _keep(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + _OVERHEAD
        self._shrink(size)
        if size <= self._most:
            self._table.appendleft(field)
            self._size += size

    def _shrink(self, room: int) -> None:
        """Make room for so many bytes; a field that is too large empties the table."""
        self.changes += 1
        while self._table and self._size + room > self._most:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _OVERHEAD


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    try:
        while True:
            byte = block[at]
            at += 1
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if value > _LARGEST or shift > 28:
                raise HpackError("a number is too large")
    except IndexError:
        raise HpackError("a number is cut off") from None


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    if at >= len(block):
        raise HpackError("a text is missing")
    packed = block[at] >= 0x80
    size, at = _integer(block, at, 0x7F)
    text = block[at : at + size]
    if len(text) < size:
        raise HpackError("a text is cut off")
    return (_unpacked(text) if packed else text), at + size


# -- Huffman -----------------------------------------------------------------------------------------


def _tree() -> tuple[list[list[int]], frozenset[int]]:
    """Return the code as a tree, and the places in it where a text may end.

    A node holds where 0 and 1 lead: to another node, or to a symbol, which is -1 - symbol.
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
    for _ in range(7):  # less than a byte of the code that ends all, which is ones
        at = nodes[at][1]
        ends.append(at)
    return nodes, frozenset(ends)


_NODES, _ENDS = _tree()
# What a byte does at a node, once it was met: 256 nodes and as many bytes at the most.
_STEPS: dict[int, tuple[bytes, int]] = {}


def _unpacked(text: bytes) -> bytes:
    at = 0
    out = []
    for byte in text:
        step = _STEPS.get(at << 8 | byte)
        if step is None:
            step = _STEPS[at << 8 | byte] = _stepped(at, byte)
        symbols, at = step
        out.append(symbols)
    if at not in _ENDS:
        raise HpackError("a text ends within a symbol")
    return b"".join(out)


def _stepped(at: int, byte: int) -> tuple[bytes, int]:
    symbols = bytearray()
    for shift in range(7, -1, -1):
        at = _NODES[at][byte >> shift & 1]
        if at < 0:
            symbol = -1 - at
            if symbol == _END:
                raise HpackError("a text holds the symbol that ends it")
            symbols.append(symbol)
            at = 0
    return bytes(symbols), at


# -- writing -----------------------------------------------------------------------------------------


def _length(size: int) -> bytes:
    if size < 0x7F:
        return bytes((size,))
    size -= 0x7F
    out = bytearray(b"\x7f")
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field as it is, which no table keeps."""
    return b"".join((b"\0", _length(len(name)), name, _length(len(value)), value))


def remembered(name: bytes, value: bytes) -> bytes:
    """Return a field that becomes the newest one of the reader's table."""
    return b"\x40" + literal(name, value)[1:]


def indexed(index: int) -> bytes:
    """Return a field that the reader knows, up to 126: the newest of its table is 62."""
    return bytes((0x80 | index,))
