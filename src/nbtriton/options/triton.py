"""Values of tritonserver's flags: how each kind is written and read, with tritonserver's rules and error texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from nbtriton.common.errors import InvalidArgumentError, nearest

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_INTEGER = re.compile(r"\s*[+-]?\d{1,20}")
_FLOAT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_RESTRICTED = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository",
    "statistics", "trace", "logging",
)  # fmt: skip
_TRACE_LEVELS = {
    **dict.fromkeys(("off", "false"), frozenset[str]()),
    **dict.fromkeys(("timestamps", "min", "max", "on", "true"), frozenset({"TIMESTAMPS"})),
    "tensors": frozenset({"TENSORS"}),
}
_TRACE_MODES = ("triton", "opentelemetry")
# Group, setting and value.
Setting = tuple[str, str, str]


class Kind(NamedTuple):
    """How a flag's value is written, empty for a flag without one, and what reads it."""

    shown: str
    read: Callable[[str], Any]


def choice(flag: str, *texts: str, any_case: bool = True) -> Kind:
    """Return the kind of a flag with these values."""

    def read(text: str) -> str:
        found = text.lower() if any_case else text
        if found not in texts:
            raise InvalidArgumentError(f"invalid argument for --{flag}", hint=nearest(found, texts))
        return found

    return Kind("|".join(texts), read)


# -- numbers and switches ----------------------------------------------------------------------------


def _integer(text: str, bits: int = 31) -> int:
    # Text after the digits is an error, unlike in C++'s `stoi`.
    if not _INTEGER.fullmatch(text):
        raise InvalidArgumentError(f"Invalid option value. Got {text}")
    value = int(text)
    if not -(1 << bits) <= value < 1 << bits:
        raise InvalidArgumentError(f"Provided option value is out of bound. Got {text}")
    return value


def _long(text: str) -> int:
    return _integer(text, 63)


def _float(text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise InvalidArgumentError(f"Invalid option value. Got {text}")
    return float(text)


def seconds(text: str) -> float:
    """Read seconds, above 0."""
    value = _float(text)
    if not value > 0:
        raise InvalidArgumentError(f"Invalid option value. Got {text}", hint="seconds, above 0")
    return value


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise InvalidArgumentError(
            f"invalid value for bool option: {text}", hint="true, on, 1, false, off or 0"
        )
    return value


def _level(text: str) -> int:
    if text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    return max(0, _integer(text))


def _port(text: str) -> int:
    port = _integer(text)
    if not 0 <= port < 1 << 16:
        raise InvalidArgumentError(f"{port} is no port", hint="0 to 65535")
    return port


def _name(text: str) -> str:
    if not text:
        raise InvalidArgumentError("Error: empty argument")
    return text


def resource(text: str) -> str:
    """Check a resource; the engine parses it."""
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise InvalidArgumentError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
            f"'<resource_name>:<count>'. Got {text}"
        )
    for part in parts[1:]:
        _integer(part)
    return text


# -- settings of something ---------------------------------------------------------------------------


def _split(text: str, delimiter: str, wrong: str, *, alone: bool = False) -> Setting:
    """Parse ``GROUP<delimiter>SETTING=VALUE``; with `alone` also ``SETTING=VALUE``, of the empty group."""
    group, found, rest = text.partition(delimiter)
    if alone and not found:
        group, rest = "", text
    setting, _, value = rest.partition("=")
    if not (setting and value and (group or (alone and not found))):
        raise InvalidArgumentError(f"{wrong} Got {text}")
    return group, setting, value


def _grouped(text: str, flag: str, group: str, delimiter: str) -> Setting:
    shape = f"--{flag} option format is '<{group}>{delimiter}<setting>=<value>'."
    return _split(text, delimiter, shape)


def _of_group(flag: str, what: str, group: str, *, alone: bool) -> Callable[[str], Setting]:
    shape = f"<{group}>,<setting>=<value>"
    missing = f"No {what} specified. --{flag} option format is {shape}"
    missing += " or <setting>=<value>." if alone else "."

    def read(text: str) -> Setting:
        at = text.find(",")
        if at == 0 or (at < 0 and not alone):
            raise InvalidArgumentError(f"{missing} Got {text}")
        return _split(text, ",", f"--{flag} option format is '{shape}'.", alone=alone)

    return read


def host_policy(text: str) -> Setting:
    """Read a setting of a host policy."""
    found = _grouped(text, "host-policy", "policy name", ",")
    if found[1] not in ("numa-node", "cpu-cores"):
        raise InvalidArgumentError(
            f"Unsupported host policy setting '{found[1]}' is specified, supported settings are "
            "'numa-node', 'cpu-cores'"
        )
    return found


backend_setting = _of_group("backend-config", "backend", "backend name", alone=True)


def by_group(settings: Iterable[Setting]) -> dict[str, dict[str, str]]:
    """Return the settings by group, such as a backend; the empty name is for all."""
    found: dict[str, dict[str, str]] = {}
    for group, name, value in settings:
        found.setdefault(group, {})[name] = value
    return found


def _restricted(flag: str, what: str) -> Kind:
    def read(text: str) -> tuple[tuple[str, ...], str, str]:
        names, header, value = _grouped(text, flag, "config name", ":")
        for name in names.split(","):
            if name not in _RESTRICTED:
                raise InvalidArgumentError(
                    f"unknown restricted {what} '{name}'", hint=nearest(name, _RESTRICTED)
                )
        return tuple(names.split(",")), header, value

    return Kind("API[,API…]:HEADER=VALUE", read)


def restricted_apis(
    given: Iterable[tuple[tuple[str, ...], str, str]], flag: str, what: str
) -> dict[str, tuple[str, str]]:
    """Return header and value by category.

    Raises
    ------
    InvalidArgumentError
        A category is restricted twice.
    """
    found: dict[str, tuple[str, str]] = {}
    for names, header, value in given:
        for name in names:
            if name in found:
                raise InvalidArgumentError(
                    f"Bad option: \"--{flag}\".\nrestricted {what} '{name}' can not be specified in "
                    "multiple config groups"
                )
            found[name] = (header, value)
    return found


def _metrics_setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or "," in name or not value:
        raise InvalidArgumentError(
            f"--metrics-config option format is <setting>=<value>. Got {text}"
        )
    return name, value


# -- traces ------------------------------------------------------------------------------------------


def _trace_level(text: str) -> frozenset[str]:
    """Parse a trace level; off is the empty set."""
    found = _TRACE_LEVELS.get(text.lower())
    if found is None:
        raise InvalidArgumentError(
            f"invalid value for trace level option: {text}",
            hint=nearest(text.upper(), ("OFF", "TIMESTAMPS", "TENSORS")),
        )
    return found


def _trace_mode(text: str) -> str:
    if text.lower() not in _TRACE_MODES:
        raise InvalidArgumentError(
            f'invalid value for trace mode option: {text}. Available options are "triton" and '
            '"opentelemetry"',
            hint=nearest(text.lower(), _TRACE_MODES),
        )
    return text.lower()


_split_trace = _of_group("trace-config", "trace mode", "trace mode", alone=True)
_TRACE_READERS: Mapping[tuple[str, str], Callable[[str], Any]] = {
    ("", "level"): _trace_level,
    ("", "mode"): _trace_mode,
    ("", "rate"): _integer,
    ("", "count"): _integer,
    ("triton", "log-frequency"): _integer,
    ("opentelemetry", "bsp_max_queue_size"): _integer,
    ("opentelemetry", "bsp_schedule_delay"): _integer,
    ("opentelemetry", "bsp_max_export_batch_size"): _integer,
}


def _trace_setting(text: str) -> tuple[str, str, Any]:
    """Parse a trace setting; the value of an unknown setting is its text."""
    mode, setting, value = _split_trace(text)
    mode = mode and _trace_mode(mode)
    return mode, setting, _TRACE_READERS.get((mode, setting), str)(value)


SWITCH = Kind("", bool)
BOOLEAN = Kind("true|false", _boolean)
TEXT = Kind("TEXT", str)
NAME = Kind("NAME", _name)
INTEGER = Kind("NUMBER", _integer)
COUNT = Kind("NUMBER", _long)
FLOAT = Kind("NUMBER", _float)
LEVEL = Kind("NUMBER", _level)
PORT = Kind("PORT", _port)
RESTRICTED_API = _restricted("http-restricted-api", "api")
RESTRICTED_PROTOCOL = _restricted("grpc-restricted-protocol", "protocol")
CACHE_SETTING = Kind(
    "CACHE,SETTING=VALUE", _of_group("cache-config", "cache", "cache name", alone=False)
)
METRICS_SETTING = Kind("SETTING=VALUE", _metrics_setting)
TRACE_LEVEL = Kind("LEVEL", _trace_level)
TRACE_SETTING = Kind("[MODE,]SETTING=VALUE", _trace_setting)
