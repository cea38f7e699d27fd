"""What the values of flags are: read from their texts with tritonserver's rules and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtriton.errors import InvalidArgumentError, nearest

__all__ = [
    "BACKEND_SETTING",
    "BOOLEAN",
    "CACHE_SETTING",
    "COUNT",
    "FLOAT",
    "FRACTION_BY_DEVICE",
    "HOST_POLICY",
    "INTEGER",
    "LEVEL",
    "METRICS_SETTING",
    "NAME",
    "NUMBER_BY_DEVICE",
    "PORT",
    "PORT_RANGE",
    "RESOURCE",
    "RESTRICTED_API",
    "RESTRICTED_PROTOCOL",
    "SWITCH",
    "TEXT",
    "TRACE_LEVEL",
    "TRACE_SETTING",
    "Kind",
    "choice",
    "read_integer",
    "trace_level",
]

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_INTEGER = re.compile(r"\s*[+-]?\d{1,20}")
_FLOAT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_BITS = 31
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
_HOST_SETTINGS = ("numa-node", "cpu-cores")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a flag's value is.

    Parameters
    ----------
    shown : str
        For the help; empty for a flag without a value.
    read : callable
        Makes the value of its text.

        Raises `InvalidArgumentError` with tritonserver's words.
    choices : tuple of str
        The only texts that there are, if so.
    """

    shown: str
    read: Callable[[str], Any]
    choices: tuple[str, ...] = field(default=())

    @property
    def checks(self) -> bool:
        """Tell whether some texts are refused."""
        return self.read is not str


def choice(flag: str, *texts: str, any_case: bool = True) -> Kind:
    """Return the kind of a flag whose values are among these."""

    def read(text: str) -> str:
        found = text.lower() if any_case else text
        if found not in texts:
            raise InvalidArgumentError(f"invalid argument for --{flag}", hint=nearest(found, texts))
        return found

    return Kind("|".join(texts), read, texts)


def read_integer(text: str) -> int:
    """Read an integer of 32 bits.

    Raises
    ------
    InvalidArgumentError
        It is none; what follows the digits is not ignored, as C++'s ``stoi`` does.
    """
    return _integer(text, _BITS)


def _integer(text: str, bits: int) -> int:
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
    return max(0, read_integer(text))


def _port(text: str) -> int:
    port = read_integer(text)
    if not 0 <= port < 1 << 16:
        raise InvalidArgumentError(f"{port} is no port", hint="0 to 65535")
    return port


def _name(text: str) -> str:
    if not text:
        raise InvalidArgumentError("Error: empty argument")
    return text


def _pair(
    text: str, delimiter: str, first: Callable[[str], Any], second: Callable[[str], Any]
) -> tuple[Any, Any]:
    one, found, other = text.partition(delimiter)
    if not found:
        raise InvalidArgumentError(
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument "
            f"requires format <first>{delimiter}<second>. Found: {text}"
        )
    return first(one), second(other)


def _fraction_by_device(text: str) -> tuple[int, float]:
    device, fraction = _pair(text, ":", read_integer, _float)
    if device < 0:
        raise InvalidArgumentError(f"expects device ID >= 0, got {device}")
    if not 0 <= fraction <= 1:
        raise InvalidArgumentError(
            f"expects limit fraction to be in range [0.0, 1.0], got {fraction:f}"
        )
    return device, fraction


def _resource(text: str) -> str:
    """Check it; the engine reads it."""
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise InvalidArgumentError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
            f"'<resource_name>:<count>'. Got {text}"
        )
    for part in parts[1:]:
        read_integer(part)
    return text


def _grouped(text: str, flag: str, group: str, delimiter: str) -> tuple[str, str, str]:
    """Read ``GROUP<delimiter>SETTING=VALUE``, none of them empty."""
    name, found, rest = text.partition(delimiter)
    setting, _, value = rest.partition("=")
    if not (found and name and setting and value):
        raise InvalidArgumentError(
            f"--{flag} option format is '<{group}>{delimiter}<setting>=<value>'. Got {text}"
        )
    return name, setting, value


def _host_policy(text: str) -> tuple[str, str, str]:
    name, setting, value = _grouped(text, "host-policy", "policy name", ",")
    if setting not in _HOST_SETTINGS:
        raise InvalidArgumentError(
            f"Unsupported host policy setting '{setting}' is specified, supported settings are "
            "'numa-node', 'cpu-cores'"
        )
    return name, setting, value


def _restricted(flag: str, what: str) -> Callable[[str], tuple[tuple[str, ...], str, str]]:
    def read(text: str) -> tuple[tuple[str, ...], str, str]:
        names, header, value = _grouped(text, flag, "config name", ":")
        for name in names.split(","):
            if name not in _RESTRICTED:
                raise InvalidArgumentError(
                    f"unknown restricted {what} '{name}'", hint=nearest(name, _RESTRICTED)
                )
        return tuple(names.split(",")), header, value

    return read


def _setting(text: str, missing: str, shape: str) -> tuple[str, str, str]:
    """Read ``NAME,SETTING=VALUE``, or ``SETTING=VALUE`` with an empty name."""
    name, comma, rest = text.partition(",")
    if not comma:
        name, rest = "", text
    elif not name:
        raise InvalidArgumentError(f"{missing} Got {text}")
    setting, _, value = rest.partition("=")
    if not (setting and value):
        raise InvalidArgumentError(f"{shape} Got {text}")
    return name, setting, value


def _backend_setting(text: str) -> tuple[str, str, str]:
    return _setting(
        text,
        "No backend specified. --backend-config option format is "
        "<backend name>,<setting>=<value> or <setting>=<value>.",
        "--backend-config option format is '<backend name>,<setting>=<value>'.",
    )


def _cache_setting(text: str) -> tuple[str, str, str]:
    missing = "No cache specified. --cache-config option format is <cache name>,<setting>=<value>."
    if text.find(",") <= 0:
        raise InvalidArgumentError(f"{missing} Got {text}", hint="local,size=1048576")
    shape = "--cache-config option format is '<cache name>,<setting>=<value>'."
    return _setting(text, missing, shape)


def _metrics_setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or "," in name or not value:
        raise InvalidArgumentError(
            f"--metrics-config option format is <setting>=<value>. Got {text}"
        )
    return name, value


def trace_level(text: str) -> frozenset[str]:
    """Read a level of tracing; none is the empty set."""
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


_TRACE_READERS: Mapping[tuple[str, str], Callable[[str], Any]] = {
    ("", "level"): trace_level,
    ("", "mode"): _trace_mode,
    ("", "rate"): read_integer,
    ("", "count"): read_integer,
    ("triton", "file"): str,
    ("triton", "log-frequency"): read_integer,
}


def _trace_setting(text: str) -> tuple[str, str, Any]:
    """Read ``MODE,SETTING=VALUE`` or ``SETTING=VALUE``; the value of an unknown one is its text."""
    mode, setting, value = _setting(
        text,
        "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> "
        "or <setting>=<value>.",
        "--trace-config option format is '<trace mode>,<setting>=<value>'.",
    )
    mode = mode and _trace_mode(mode)
    return mode, setting, _TRACE_READERS.get((mode, setting), str)(value)


SWITCH = Kind("", bool)
BOOLEAN = Kind("true|false", _boolean)
TEXT = Kind("TEXT", str)
NAME = Kind("NAME", _name)
INTEGER = Kind("NUMBER", read_integer)
COUNT = Kind("NUMBER", _long)
FLOAT = Kind("NUMBER", _float)
LEVEL = Kind("NUMBER", _level)
PORT = Kind("PORT", _port)
PORT_RANGE = Kind("FIRST-LAST", lambda text: _pair(text, "-", read_integer, read_integer))
NUMBER_BY_DEVICE = Kind("GPU:BYTES", lambda text: _pair(text, ":", read_integer, _long))
FRACTION_BY_DEVICE = Kind("GPU:FRACTION", _fraction_by_device)
RESOURCE = Kind("NAME:COUNT[:DEVICE]", _resource)
HOST_POLICY = Kind("POLICY,SETTING=VALUE", _host_policy)
RESTRICTED_API = Kind("API[,API…]:HEADER=VALUE", _restricted("http-restricted-api", "api"))
RESTRICTED_PROTOCOL = Kind(
    "API[,API…]:HEADER=VALUE", _restricted("grpc-restricted-protocol", "protocol")
)
BACKEND_SETTING = Kind("[BACKEND,]SETTING=VALUE", _backend_setting)
CACHE_SETTING = Kind("CACHE,SETTING=VALUE", _cache_setting)
METRICS_SETTING = Kind("SETTING=VALUE", _metrics_setting)
TRACE_LEVEL = Kind("LEVEL", trace_level)
TRACE_SETTING = Kind("[MODE,]SETTING=VALUE", _trace_setting)
