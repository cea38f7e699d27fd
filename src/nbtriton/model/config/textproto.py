r"""Parser of protobuf text, with the rules and the messages of protobuf's C++ parser.

Triton reads ``config.pbtxt`` with it. The parser in protobuf's Python package accepts other texts
(``+1``, ``1_000``, ``"\q"``), refuses some that Triton takes (``- 1``), and has other messages for
those that both refuse. The rules are those of ``TextFormat::Parser`` (``google/protobuf/text_format.cc``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from nbtriton.model.config._proto import Descriptor, is_map, is_repeated

_CLOSING: Final = {"{": "}", "<": ">", "[": "]"}
_LARGEST: Final = {"INT32": 2**31 - 1, "UINT32": 2**32 - 1, "INT64": 2**63 - 1, "UINT64": 2**64 - 1}
_KINDS: Final = {
    getattr(FieldDescriptor, f"CPPTYPE_{name}"): name
    for name in (*_LARGEST, "FLOAT", "DOUBLE", "BOOL", "STRING")
}
_TRUE: Final = ("true", "True", "t")
_FALSE: Final = ("false", "False", "f")
_ESCAPED: Final = re.compile(
    rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS: Final = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))


@dataclass(frozen=True, slots=True)
class Opened:
    """An open bracket, and the field that it belongs to; `message` is its contents."""

    bracket: str
    field: str
    at: int
    message: Descriptor


class Reader:
    """Reader of one text into one message.

    Parameters
    ----------
    text : str
        Bytes read as Latin-1.
    overwrite : bool
        Let the text set fields that the message already has.

    Attributes
    ----------
    token : Token
        The next token; after an error, the one at fault.
    before : Token
        The previous token, for names that protobuf looks up after it has passed them.
    opened : list of Opened
        The open brackets, the outermost first.
    field : Descriptor or None
        The field whose value is read.
    """

    def __init__(self, text: str, *, overwrite: bool = False) -> None:
        self._tokens = tokens(text)
        self._overwrite = overwrite
        self.opened: list[Opened] = []
        self.field: Descriptor = None
        self.before = self.token = Token(END, "", 0)

    def read(self, message: Message) -> None:
        """Read the whole text.

        Raises
        ------
        TextError
            With protobuf's first message.
        UnicodeDecodeError
            A string is not UTF-8.
        """
        self._next()
        while self.token.kind != END:
            self._read_field(message)

    # -- tokens ----------------------------------------------------------------------------------

    def _next(self) -> None:
        self.before = self.token
        self.token = next(self._tokens)

    def _try(self, text: str) -> bool:
        if self.token.text != text:
            return False
        self._next()
        return True

    def _consume(self, text: str) -> None:
        self._expect(text)
        self._next()

    def _expect(self, text: str) -> None:
        if self.token.text != text:
            raise self._error(f'Expected "{text}", found "{self.token.text}".')

    def _open(self, bracket: str, field: Descriptor) -> None:
        self.opened.append(Opened(bracket, field.name, self.token.start, field.message_type))
        self._next()

    def _error(self, detail: str) -> TextError:
        return TextError(detail, self.token.start)

    def _identifier(self) -> str:
        if self.token.kind != IDENTIFIER:
            raise self._error(f"Expected identifier, got: {self.token.text}")
        text = self.token.text
        self._next()
        return text

    # -- fields ----------------------------------------------------------------------------------

    def _read_field(self, message: Message) -> None:
        field = self.field = self._named_field(message)
        if not self._overwrite and not is_repeated(field):
            self._refuse_second(message, field)
        if field.message_type is not None:
            self._try(":")
        else:
            self._consume(":")
        if is_repeated(field) and self.token.text == "[":
            self._read_list(message, field)
        else:
            self._read_one(message, field)
        self.field = None
        _ = self._try(";") or self._try(",")

    def _refuse_second(self, message: Message, field: Descriptor) -> None:
        """Refuse a field that has a value; one at its default counts as not given, as in C++."""
        name = field.name
        if message.HasField(name) if field.has_presence else getattr(message, name):
            raise self._error(f'Non-repeated field "{name}" is specified multiple times.')
        oneof = field.containing_oneof
        other = message.WhichOneof(oneof.name) if oneof is not None else None
        if other is not None:
            raise self._error(
                f'Field "{name}" is specified along with field "{other}", another member of '
                f'oneof "{oneof.name}".'
            )

    def _named_field(self, message: Message) -> Descriptor:
        descriptor: Descriptor = message.DESCRIPTOR
        if self._try("["):
            name = self._identifier()
            while self._try("."):
                name += "." + self._identifier()
            self._consume("]")
            raise self._error(
                f'Extension "{name}" is not defined or is not an extension of '
                f'"{descriptor.full_name}".'
            )
        name = self._identifier()
        field = descriptor.fields_by_name.get(name)
        if field is None:
            raise self._error(f'Message type "{descriptor.full_name}" has no field named "{name}".')
        return field

    def _read_list(self, message: Message, field: Descriptor) -> None:
        self._open("[", field)
        if self.token.text != "]":
            while True:
                self._read_one(message, field)
                if self.token.text == "]":
                    break
                self._consume(",")
        self.opened.pop()
        self._next()

    def _read_one(self, message: Message, field: Descriptor) -> None:
        if field.message_type is None:
            value = self._value(field)
            if is_repeated(field):
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        elif is_map(field):
            entries = getattr(message, field.name)
            entry = entries.GetEntryClass()()
            self._read_message(entry, field)
            if field.message_type.fields_by_name["value"].message_type is not None:
                entries[entry.key].CopyFrom(entry.value)
            else:
                entries[entry.key] = entry.value
        elif is_repeated(field):
            self._read_message(getattr(message, field.name).add(), field)
        else:
            inner = getattr(message, field.name)
            inner.SetInParent()
            self._read_message(inner, field)

    def _read_message(self, message: Message, field: Descriptor) -> None:
        bracket = "<" if self.token.text == "<" else "{"
        self._expect(bracket)
        self._open(bracket, field)
        while self.token.text not in (">", "}"):
            self._read_field(message)
        self._expect(_CLOSING[bracket])
        self.opened.pop()
        self._next()

    # -- values ----------------------------------------------------------------------------------

    def _value(self, field: Descriptor) -> Any:
        if field.enum_type is not None:
            return self._enum(field)
        kind = _KINDS[field.cpp_type]
        if kind == "STRING":
            return self._string()
        if kind == "BOOL":
            return self._bool(field)
        if kind in ("FLOAT", "DOUBLE"):
            return self._float()
        return self._integer(_LARGEST[kind], signed=kind.startswith("INT"))

    def _integer(self, largest: int, *, signed: bool) -> int:
        negative = signed and self._try("-")
        token = self.token
        if token.kind != INTEGER:
            raise self._error(f"Expected integer, got: {token.text}")
        value = _int_of(token.text)
        if value > largest + negative:
            raise self._error(f"Integer out of range ({token.text})")
        self._next()
        return -value if negative else value

    def _float(self) -> float:
        negative = self._try("-")
        token = self.token
        word = token.text.lower()
        if token.kind == INTEGER:
            if word.startswith("0") and len(word) > 1:
                raise self._error(f"Expect a decimal number, got: {token.text}")
            value = float(word)
        elif token.kind == FLOAT:
            value = float(word.removesuffix("f"))
        elif token.kind == IDENTIFIER and word in ("inf", "infinity", "nan"):
            value = float(word)
        else:
            raise self._error(
                f"Expected double, got: {word if token.kind == IDENTIFIER else token.text}"
            )
        self._next()
        return math.copysign(value, -1.0) if negative else value

    def _bool(self, field: Descriptor) -> bool:
        if self.token.kind == INTEGER:
            return bool(self._integer(1, signed=False))
        word = self._identifier()
        if word not in (*_TRUE, *_FALSE):
            raise self._error(f'Invalid value for boolean field "{field.name}". Value: "{word}".')
        return word in _TRUE

    def _enum(self, field: Descriptor) -> int:
        if self.token.kind == IDENTIFIER:
            word = self._identifier()
            known = field.enum_type.values_by_name.get(word)
            if known is None:
                raise self._error(
                    f'Unknown enumeration value of "{word}" for field "{field.name}".'
                )
            return int(known.number)
        if self.token.kind == INTEGER or self.token.text == "-":
            return self._integer(_LARGEST["INT32"], signed=True)
        raise self._error(f"Expected integer or identifier, got: {self.token.text}")

    def _string(self) -> str:
        if self.token.kind != STRING:
            raise self._error(f"Expected string, got: {self.token.text}")
        value = b""
        while self.token.kind == STRING:
            value += _ESCAPED.sub(_unescaped, self.token.text[1:-1].encode("latin-1"))
            self._next()
        # Two escapes may be the halves of one character.
        text = value.decode("utf-8", "surrogatepass")
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _int_of(text: str) -> int:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    return int(text, 8 if text.startswith("0") else 10)


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, small, four, eight, letter = match.groups()
    if octal:
        return bytes((int(octal, 8) & 0xFF,))
    if small:
        return bytes((int(small, 16),))
    if four or eight:
        return chr(int(four or eight, 16)).encode("utf-8", "surrogatepass")
    return bytes((_LETTERS.get(letter[0], letter[0]),))


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
    """A token: its kind, its text and its position."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """Return the index after the token."""
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
        Something is not a token; with protobuf's message.
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
