"""The notation of numbers, and the ticks of axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# A narrow no-break space between thousands: 12 345.
THIN = "\u202f"
MINUS = "\u2212"
MISSING = "\u2013"
# Nobody reads more digits than that: such numbers have an exponent.
_LONGEST = 15
_BLOCKS = "▁▂▃▄▅▆▇█"


def count(value: float) -> str:
    """Write a whole number exactly, with thousands separated: ``12 345``."""
    return f"{round(value):,}".replace(",", THIN)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Write how many things there are: ``1 row``, ``2 rows``; `plural` if it is not `noun` with an s."""
    return f"{count(number)} {noun if number == 1 else plural or f'{noun}s'}"


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return perf_analyzer's percentile: element floor(p/100 * (n-1) + 0.5) of an ascending list; nan of none (PA8)."""
    if not len(ordered):
        return math.nan
    return float(ordered[math.floor(percent / 100 * (len(ordered) - 1) + 0.5)])


def mean_size(executions: Mapping[int, int]) -> float:
    """Return the mean batch size, of executions that failed too, from their numbers by size; 0 of none."""
    rows = sum(size * number for size, number in executions.items())
    return rows / sum(executions.values()) if rows else 0.0


def measure(value: float, digits: int = 3) -> str:
    """Write a measured number with ``digits`` significant digits: ``0.123``, ``4.56``, ``1 230``.

    A number that is not finite is written as a dash.
    """
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if abs(exponent) > _LONGEST:
        return f"{value:.{digits - 1}e}"
    rounded = round(value, digits - 1 - exponent)
    if rounded and math.floor(math.log10(abs(rounded))) > exponent:
        exponent += 1
    decimals = max(0, digits - 1 - exponent)
    return f"{rounded:,.{decimals}f}".replace(",", THIN).replace("-", MINUS)


def lasting(ms: float) -> str:
    """Write a time in the unit that fits it: ``340 ms``, ``3.1 s``, ``28 s``."""
    if ms < 1000:
        return f"{measure(ms, 2)} ms"
    return f"{measure(ms / 1000, 2)} s" if ms < 10_000 else f"{count(ms / 1000)} s"


def byte_size(value: float) -> str:
    """Write a size in bytes with three digits: ``256 B``, ``1.05 MB`` (units of 1000)."""
    size = value
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    digits = plain(round(size)) if unit == "B" else measure(size)
    return f"{digits} {unit}"


def plain(value: float) -> str:
    """Write a chosen number, such as a tick or a load, without trailing zeros."""
    whole, _, decimals = f"{value:.6g}".partition(".")
    if "e" in whole or "e" in decimals:
        return f"{value:.6g}"
    grouped = f"{int(whole):,}".replace(",", THIN)
    sign = "-" if value < 0 and grouped == "0" else ""
    return f"{sign}{grouped}.{decimals}" if decimals else grouped


def nice_ticks(low: float, high: float, about: int = 5) -> tuple[float, ...]:
    """Ticks at 1, 2 or 5 times a power of ten that cover ``low`` to ``high``."""
    span = high - low
    if span <= 0:
        span = abs(high) or 1.0
    raw = span / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(i * step, 12) for i in range(first, max(last, first + 1) + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Ticks at 1, 2 and 5 times each power of ten from below ``low`` to above ``high``."""
    # One decade more at each end: the logarithm of 999.9999999999999 is 3.
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    steps = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
    below = max((t for t in steps if t <= low), default=steps[0])
    above = min((t for t in steps if t >= high), default=steps[-1])
    return tuple(t for t in steps if below <= t <= above)


def nice_ceiling(value: float, floor: float = 4) -> float:
    """Return the top of a scale that starts at 0: the next 1, 2, 4, 5 or 8 times a power of ten."""
    value = max(value, floor)
    power = 10.0 ** math.floor(math.log10(value))
    return float(next(m * power for m in (1, 2, 4, 5, 8, 10) if m * power >= value * 0.9999))


def sparkline(values: tuple[float, ...] | list[float]) -> str:
    """Draw numbers as a row of blocks, of which the highest is full."""
    top = max(values, default=0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(7, max(0, round(v / top * 7)))] for v in values)
