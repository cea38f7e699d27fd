"""JSON as Triton reads and writes it, with its error texts and its form of numbers.

RapidJSON reads, as in Triton, so that reasons and offsets of errors agree. Every error of a JSON text is
INTERNAL (KS6).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import rapidjson

from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.serving.frontends.kserve.wire import MOST_STRINGS

T = TypeVar("T")
_UINT64 = 1 << 64
# Members of an object in order, repeated names included.
Members = tuple[tuple[str, Any], ...]


def _first_counts(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        found |= dict(reversed(members))
    return found


class _FirstCounts(rapidjson.Decoder):
    """Decoder in which the first member of a name counts, as in Triton; in Python the last one does."""

    # Called for each object; a Python method would cost 0.2 us more.
    start_object = list
    end_object = staticmethod(_first_counts)


class _AllMembers(rapidjson.Decoder):
    """Decoder of objects as `Members`."""

    start_object = list
    end_object = tuple


_EXACT = rapidjson.NM_NAN
_FAST = rapidjson.NM_NAN | rapidjson.NM_NATIVE
_SHORT = {
    (kind, mode): kind(number_mode=mode)
    for kind, mode in ((_FirstCounts, _EXACT), (_FirstCounts, _FAST), (_AllMembers, _EXACT))
}
# Longer texts are read piece by piece, and what they gave is freed so: at once they would block other threads for
# more than about 10 ms.
LONG_TEXT = 256 << 10
# Elements that are freed at once.
_AT_ONCE = 1 << 16
# Limits of one text. Freeing an object of a million members takes 100 ms, in which no other thread
# runs, and the garbage collector visits all lists in one go.
MOST_MEMBERS = 1 << 16
MOST_LISTS = 1 << 20
_LIMITS = {
    b":": (MOST_MEMBERS, "members of objects"),
    b"{": (MOST_MEMBERS, "objects"),
    b"[": (MOST_LISTS, "lists"),
    b'"': (MOST_STRINGS, "strings"),
}
_WITHOUT_TENSORS = {**_LIMITS, b",": (MOST_LISTS, "elements")}
_OBJECT = re.compile(rb"\s*\{")
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_OFFSET = re.compile(r"Parse error at offset (\d+): (.*)", re.DOTALL)

# Compact (KS8); bytes that are not UTF-8 are lone surrogates (KS25).
_encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def dumps(value: Any) -> bytes:
    """Write a value as compact JSON."""
    return _encoder.encode(value).encode("utf-8", "surrogateescape")


def parse(text: bytes | memoryview, *, exact: bool = True, tensors: bool = True) -> Any:
    """Read one JSON text.

    Parameters
    ----------
    exact : bool
        Whether doubles are rounded correctly. Otherwise they are read as in Triton: the last bit may
        differ, in a quarter of the time.
    tensors : bool
        Whether its lists may be longer than `MOST_LISTS`: the caller empties them.

    Raises
    ------
    InternalError
        With RapidJSON's reason and the offset.
    InvalidArgumentError
        A long text has too many members, lists or elements, or is not UTF-8.
    """
    return _parse(bytes(text), _FirstCounts, _EXACT if exact else _FAST, tensors)


def parse_members(text: bytes | memoryview) -> Any:
    """Read one JSON text, objects as `Members`.

    Raises
    ------
    TritonError
        As `parse`.
    """
    return _parse(bytes(text), _AllMembers, _EXACT, True)


def check_parts(text: bytes, limits: Mapping[bytes, tuple[int, str]] = _LIMITS) -> None:
    """Check how many members, objects, lists and strings a text has; raises InvalidArgumentError."""
    for mark, (most, what) in limits.items():
        found = sum(text.count(mark, at, at + LONG_TEXT) for at in range(0, len(text), LONG_TEXT))
        if found > most and sum(piece.count(mark) for piece in _outside_strings(text)) > most:
            raise InvalidArgumentError(f"the JSON of the request has more than {most} {what}")


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the text in pieces, with a single quotation mark for each string."""
    is_inside, escape = False, b""
    for at in range(0, len(text), LONG_TEXT):
        piece = escape + text[at : at + LONG_TEXT]
        # A backslash at the end belongs to the next piece.
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        escape = piece[len(piece) - backslashes % 2 :]
        piece = piece[: len(piece) - len(escape)].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b'"'.join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def _parse(text: bytes, kind: type[_FirstCounts | _AllMembers], mode: int, tensors: bool) -> Any:
    is_long = len(text) >= LONG_TEXT
    if is_long:
        # Nobody can empty a broken list that is the root.
        check_parts(text, _LIMITS if tensors and _OBJECT.match(text) else _WITHOUT_TENSORS)
    try:
        return _parse_long(text, kind(number_mode=mode)) if is_long else _SHORT[kind, mode](text)
    except UnicodeDecodeError:
        if is_long:
            raise InvalidArgumentError("the JSON of a long request must be UTF-8") from None
        return _parse_other_bytes(text, kind.end_object)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from None


def _parse_long(text: bytes, decoder: Any) -> Any:
    made: list[
        list[Any]
    ] = []  # the members of each object, in which lists are from their beginning

    def start_object() -> list[Any]:
        made.append([])
        return made[-1]

    decoder.start_object = start_object
    try:
        return decoder(_Pieces(text))
    except ValueError:
        empty(made)
        raise


def empty(value: Any) -> None:
    """Empty the lists of what a long text gave, part by part; other threads run in between."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) is dict:
            waiting.extend(one.values())
        elif type(one) is tuple:
            waiting.extend(one)
        elif type(one) is list:
            while one:
                part = one[-_AT_ONCE:]
                del one[-_AT_ONCE:]
                if not _HOLDERS.isdisjoint(map(type, part)):
                    waiting.extend(item for item in part if type(item) in _HOLDERS)


_HOLDERS = frozenset({dict, list, tuple})


class _Pieces:
    """Reader of a text in pieces, between which other threads may run."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._offset = 0

    def read(self, size: int) -> bytes:
        start, self._offset = self._offset, self._offset + size
        return self._text[start : self._offset]


def _parse_other_bytes(raw: bytes, make: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    """Read a text that is not UTF-8 as Triton does: invalid bytes become lone surrogates."""
    try:
        rapidjson.loads(_NOT_ASCII.sub(b"?", raw))
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from None
    try:
        return json.loads(raw.decode("utf-8", "surrogateescape"), object_pairs_hook=make)
    except (ValueError, RecursionError):
        raise _unreadable(ValueError("Invalid encoding in string.")) from None


def _unreadable(error: Exception) -> InternalError:
    found = _OFFSET.match(str(error))
    reason, offset = (found[2], found[1]) if found else (str(error), "0")
    # A control character, for which Triton's RapidJSON has another text than newer versions.
    reason = reason.replace("Invalid encoding in string", "Invalid escape character in string")
    return InternalError(f"failed to parse the request JSON buffer: {reason} at {offset}")


# -- kinds: TritonJson's As* and MemberAs*, with its texts -------------------------------------------


def _unable(name: str, verb: str, reason: str) -> InternalError:
    about = f"Unable to {verb} '{name}': " if name else ""
    return InternalError(f"{about}attempt to access {reason}")


def as_string(value: Any, name: str = "", verb: str = "parse") -> str:
    """Return a string; the error says that the member `name` cannot be parsed."""
    if type(value) is not str:
        raise _unable(name, verb, "JSON non-string as string")
    return value


def as_bool(value: Any, name: str = "", verb: str = "parse") -> bool:
    """Return a boolean."""
    if type(value) is not bool:
        raise _unable(name, verb, "JSON non-boolean as boolean")
    return value


def as_uint(value: Any, name: str = "", verb: str = "parse") -> int:
    """Return an integer of 0 to 2^64 - 1; refuse ``1.0``."""
    if type(value) is not int or not 0 <= value < _UINT64:
        raise _unable(name, verb, "JSON non-unsigned-integer as unsigned-integer")
    return value


def as_array(value: Any, name: str = "", verb: str = "parse") -> list[Any]:
    """Return an array."""
    if type(value) is not list:
        raise _unable(name, verb, "JSON non-array as array")
    return value


def member(value: Any, name: str, about: str = "") -> Any:
    """Return a required member; the error says that `about` cannot be parsed."""
    if type(value) is not dict or name not in value:
        raise _unable(about, "parse", f"non-existing object member '{name}'")
    return value[name]


def member_as(read: Callable[[Any, str], T], value: Any, name: str) -> T:
    """Return a required member that `read` reads, one of the functions above."""
    return read(member(value, name, name), name)


# -- numbers -----------------------------------------------------------------------------------------


def write_array(array: np.ndarray[Any, Any]) -> bytes:
    """Write the elements of a numeric or boolean array as one flat JSON list (KS23)."""
    flat = array.reshape(-1)
    if flat.dtype.kind != "f":
        return _encoder.encode(flat.tolist()).encode()
    # Python prints the same shortest form except for exponents. Changing these in the whole text takes a
    # third of the time of printing each number.
    text = repr(flat.tolist()).replace(" ", "")
    if "e" in text:
        numbers = text[1:-1].split(",")
        printed = (
            format_double(float(number)) if number.endswith(_OTHER_FORM) else number
            for number in numbers
        )
        text = f"[{','.join(printed)}]".replace("e+", "e").replace("e-0", "e-")
    if "n" in text:
        text = text.replace("nan", "NaN").replace("inf", "Infinity")
    return text.encode()


# Range in which Python prints an exponent and RapidJSON does not.
_OTHER_FORM = ("e-05", "e-06", *(f"e+{exponent}" for exponent in range(16, 22)))


def format_double(value: float) -> str:
    """Print a double as RapidJSON does: ``0.1``, ``1e30``, ``1.5e-7``, ``100000000000000000000.0``."""
    if value != value:  # noqa: PLR0124 - the only number that differs from itself
        return "NaN"
    text = repr(value)
    if text.endswith("inf"):
        return text.replace("inf", "Infinity")
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return f"{sign}0.0"
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * (point - len(digits))}.0"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1}"
