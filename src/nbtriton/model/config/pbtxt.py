"""Protobuf text (``config.pbtxt``), read and written; errors have the place and a hint.

`nbtriton.model.config.textproto` reads it as Triton does; this module turns its errors into
`ConfigError`, with the nearest name, or the bracket that was left open, as the hint.
"""

from __future__ import annotations

import re

from google.protobuf import text_format

from nbtriton.common.errors import ConfigError
from nbtriton.model.config._proto import ModelConfig, hint_unknown_field, hint_unknown_value
from nbtriton.model.config.textproto import END, Opened, Reader, TextError, place

_CLOSING = {"{": "}", "[": "]", "<": ">"}
_PAST = re.compile("has no field named|Unknown enum|Invalid value for bool|is specified ")
_COMMENT = re.compile(rb"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|#[^\n]*""")
_BEGINS = re.compile(r"(?:\s|#[^\n]*(?:\n|$))*\w+\s*(?::(?!=)|[\[{<])")


def parse_pbtxt(text: str | bytes, *, source: str = "config.pbtxt") -> ModelConfig:
    """Read a model configuration in protobuf text format.

    Parameters
    ----------
    text : str or bytes
        The text. Bytes that are not UTF-8 are accepted in comments, as Triton does.
    source : str
        Name of the text in errors.

    Returns
    -------
    ModelConfig
        Exactly the fields of the text; nothing is filled in.

    Raises
    ------
    ConfigError
        With Triton's ``failed to read text proto from …``, its parser's detail, `line`, `column`
        and a hint.

    Examples
    --------
    >>> parse_pbtxt('name: "bert"  max_batch_size: 8').max_batch_size
    8
    """
    data = _bytes(text)
    read = data.decode("latin-1")
    config = ModelConfig()
    reader = Reader(read)
    try:
        reader.read(config)
    except TextError as error:
        raise _config_error(error, reader, read, source) from None
    except UnicodeError:
        line, column = place(read, _foreign(data))
        raise ConfigError(
            f"failed to read text proto from {source}: {line}:{column}: Invalid UTF-8 text.",
            hint="save the file as UTF-8; other bytes are allowed in comments only",
            line=line,
            column=column,
        ) from None
    return config


def lay_over_pbtxt(config: ModelConfig, text: str | bytes) -> None:
    """Set the fields that a text names, which `parse_pbtxt` can read; lists are appended to."""
    Reader(_bytes(text).decode("latin-1"), overwrite=True).read(config)


def _bytes(text: str | bytes) -> bytes:
    """Return the text with one character per byte: the parser counts bytes."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def format_pbtxt(config: ModelConfig) -> str:
    """Write a configuration as protobuf text; `parse_pbtxt` gives the same message back.

    Examples
    --------
    >>> print(format_pbtxt(parse_pbtxt("max_batch_size:8 input{name:'IN' dims:[4]}")), end="")
    max_batch_size: 8
    input {
      name: "IN"
      dims: [4]
    }
    """
    return text_format.MessageToString(config, as_utf8=True, use_short_repeated_primitives=True)


def looks_like_pbtxt(text: str) -> bool:
    """Return True if a text begins like a configuration: with a field, known or not, and a value."""
    return _BEGINS.match(text) is not None


def _foreign(data: bytes) -> int:
    """Return the index of the first byte that is not UTF-8, leaving comments out."""
    strings = _COMMENT.sub(lambda found: found[1] or b" " * len(found[0]), data)
    try:
        strings.decode()
    except UnicodeDecodeError as error:
        return error.start
    escape = re.search(rb"\\(?:x[89a-fA-F]|[23][0-7]|[uU])", strings)  # a byte written as one
    return escape.start() if escape else 0


def _config_error(error: TextError, reader: Reader, text: str, source: str) -> ConfigError:
    line, column = place(text, error.at)
    detail = error.detail.encode("latin-1").decode(errors="replace")
    hint, field = _hint(detail, reader, text)
    # Protobuf counts bytes and tabs, and is already past a name when it looks it up; `column` points at the name.
    at = reader.before.start if _PAST.search(detail) else error.at
    before = text[text.rfind("\n", 0, at) + 1 : at].encode("latin-1").decode(errors="replace")
    return ConfigError(
        f"failed to read text proto from {source}: {line}:{column}: {detail}",
        hint=hint,
        field=field,
        line=place(text, at)[0],
        column=len(before) + 1,
    )


def _hint(detail: str, reader: Reader, text: str) -> tuple[str, str]:
    """Return a hint, and the path of the field at fault."""
    path = list(dict.fromkeys(one.field for one in reader.opened))
    if match := re.search(r'has no field named "(.+?)"', detail):
        return _hint_field(match[1], reader.opened, text), ".".join([*path, match[1]])
    if reader.field is not None and reader.field.name not in path:
        path.append(reader.field.name)
    field = ".".join(path)
    if match := re.match('Unknown enumeration value of "(.+?)"', detail):
        return hint_unknown_value(reader.field.enum_type.full_name, match[1]), field
    if match := re.match("Expected string, got: ([A-Za-z]\\w*)$", detail):
        return f'write it in quotes: "{match[1]}"', field
    if match := re.match("Expected integer or identifier, got: [\"'](\\w+)[\"']$", detail):
        return f"write it without quotes: {match[1]}", field
    if detail.startswith(("Unexpected end of string", "String literals")):
        return "the quote that begins this string is not closed on its line", field
    if match := re.search(r'"(.+?)" is specified multiple times', detail):
        return f"'{match[1]}' is not a list: give it once", field
    if match := re.search(r'Field "(.+?)" is specified along with field "(.+?)"', detail):
        return f"keep either '{match[1]}' or '{match[2]}'", field
    return _hint_bracket(detail, reader, text), field


def _hint_bracket(detail: str, reader: Reader, text: str) -> str:
    here, at = reader.token.text, reader.token.start
    closes = here in _CLOSING.values()
    if closes and text[:at].rstrip().endswith(","):
        return f"remove the comma before '{here}'"
    if not reader.opened:
        return f"no bracket is open that '{here}' would close" if closes else ""
    opened = reader.opened[-1]
    which, closing = _named(opened, text), _CLOSING[opened.bracket]
    if reader.token.kind == END:
        return f"{which} is never closed: add '{closing}'"
    if closes and here != closing:
        return f"{which} is open here: close it with '{closing}' first"
    if detail.startswith('Expected ","'):
        return f"{which} is open here: put a comma, or close it with '{closing}'"
    return ""


def _named(opened: Opened, text: str) -> str:
    line, _ = place(text, opened.at)
    return f"the '{opened.bracket}' of '{opened.field}' in line {line}"


def _hint_field(name: str, opened: list[Opened], text: str) -> str:
    """Return a hint for a field that the innermost open message does not have."""
    outside = [ModelConfig.DESCRIPTOR, *(one.message for one in opened[:-1])]
    if opened and any(name in kind.fields_by_name for kind in outside):
        closing = _CLOSING[opened[-1].bracket]
        return f"{_named(opened[-1], text)} is open here: close it with '{closing}' before '{name}'"
    return hint_unknown_field((opened[-1].message if opened else ModelConfig.DESCRIPTOR), name)
