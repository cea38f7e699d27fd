"""One measured level: plain data, its source, its name and its row of a table."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.drawing.numbers import measure
from nbtriton.lab.perf.breakdown import ServerBreakdown
from nbtriton.lab.perf.loads import LoadMode
from nbtriton.lab.perf.sweep import (
    Configuration,
    Configurator,
    SweepPlan,
    model_tree,
    show_placement,
)
from nbtriton.lab.perf.windows import Outcome, StreamSummary
from nbtriton.model.config import ModelConfig, format_pbtxt
from nbtriton.options.reading import quoted

if TYPE_CHECKING:
    from nbtriton.serving.server import Server


# The column of a frame with the value of a load; all others are rates.
COLUMNS = {"concurrency": "concurrency", "periodic": "periodic_concurrency", "replay": "speed"}


@dataclass(frozen=True, slots=True, repr=False)
class PerfPoint:
    """The measurement of one level of load on one configuration.

    Parameters
    ----------
    mode : {"concurrency", "request_rate", "intervals", "periodic", "replay"}
        Closed loop with `value` outstanding requests, open loop at `value` requests/s, `value` requests in
        growing groups, or a recording at `value` times its speed.
    value : float
    configuration : mapping
        The swept options of this point; empty without a sweep.
    batch_size : int
        Rows per request.
    infer_per_s : float
        Inferences per second: successful requests * batch size / window (PA4).
    request_count, error_count : int
        Successful and failed requests in the final windows.
    first_error : str
    latency_avg_us, latency_std_us, latency_p50_us, latency_p90_us, latency_p95_us, latency_p99_us
        The client's latency in microseconds; nan if no request succeeded.
    percentile, percentile_us : float or None
        The extra percentile, if one was chosen.
    window_s : float
        Real length of the merged windows in seconds.
    outcome : str
        ``"stable"``, ``"unstable"``, ``"not judged"`` (one window), ``"failed"`` (only errors), ``"empty"`` (no
        request ended in time) or ``"interrupted"``. Of a simulated level that became stable: ``"predicted"``, or
        ``"beyond the profile"`` where the profile does not say what was simulated.
    delayed_fraction, lateness_avg_us : float
        Open loop: the share of requests sent over 1 ms later than due, and the mean delay (PA14).
    server : ServerBreakdown or None
        The server's statistics; None if it served no request.
    composing : tuple of ServerBreakdown
        The statistics of every composing model of an ensemble.
    sequence_count : int or None
        Sequences that ended; None for a model without sequences (PA25).
    cpu_percent : float
        Processor time of this process during the level, its warm-up included, in percent of one processor,
        without worker processes. nan where nothing ran.
    memory_mb : float
        Resident memory of this process after the level, in megabytes; nan if unknown.
    interpreter_wait : float
        The share of their time, 0 to 1, in which instances of a model in this process waited for each other's
        Python code; the largest of an ensemble's models.
    stream : StreamSummary or None
        Responses, and the times to the first one and between them, where streams were measured.
    notes : tuple of str
        perf_analyzer's remarks on this level.
    simulated_gpus : str
        The simulated GPUs on which models ran; the times are then simulated, too. Empty without.
    throughputs : tuple of float
        Inferences per second in each of the final windows.
    infer_per_s_range, latency_p99_range_us : (float, float) or None
        Of a prediction: where a measurement should lie.
    configs : mapping of str to str
        The configurations that were in force, of the model or of all models of an ensemble, as protobuf text.
    source : PointSource or None
        The measured server, for `apply`; None for a point that was made by hand.
    """

    mode: LoadMode
    value: float
    configuration: Mapping[str, Any]
    batch_size: int
    infer_per_s: float
    request_count: int
    error_count: int
    first_error: str
    latency_avg_us: float
    latency_std_us: float
    latency_p50_us: float
    latency_p90_us: float
    latency_p95_us: float
    latency_p99_us: float
    percentile: float | None
    percentile_us: float | None
    window_s: float
    outcome: Outcome
    delayed_fraction: float = 0.0
    lateness_avg_us: float = 0.0
    server: ServerBreakdown | None = None
    composing: tuple[ServerBreakdown, ...] = ()
    sequence_count: int | None = None
    cpu_percent: float = math.nan
    memory_mb: float = math.nan
    interpreter_wait: float = 0.0
    stream: StreamSummary | None = None
    notes: tuple[str, ...] = ()
    simulated_gpus: str = ""
    throughputs: tuple[float, ...] = ()
    infer_per_s_range: tuple[float, float] | None = None
    latency_p99_range_us: tuple[float, float] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    source: PointSource | None = field(default=None, compare=False)

    def apply(self, server: Server | None = None) -> AppliedConfiguration:
        """Load the model, or an ensemble's composing models, with this point's configuration.

        >>> report.best(p99_ms=20).apply()  # doctest: +SKIP

        Parameters
        ----------
        server : Server, optional
            By default the measured one.

        Returns
        -------
        AppliedConfiguration
            Displayed as the ``config.pbtxt`` of each model.

        Raises
        ------
        InvalidArgumentError
            It was measured at a URL, or its server no longer exists, and no other one is given.
        """
        if self.source is None:
            raise InvalidArgumentError("this point does not know the model that was measured")
        return self.source.apply(self.configuration, server)

    @property
    def stable(self) -> bool:
        """Whether the last three windows agreed (PA5), in virtual time too."""
        return self.outcome in ("stable", "predicted")

    @property
    def sequences_per_s(self) -> float:
        """Sequences that ended per second; nan for a model without sequences."""
        if self.sequence_count is None or not self.window_s:
            return math.nan
        return self.sequence_count / self.window_s

    @property
    def mean_batch_size(self) -> float:
        """Inferences per execution; nan without the server's statistics."""
        return self.server.mean_batch_size if self.server else math.nan

    @property
    def label(self) -> str:
        """The name of the configuration, such as ``instances=2, batch_size=8``."""
        words = describe("", self.configuration, self.batch_size)
        return f"{words} (simulated GPUs)".lstrip() if self.simulated_gpus else words

    def __repr__(self) -> str:
        load = f"{self.mode.replace('_', ' ')} {self.value:g}"
        return (
            f"<PerfPoint {describe(load, self.configuration, self.batch_size)}: "
            f"{'simulated GPUs, ' if self.simulated_gpus else ''}"
            f"{measure(self.infer_per_s)} infer/s, p99 {measure(self.latency_p99_us / 1000)} ms, "
            f"{self.outcome}>"
        )


_LATENCIES = tuple(f"latency_{each}_us" for each in ("avg", "std", "p50", "p90", "p95", "p99"))


def ended(interrupted: bool, failure: str) -> str:
    """Return what has ended measurements before their end, for a headline."""
    return ", interrupted" * interrupted + ", ended by an error" * bool(failure)


def describe(load: str, configuration: Mapping[str, Any], batch_size: int) -> str:
    """Name a level, or without `load` a configuration: ``concurrency 8, instances=2``."""
    words = [load] if load else []
    words += [f"{key}={option_text(value)}" for key, value in configuration.items()]
    if batch_size != 1:
        words.append(f"batch_size={batch_size}")
    return ", ".join(words)


def row_of(point: PerfPoint) -> dict[str, Any]:
    """Return a point as one row of the frame, by columns."""
    row: dict[str, Any] = {
        COLUMNS.get(point.mode, "request_rate_per_s"): point.value,
        **{key: _short(value) for key, value in point.configuration.items()},
        **({"times": "simulated GPUs"} if point.simulated_gpus else {}),
        "batch_size": point.batch_size,
        "infer_per_s": point.infer_per_s,
        "requests": point.request_count,
        "errors": point.error_count,
        **{name: getattr(point, name) for name in _LATENCIES},
    }
    for name, ends in (
        ("infer_per_s_{}", point.infer_per_s_range),
        ("latency_p99_{}_us", point.latency_p99_range_us),
    ):
        if ends is not None:
            row |= {name.format("low"): ends[0], name.format("high"): ends[1]}
    if point.percentile is not None:
        row[f"latency_p{point.percentile:g}_us"] = point.percentile_us
    if point.sequence_count is not None:
        row["sequences"] = point.sequence_count
        row["sequences_per_s"] = point.sequences_per_s
    if point.stream is not None:
        row |= _stream_columns(point.stream)
    row |= {"outcome": point.outcome, "window_s": point.window_s}
    if point.mode != "concurrency":
        row["delayed_percent"] = point.delayed_fraction * 100
        row["lateness_avg_us"] = point.lateness_avg_us
    for name in ("cpu_percent", "memory_mb"):
        if not math.isnan(value := getattr(point, name)):
            row[name] = value
    row["interpreter_wait_percent"] = point.interpreter_wait * 100
    if point.server is not None:
        row |= _server_columns(point.server, "server_")
    for step in point.composing:
        row |= _server_columns(step, f"{step.model}.")
    return row


def _stream_columns(stream: StreamSummary) -> dict[str, Any]:
    return {
        "responses": stream.response_count,
        "responses_per_s": stream.responses_per_s,
        **{
            f"{name}_{key}": getattr(times, key)
            for name, times in (
                ("first_response", stream.first),
                ("between_responses", stream.between),
            )
            for key in ("avg_us", "p50_us", "p90_us", "p99_us")
        },
    }


def _server_columns(server: ServerBreakdown, prefix: str) -> dict[str, Any]:
    times = ("queue_us", "compute_input_us", "compute_infer_us", "compute_output_us", "overhead_us")
    return {
        **{f"{prefix}{name}": getattr(server, name) for name in times},
        f"{prefix}executions": server.execution_count,
        f"{prefix}inferences": server.inference_count,
        f"{prefix}mean_batch_size": server.mean_batch_size,
    }


def option_text(value: object) -> object:
    """Format the value of an option as it is typed: ``off``, ``4,8``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return _short(value)


def _short(value: object) -> object:
    """Format a list as ``4,8``: a table cell and a legend have no room for brackets."""
    if isinstance(value, Mapping):
        return show_placement(value)
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return value


@dataclass(frozen=True, slots=True, repr=False)
class AppliedConfiguration:
    """The models that were reconfigured, displayed as their ``config.pbtxt``.

    Parameters
    ----------
    configs : mapping of str to ModelConfig
        By model.
    """

    configs: Mapping[str, ModelConfig]

    @property
    def config_pbtxt(self) -> str:
        """The text of each model's file, under a comment with its path."""
        return "\n".join(
            f"# {name}/config.pbtxt\n{format_pbtxt(config)}"
            for name, config in self.configs.items()
        )

    def __repr__(self) -> str:
        return self.config_pbtxt


def config_cells(configs: Mapping[str, ModelConfig]) -> str:
    """Return the cells that set the configurations of models."""
    return "\n".join(
        f"%%triton_config {quoted(name)}\n{format_pbtxt(config)}"
        for name, config in configs.items()
    )


class PointSource:
    """The model of a point, and a weak reference to its server.

    Parameters
    ----------
    model : str
    sweep_models : sequence of str
        Reconfigured models; by default the model, or its composing models.
    server : Server, optional
        None for a server at a URL.
    version : int, optional
        That was asked for; by default the highest.
    """

    __slots__ = ("_server", "model", "sweep_models", "version")

    def __init__(
        self,
        model: str,
        sweep_models: tuple[str, ...] = (),
        server: Server | None = None,
        version: int | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.sweep_models = sweep_models
        self._server = None if server is None else weakref.ref(server)

    @property
    def server(self) -> Server | None:
        """The server, if it still exists."""
        return None if self._server is None else self._server()

    def apply(self, configuration: Configuration, server: Server | None) -> AppliedConfiguration:
        """Load the models with this configuration; see `PerfPoint.apply`."""
        target = server or self.server
        if target is None:
            raise InvalidArgumentError(
                f"'{self.model}' was not measured on a server of this process",
                hint="give one: point.apply(server)",
            )
        configurator = Configurator(target, self.model, [configuration], self.sweep_models)
        configurator.apply(configuration)
        return AppliedConfiguration({name: target.config(name) for name in configurator.models})

    def cells(self, configuration: Configuration) -> str:
        """Return the cells that set a configuration: of what it changes, or of the model if that is nothing.

        Empty where the server or the model no longer exists.
        """
        if self.server is None:
            return ""
        try:
            plan = SweepPlan(*model_tree(self.server, self.model))
            target = plan.target(configuration)
        except TritonError:
            return ""
        changed = {name: one for name, one in target.items() if one != plan.originals[name]}
        return config_cells(changed or {self.model: target[self.model]})

    # A copied or pickled report is plain data.
    def __reduce__(self) -> tuple[Any, ...]:
        return PointSource, (self.model, self.sweep_models)
