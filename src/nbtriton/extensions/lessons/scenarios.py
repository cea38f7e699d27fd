"""A scenario: models with their execution times, and client requests."""

# Annotations are evaluated: the table of options is read from them.
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypedDict, Unpack

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, nearest
from nbtriton.model.config import (
    ModelConfig,
    apply_options,
    as_config,
    is_ensemble,
    normalize,
    normalize_instance_groups,
    validate,
)
from nbtriton.options.reading import int_list, switch
from nbtriton.options.table import Option, read_settings, signed, table_of


class ScenarioSettings(TypedDict, total=False):
    """Arrivals, execution times, and settings of every model but ensembles; None changes nothing."""

    arrivals: Annotated[object, Option(
        "--arrivals", "when requests come, as of nbtriton.lessons.scenario: '0 0 5x2 10@m 20#A'", "TIMES")]  # fmt: skip
    execution_ms: Annotated[object, Option(
        "--execution-ms", "how long an execution takes, as of nbtriton.lessons.scenario", "MS", float)]  # fmt: skip
    instances: Annotated["int | None", Option("--instances", "instances of each model", "N", int)]
    max_batch_size: Annotated["int | None", Option("--max-batch-size", "largest batch", "N", int)]
    dynamic_batching: Annotated["bool | None", Option(
        "--dynamic-batching", "join waiting requests to batches (alone: on)", "on|off", switch, alone=True)]  # fmt: skip
    max_queue_delay_us: Annotated["int | None", Option(
        "--max-queue-delay-us", "how long to wait for a fuller batch", "US", int)]  # fmt: skip
    preferred: Annotated["Sequence[int] | None", Option(
        "--preferred", "preferred batch sizes, such as 2,4", "SIZES", int_list)]  # fmt: skip


SCENARIO = table_of(ScenarioSettings)


# Limits within which a picture with a row and a number for each request fits on a screen.
MOST_REQUESTS = 32
_MOST_INSTANCES = 32
_LATEST_MS = 60_000.0
_ARRIVAL = re.compile(
    r"(?P<at>\d+(?:\.\d+)?)(?:x(?P<rows>\d+))?(?:@(?P<model>[^\s#,]+))?(?:#(?P<sequence>[^\s,]+))?"
)
_FORM = "TIME_MS[xROWS][@MODEL][#SEQUENCE], such as 0 5x2 10@detect 20#A"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One client request, written ``5x2@detect#A``; every part but the time is optional.

    Attributes
    ----------
    at_ms : float
    rows : int
    model : str
        Empty for the scenario's first model.
    sequence : int or str
        Its correlation id, 0 for none. The first request of one starts the sequence, the last ends it.
    """

    at_ms: float
    rows: int = 1
    model: str = ""
    sequence: int | str = 0

    def __str__(self) -> str:
        text = f"{self.at_ms:g}" + (f"x{self.rows}" if self.rows != 1 else "")
        text += f"@{self.model}" if self.model else ""
        return text + (f"#{self.sequence}" if self.sequence else "")


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model of a scenario.

    Attributes
    ----------
    config : ModelConfig
        Completed.
    times_ms : tuple of (int, float)
        Batch sizes, ascending, with their execution times; other sizes are interpolated and extrapolated
        linearly. Empty for an ensemble.
    """

    config: ModelConfig
    times_ms: tuple[tuple[int, float], ...] = ()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.config.name


@dataclass(frozen=True, slots=True)
class Scenario:
    """Models and arrivals; equal scenarios always lead to the same batches.

    Attributes
    ----------
    title : str
    models : tuple of SimulatedModel
        The first one gets the requests that name no model.
    arrivals : tuple of Arrival
        In the order of their times.
    subject : str
        The subject of its sentence: a key of `nbtriton.extensions.lessons.sentences.SUBJECTS`.
    """

    title: str
    models: tuple[SimulatedModel, ...]
    arrivals: tuple[Arrival, ...]
    subject: str = "waiting"

    @property
    def arrivals_text(self) -> str:
        """The arrivals as text, which `scenario` reads."""
        return " ".join(map(str, self.arrivals))

    @signed(SCENARIO)
    def changed(self, **options: Unpack[ScenarioSettings]) -> "Scenario":
        """Return the scenario with other arrivals, execution times or settings.

        Parameters
        ----------
        **options
            See `ScenarioSettings`.

        Raises
        ------
        InvalidArgumentError, ConfigError
            Unreadable input, or a configuration that Triton would refuse.
        """
        given = read_settings("a scenario", SCENARIO, options)
        arrivals, execution_ms = given.pop("arrivals"), given.pop("execution_ms")
        models = []
        for model in self.models:
            config = model.config
            if not is_ensemble(config) and any(value is not None for value in given.values()):
                if config.HasField("dynamic_batching") and not preferred_of(config):
                    config = apply_options(config)  # a copy
                    config.dynamic_batching.ClearField("preferred_batch_size")
                config = _completed(apply_options(config, **given), config.name)
            models.append(replace(model, config=config))
        done = replace(self, models=tuple(models))
        if execution_ms is not None:
            done = replace(done, models=_with_times(done.models, execution_ms))
        if arrivals is not None:
            done = replace(done, arrivals=_arrivals(arrivals, done.models))
        return done


def scenario(
    config: object, arrivals: object, *, execution_ms: object = 20.0, title: str = ""
) -> Scenario:
    """Describe models that take time and compute nothing, and the requests to them.

    Parameters
    ----------
    config : str, mapping, ModelConfig, or a sequence of them
        Configurations such as ``config.pbtxt`` text, without inputs and outputs. The first one gets the
        requests that name no model: an ensemble comes before the models of its steps.
    arrivals : str or sequence
        Times in milliseconds: ``"0 0 5x2"`` (``x2``: two rows, ``@detect``: for that model, ``#A``: of
        that sequence), or numbers and `nbtriton.extensions.lessons.Arrival`.
    execution_ms : float or mapping
        Execution time; ``{1: 10, 8: 30}`` by batch size; by model name ``{"detect": 10}``.
    title : str

    Raises
    ------
    InvalidArgumentError, ConfigError
        Unreadable input, or a configuration that Triton would refuse.

    Examples
    --------
    >>> one = nt.lessons.scenario('name: "m" max_batch_size: 4 dynamic_batching { }', "0 5 5x2")
    >>> nt.lessons.figure(one).batches["rows"].tolist()
    [1, 3]
    """
    given = config if isinstance(config, list | tuple) else [config]
    configs = [as_config(one) for one in given]
    models = tuple(SimulatedModel(_completed(one, one.name or "model")) for one in configs)
    if not models:
        raise InvalidArgumentError("a scenario has at least one model", hint=_FORM)
    models = _with_times(models, execution_ms)
    return Scenario(
        title or models[0].name, models, _arrivals(arrivals, models), subject_of(models[0].config)
    )


def subject_of(config: ModelConfig) -> str:
    """Return the most important feature of a model, the subject of its figure."""
    if is_ensemble(config):
        return "ensemble"
    if config.HasField("sequence_batching"):
        return "slots"
    return "gathering" if config.HasField("dynamic_batching") else "waiting"


def preferred_of(config: ModelConfig) -> tuple[int, ...]:
    """Return the chosen preferred sizes; normalization adds the largest size where there are none."""
    sizes = tuple(config.dynamic_batching.preferred_batch_size)
    return () if sizes == (config.max_batch_size,) else sizes


def _completed(config: ModelConfig, name: str) -> ModelConfig:
    done = normalize(config, name=name)
    if not done.backend and not is_ensemble(done):
        done.backend = "python"
    validate(done)
    # Scheduling follows the same rules on every device.
    done = normalize_instance_groups(done, gpus=None)
    instances = sum(group.count for group in done.instance_group)
    if instances > _MOST_INSTANCES:  # each has a lane
        raise InvalidArgumentError(
            f"{instances} instances of '{name}'; a figure has at most {_MOST_INSTANCES}"
        )
    return done


def _with_times(
    models: Sequence[SimulatedModel], execution_ms: object
) -> tuple[SimulatedModel, ...]:
    by_model: Mapping[Any, Any] = execution_ms if isinstance(execution_ms, Mapping) else {}
    named = {name: times for name, times in by_model.items() if isinstance(name, str)}
    for name in named:
        if name not in {model.name for model in models}:
            raise NotFoundError(
                f"no model '{name}' in this scenario",
                hint=nearest(name, [model.name for model in models]),
            )
    models_with_times = []
    for model in models:
        times = named.get(model.name, model.times_ms or 20.0) if named else execution_ms
        if is_ensemble(model.config):
            models_with_times.append(model)
        else:
            models_with_times.append(replace(model, times_ms=_times(times)))
    return tuple(models_with_times)


def _times(given: object) -> tuple[tuple[int, float], ...]:
    if isinstance(given, tuple):
        return given
    pairs: Iterable[tuple[Any, Any]] = given.items() if isinstance(given, Mapping) else [(1, given)]
    try:
        times = tuple(sorted((int(rows), float(ms)) for rows, ms in pairs))
    except (TypeError, ValueError):
        times = ()
    if not times or not all(rows >= 1 and 0 < ms <= _LATEST_MS for rows, ms in times):
        raise InvalidArgumentError(
            f"execution_ms={given!r:.80} is no execution time",
            hint="milliseconds, such as 20, or by batch size {1: 10, 8: 30}",
        )
    return times


def _arrivals(given: object, models: Sequence[SimulatedModel]) -> tuple[Arrival, ...]:
    words: Iterable[Any]
    if isinstance(given, str):
        words = given.replace(",", " ").split()
    elif isinstance(given, Iterable):
        words = given
    else:
        words = [given]
    arrivals = [_arrival(one) for one in words]
    if not 1 <= len(arrivals) <= MOST_REQUESTS:
        raise InvalidArgumentError(
            f"{len(arrivals)} arrivals; a figure has 1 to {MOST_REQUESTS}", hint=f"each is {_FORM}"
        )
    configs = {model.name: model.config for model in models}
    for one in arrivals:
        name = one.model or models[0].name
        if name not in configs:
            raise NotFoundError(
                f"arrival '{one}' is for model '{name}', which this scenario has not",
                hint=nearest(name, configs),
            )
        _check(one, configs[name])
    return tuple(sorted(arrivals, key=lambda one: one.at_ms))


def _arrival(given: object) -> Arrival:
    if isinstance(given, Arrival):
        return given
    match = _ARRIVAL.fullmatch(str(given))
    if match is None:
        raise InvalidArgumentError(f"'{given}' is no arrival", hint=_FORM)
    text = match["sequence"] or "0"
    sequence = int(text) if text.isdecimal() else text
    return Arrival(float(match["at"]), int(match["rows"] or 1), match["model"] or "", sequence)


def _check(arrival: Arrival, config: ModelConfig) -> None:
    if not (math.isfinite(arrival.at_ms) and 0 <= arrival.at_ms <= _LATEST_MS):
        raise InvalidArgumentError(
            f"arrival '{arrival}': its time is not within 0 to {_LATEST_MS:.0f} ms"
        )
    # A model that does not batch gets requests without a batch dimension: one row each.
    if not 1 <= arrival.rows <= max(1, config.max_batch_size):
        raise InvalidArgumentError(
            f"arrival '{arrival}': {arrival.rows} rows, and max_batch_size of '{config.name}' is "
            f"{config.max_batch_size}"
        )
    has_sequences = config.HasField("sequence_batching")
    if arrival.sequence and not has_sequences:
        raise InvalidArgumentError(
            f"arrival '{arrival}' is of a sequence, and '{config.name}' has no sequence_batching"
        )
    if has_sequences and not arrival.sequence:
        raise InvalidArgumentError(
            f"arrival '{arrival}' names no sequence, and '{config.name}' has sequence_batching",
            hint="0#A is a request of sequence A at 0 ms",
        )


def _named(
    title: str, subject: str, config: object, arrivals: str, execution_ms: object
) -> Scenario:
    return replace(
        scenario(config, arrivals, execution_ms=execution_ms, title=title), subject=subject
    )


def _model(name: str, more: str = "", instances: int = 1, rows: int = 8) -> str:
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
    return f'name: "{name}" max_batch_size: {rows} {group} {more}'


_PIPELINE = """
name: "pipeline"
platform: "ensemble"
max_batch_size: 8
input { name: "IMAGE" data_type: TYPE_UINT8 dims: 4 }
output { name: "CLASSIFICATION" data_type: TYPE_FP32 dims: 4 }
output { name: "SEGMENTATION" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "preprocess" model_version: -1
    input_map { key: "RAW" value: "IMAGE" } output_map { key: "OUT" value: "preprocessed_image" } }
  step { model_name: "classification" model_version: -1
    input_map { key: "IN" value: "preprocessed_image" } output_map { key: "OUT" value: "CLASSIFICATION" } }
  step { model_name: "segmentation" model_version: -1
    input_map { key: "IN" value: "preprocessed_image" } output_map { key: "OUT" value: "SEGMENTATION" } }
}
"""


# The figures of well-known scheduling rules; each is made on demand.
SCENARIOS: Mapping[str, Callable[[], Scenario]] = {
    "two_models": partial(
        _named, "Two models at once", "models", [_model("detect"), _model("classify")],
        "0@detect 0@classify", {"detect": 30.0, "classify": 20.0},
    ),
    "one_instance": partial(
        _named, "One instance serialises", "waiting", _model("slow"), "0 0 0 0", 20.0
    ),
    "three_instances": partial(
        _named, "Three instances, and a fourth request waits", "waiting", _model("slow", instances=3),
        "0 0 0 0", 20.0,
    ),
    "batch_forms": partial(
        _named, "A batch forms while another one runs", "gathering",
        _model("slow", "dynamic_batching { }"), "0 5 10 15 35", 20.0,
    ),
    "sequence_slots": partial(
        _named, "Sequence slots fill", "slots",
        _model("chat", "sequence_batching { direct { } }", rows=2), "0#A 0#B 5#C 20#A 20#B 25#C 45#B", 15.0,
    ),
    "ensemble_request": partial(
        _named, "The six moments of an ensemble request", "ensemble",
        [_PIPELINE, _model("preprocess"), _model("classification"), _model("segmentation")],
        "0", {"preprocess": 10.0, "classification": 20.0, "segmentation": 40.0},
    ),
}  # fmt: skip
