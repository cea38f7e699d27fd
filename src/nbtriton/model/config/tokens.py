"""Tokens of protobuf text, as protobuf's C++ tokenizer finds them, with its error messages.

The rules are those of ``google/protobuf/io/tokenizer.cc`` as ``TextFormat`` sets it up: ``#`` starts
a comment, a float may end in ``f``, a number and a word need a space between them. Texts are bytes
read as Latin-1, one character each, as columns are counted in bytes there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FLOAT", "IDENTIFIER", "INTEGER", "STRING", "TextError", "Token", "place", "tokens"]

IDENTIFIER: Final = "identifier"
INTEGER: Final = "integer"
FLOAT: Final = "float"
STRING: Final = "string"
SYMBOL: Final = "symbol"
END: Final = "end"

_TAB: Final = 8
_BLANK: Final = re.compile(r"(?:[ \n\t\r\v\f]+|#[^\n\0]*)*")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEX: Final = re.compile(r"0[xX][0-9a-fA-F]*")
_OCTAL: Final = re.compile(r"0[0-9]+")
_DECIMAL: Final = re.compile(r"(?:\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]*)?([fF])?")
_PLAIN: Final = {'"': re.compile(r'[^"\\\n\0]*'), "'": re.compile(r"[^'\\\n\0]*")}
_ESCAPE: Final = re.compile(
    r"[abfnrtv\\?'\"]|[0-7]|x[0-9a-fA-F]|u[0-9a-fA-F]{4}|U00[01][0-9a-fA-F]{5}"
)


class TextError(Exception):
    """An error at one place of a text.

    Parameters
    ----------
    detail : str
        Protobuf's sentence.
    at : int
        Index into the text.
    """

    def __init__(self, detail: str, at: int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.at = at


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: its kind, itself, and where it stands."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Return the index after it."""
        return self.start + len(self.text)


def place(text: str, at: int) -> tuple[int, int]:
    """Return the one-based line and column of an index; a tab goes to the next multiple of 8."""
    start = text.rfind("\n", 0, at) + 1
    column = 0
    for character in text[start:at]:
        column += _TAB - column % _TAB if character == "\t" else 1
    return text.count("\n", 0, at) + 1, column + 1


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, and one of the kind END.

    Raises
    ------
    TextError
        Something is no token; with protobuf's sentence.
    """
    at = 3 if text.startswith("\xef\xbb\xbf") else 0  # the mark of UTF-8
    word_end = -1
    while True:
        found = _BLANK.match(text, at)
        at = found.end() if found else at
        if at == len(text):
            yield Token(END, "", at)
            return
        token = _token(text, at, word_end)
        yield token
        at = token.end
        word_end = at if token.kind == IDENTIFIER else -1


def _token(text: str, at: int, word_end: int) -> Token:
    first = text[at]
    if word := _WORD.match(text, at):
        return Token(IDENTIFIER, word[0], at)
    if first.isdecimal() and first.isascii():
        return _number(text, at)
    if first == "." and text[at + 1 : at + 2] in set("0123456789"):
        if at == word_end:
            raise TextError("Need space between identifier and decimal point.", at)
        return _number(text, at)
    if first in _PLAIN:
        return _string(text, at)
    if first < " ":
        raise TextError("Invalid control characters encountered in text.", at)
    if first >= "\x80":
        raise TextError(f"Interpreting non ascii codepoint {ord(first)}.", at)
    return Token(SYMBOL, first, at)


def _number(text: str, at: int) -> Token:
    is_float = False
    found = _HEX.match(text, at) or _OCTAL.match(text, at)
    if found is not None:
        end = found.end()
        if end - at == 2 and found[0][1] in "xX":
            raise TextError('"0x" must be followed by hex digits.', end)
        not_octal = re.search("[89]", found[0]) if found[0].isdecimal() else None
        if not_octal:
            raise TextError(
                "Numbers starting with leading zero must be in octal.", at + not_octal.start()
            )
    else:
        found = _DECIMAL.match(text, at)
        assert found is not None  # the caller saw a digit
        end = found.end()
        if found[2] and not found[2][-1].isdecimal():
            raise TextError('"e" must be followed by exponent.', found.end(2))
        is_float = found[0][0] == "." or any(found.groups())
    if _WORD.match(text, end):
        raise TextError("Need space between number and identifier.", end)
    if text[end : end + 1] == ".":
        raise TextError(
            "Already saw decimal point or exponent; can't have another one."
            if is_float
            else "Hex and octal numbers must be integers.",
            end,
        )
    return Token(FLOAT if is_float else INTEGER, text[at:end], at)


def _string(text: str, at: int) -> Token:
    quote = text[at]
    plain = _PLAIN[quote]
    end = at + 1
    while True:
        found = plain.match(text, end)
        end = found.end() if found else end
        stop = text[end : end + 1]
        if stop == quote:
            return Token(STRING, text[at : end + 1], at)
        if stop == "\n":
            raise TextError("String literals cannot cross line boundaries.", end)
        if stop != "\\":
            raise TextError("Unexpected end of string.", end)
        escape = _ESCAPE.match(text, end + 1)
        if escape is None:
            raise _no_escape(text, end + 1)
        end = escape.end()


def _no_escape(text: str, at: int) -> TextError:
    kind = text[at : at + 1]
    if kind == "x":
        return TextError("Expected hex digits for escape sequence.", at + 1)
    digits = re.compile("[0-9a-fA-F]*").match(text, at + 1)
    end = digits.end() if digits else at + 1
    if kind == "u":
        return TextError("Expected four hex digits for \\u escape sequence.", end)
    if kind == "U":
        return TextError("Expected eight hex digits up to 10ffff for \\U escape sequence", end)
    return TextError("Invalid escape sequence in string literal.", at)
