"""The execution time of a stand-in's batch: declared in its configuration, or recorded on a server."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtriton.backends.parameters import text_parameter
from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.model.config import ModelConfig

__all__ = ["DECLARED", "RECORDED", "Cost", "cost_of"]

# Parameters of a configuration.
DECLARED = "STAND_IN_COST_US"
RECORDED = "STAND_IN_STATISTICS"
# The default name of a recording beside config.pbtxt.
_FILE = "stand_in.json"
_PHASES = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class Cost:
    """The execution time of a batch by its size.

    Parameters
    ----------
    points : tuple of (int, float)
        Rows of a batch and its microseconds, by rows. Other sizes are interpolated, and
        extrapolated from the last two points; below the first point, its time counts. Without
        points batches cost nothing.
    source : str
        The source of the points, for messages.
    """

    points: tuple[tuple[int, float], ...] = ()
    source: str = "no cost is declared"

    def seconds(self, rows: int) -> float:
        """Return the time of a batch with this number of rows."""
        points = self.points
        if not points:
            return 0.0
        if rows <= points[0][0] or len(points) == 1:
            return points[0][1] / 1e6
        index = min(bisect_left(points, (rows, 0.0)), len(points) - 1)
        (low, before), (high, after) = points[index - 1], points[index]
        return max(0.0, before + (after - before) * (rows - low) / (high - low)) / 1e6


def cost_of(config: ModelConfig, directory: Path | None) -> Cost:
    """Return the cost that a configuration declares, or that of the recording that it names.

    Parameters
    ----------
    config : ModelConfig
        With ``STAND_IN_COST_US``: microseconds of every batch (``"500"``), or of some sizes
        (``"1:2100, 8:6000, 32:20000"``); or ``STAND_IN_STATISTICS``: a file with Triton's response at
        ``/v2/models/NAME/stats``, of which the mean times by batch size count.
    directory : Path or None
        The model's. A recording there has the name ``stand_in.json`` unless the configuration names one.

    Raises
    ------
    InvalidArgumentError, InternalError
        An unreadable cost or recording.
    """
    text = text_parameter(config, DECLARED)
    if text is not None:
        return Cost(_declared(text), f"{DECLARED} {text}")
    named = text_parameter(config, RECORDED)
    path = Path(named or _FILE)
    path = path if directory is None else directory / path
    if named is None and (directory is None or not path.is_file()):
        return Cost()
    return Cost(_recorded(path, str(config.name)), f"recorded in {path.name}")


def _declared(text: str) -> tuple[tuple[int, float], ...]:
    pairs = [part.partition(":") for part in text.split(",")]
    try:
        if len(pairs) == 1 and not pairs[0][1]:
            pairs = [("1", ":", text)]
        points = {int(rows): float(us) for rows, _, us in pairs}
    except ValueError:
        points = {}
    if not points or not all(rows > 0 and 0 <= us < 1e12 for rows, us in points.items()):
        raise InvalidArgumentError(
            f"{DECLARED} is '{text}', expected microseconds of a batch, or of batches by their size",
            hint='"500", or "1:2100, 8:6000, 32:20000"',
        )
    return tuple(sorted(points.items()))


def _recorded(path: Path, name: str) -> tuple[tuple[int, float], ...]:
    try:
        models = json.loads(path.read_bytes())["model_stats"]
        recorded = [model for model in models if model.get("name") == name] or models
        points = {int(batch["batch_size"]): _mean_us(batch) for batch in recorded[0]["batch_stats"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InternalError(
            f"{RECORDED}: '{path}' is not a recording: {type(error).__name__}: {error}",
            hint=f"curl HOST:8000/v2/models/{name}/stats > {path.name} on a server that runs the model",
        ) from None
    if not points:
        raise InternalError(
            f"{RECORDED}: '{path}' has no batch of '{name}'",
            hint="record it once the model has run under load",
        )
    return tuple(sorted(points.items()))


def _mean_us(batch: dict[str, Any]) -> float:
    phases = [batch[phase] for phase in _PHASES if phase in batch]
    return sum(int(one["ns"]) / max(1, int(one["count"])) for one in phases) / 1000
