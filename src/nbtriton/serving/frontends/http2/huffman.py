"""Decoder of HPACK's Huffman code, byte by byte (RFC 7541 section 5.2 and appendix B)."""

from __future__ import annotations

from functools import cache

from nbtriton.serving.frontends.http2.errors import HpackError

__all__ = ["decode"]

# Code lengths, which determine a canonical code: one digit of base 36 for each byte, and one for EOS.
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


def decode(text: bytes) -> bytes:
    """Decode a Huffman-coded string; raises HpackError."""
    node = 0
    out = []
    for byte in text:
        symbols, node = _step(node, byte)
        out.append(symbols)
    if node not in _ENDS:
        raise HpackError("a string ends within a symbol")
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
                raise HpackError("a string holds the symbol EOS")
            symbols.append(symbol)
            node = 0
    return bytes(symbols), node
