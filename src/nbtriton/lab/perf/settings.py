"""The options of a measurement, in blocks by subject; Python, magics and the command line have them from here.

A block is a TypedDict, for the signatures of Python, and a tuple of the same options, for lines.
"""

# Annotations are evaluated: the tables are read from them.
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from nbtriton.common.checks import (
    MAPPING,
    NAME,
    NAMES,
    PATH,
    SEED,
    SWITCH,
    Kind,
    is_list,
    is_number,
    is_whole,
    optional,
)
from nbtriton.options.reading import (
    float_list,
    int_list,
    name_list,
    placements,
    shape,
    size_lists,
    switches,
)
from nbtriton.options.table import Option, table_of

if TYPE_CHECKING:
    from nbtriton.lab.perf.recording import Recording


def _each(accepts: Any) -> Any:
    """Accept one, or a list of at least one."""
    return lambda value: (
        len(value) > 0 and all(map(accepts, value)) if is_list(value) else accepts(value)
    )


# As perf_analyzer has it (PA31).
STRING_LENGTH = 128

# A name, or the device of each model: "cpu", "gpu" (all of them) or "gpu:1".
Placement = str | Mapping[str, str]

Inputs = Mapping[str, object] | Sequence[Mapping[str, object]]

# perf_analyzer's bounds, in its words.
_POSITIVE = Kind(lambda value: is_whole(value) and value > 0, "> 0")
_COUNT = Kind(lambda value: is_whole(value) and value >= 0, ">= 0")
_SHARE = Kind(lambda value: is_number(value) and value >= 0, ">= 0.0")
_INTERVAL = optional(Kind(lambda value: is_number(value) and value > 0, "> 0 msec"))
_LATENCY = optional(Kind(lambda value: is_number(value) and value >= 0, ">= 0 msecs"))
_PERCENTILE = optional(
    Kind(
        lambda value: is_number(value) and 0 < value < 100,
        "-1 for not reporting or in range (0, 100)",
    )
)
_IN_TURN = Kind(
    _each(lambda value: is_whole(value) and 0 <= value < 2**64), "a number >= 0, or several"
)
_ROWS = optional(Kind(_each(lambda value: is_whole(value) and 0 < value < 2**31), "> 0"))
_VERSION = optional(Kind(lambda value: is_whole(value) and value > 0, "a version, from 1 on"))
_TEXT = optional(Kind(lambda value: isinstance(value, str), "a string"))


def _swept(accepts: Any, words: str) -> Kind:
    """Return the kind of one value, or a list of values to go through."""
    return optional(
        Kind(
            lambda value: all(map(accepts, value)) if is_list(value) else accepts(value),
            f"{words}, or a list",
        )
    )


def _are_sizes(value: Any) -> bool:
    return all(map(is_whole, value)) if is_list(value) else is_whole(value)


_WHOLE, _NAME, _SWITCH = (
    _swept(is_whole, "a whole number"), _swept(NAME.accepts, "a name"), _swept(SWITCH.accepts, "True or False"),
)  # fmt: skip
_SIZES = optional(
    Kind(
        lambda value: _are_sizes(value) or (is_list(value) and all(map(is_list, value)) and all(map(_are_sizes, value))),
        "sizes such as [4, 8], or several lists of them",
    )
)  # fmt: skip
# A path, or what nbtriton.record made of one.
_RECORDED = optional(
    Kind(lambda value: hasattr(value, "arrivals_ns") or PATH.accepts(value), PATH.words)
)


# Options of several blocks.
Url = Annotated["str | None", Option(
    "-u --url", "measure a server there; http:// or grpc:// may stand in front", "HOST:PORT", kind=optional(NAME))]  # fmt: skip
Protocol = Annotated['Literal["inproc", "http", "grpc"] | None', Option(
    "-i --protocol", "how to ask: in the process by default, http at a --url; here over http or grpc at the port that "
    "%%triton_serve has open, or one for the run", choices=("inproc", "http", "grpc"), analyzer=True)]  # fmt: skip
Speed = Annotated["float | Sequence[float]", Option(
    "--speed", "how many times as fast as they came (1)", "LIST", float_list, 1.0)]  # fmt: skip
GivenInputs = Annotated["Inputs | None", Option("--inputs", "what to send: a mapping of arrays, or a list of them", "EXPR")]  # fmt: skip
Shapes = Annotated["Mapping[str, Sequence[int]] | None", Option(
    "--shape", "dims of an input with variable ones", "NAME:DIMS", shape, action="append", join=dict,
    kind=optional(MAPPING))]  # fmt: skip
InputData = Annotated["str | Path", Option(
    "--input-data", "without --inputs (random); a JSON file of perf_analyzer's, or a directory of files",
    "random|zero|FILE", default="random", kind=Kind(PATH.accepts, "random, zero or the name of a file"))]  # fmt: skip
Percentile = Annotated["float | None", Option(
    "--percentile", "judge by it instead of the mean", "N", float, kind=_PERCENTILE, analyzer=True)]  # fmt: skip
Seed = Annotated[int, Option("--seed", "of random data and gaps (0)", "N", int, 0, kind=SEED)]
KindSweep = Annotated["str | Sequence[str] | None", Option(
    "--kind", "sweep over cpu, gpu, auto, model", "LIST", name_list, kind=_NAME)]  # fmt: skip


class Place(TypedDict, total=False):
    """Where to measure."""

    model_version: Annotated["int | None", Option("--version -x", "of the model (the highest)", "N", int, kind=_VERSION)]  # fmt: skip
    url: Url
    protocol: Protocol


class Chain(TypedDict, total=False):
    """Who connects the steps of an ensemble."""

    chained: Annotated["bool | Sequence[bool] | None", Option(
        "--chained", "of an ensemble: have the client ask for each step, or compare both (alone: off,on)", "on|off|off,on",
        switches, kind=_SWITCH, alone=[False, True])]  # fmt: skip


class Memory(TypedDict, total=False):
    """Over HTTP and gRPC, of a server on this machine."""

    shared_memory: Annotated['Literal["none", "system", "cuda"]', Option(
        "--shared-memory", "over http and grpc: have all tensors in shared memory of this machine (none)",
        choices=("none", "system", "cuda"), default="none", analyzer=True)]  # fmt: skip
    output_shared_memory_size: Annotated[int, Option(
        "--output-shared-memory-size", "room a row for an output of strings or of variable dims (102400)", "BYTES", int,
        102_400, kind=_POSITIVE, analyzer=True)]  # fmt: skip


class Load(TypedDict, total=False):
    """The load, and what each request has."""

    concurrency: Annotated["int | str | range | Iterable[int]", Option(
        "-c --concurrency --concurrency-range",
        "requests kept outstanding (1): 8, 1:32, 1:32:4, 1:32:x2 (doubling) or 1,8,32", "LEVELS", default=1)]  # fmt: skip
    request_rate: Annotated["float | str | Iterable[float] | None", Option(
        "--request-rate --request-rate-range", "or requests per second, written likewise", "LEVELS")]  # fmt: skip
    request_distribution: Annotated['Literal["constant", "poisson"]', Option(
        "--request-distribution", "gaps between the requests of a rate (constant)", choices=("constant", "poisson"),
        default="constant", analyzer=True)]  # fmt: skip
    intervals: Annotated["Sequence[int] | None", Option(
        "--intervals --request-intervals", "or the gaps themselves in microseconds", "LIST|EXPR")]  # fmt: skip
    periodic_concurrency: Annotated["str | None", Option(
        "--periodic-concurrency --periodic-concurrency-range",
        "or, of a decoupled model, STEP more requests each time the last have had some responses", "START:END:STEP")]  # fmt: skip
    request_period: Annotated[int, Option(
        "--request-period", "responses of each (10)", "N", int, 10, kind=_POSITIVE, analyzer=True)]  # fmt: skip
    recording: Annotated["str | Path | Recording | None", Option(
        "--recording", "or when the requests for this model came in a file of %%triton_record", "FILE", kind=_RECORDED)]  # fmt: skip
    speed: Speed
    request_count: Annotated[int, Option(
        "--request-count", "exactly N requests a level", "N", int, 0, kind=_COUNT, analyzer=True)]  # fmt: skip
    batch_size: Annotated["int | Sequence[int] | None", Option(
        "-b --batch-size", "rows per request (1)", "LIST", int_list, kind=_ROWS, analyzer=True,
        analyzed="-b (batch size)")]  # fmt: skip
    streaming: Annotated[bool, Option(
        "--streaming", "listen to each response, for decoupled models: time to the first and between them", default=False,
        action="store_true", kind=SWITCH)]  # fmt: skip
    priority: Annotated["int | Sequence[int]", Option(
        "--priority", "of the requests, in turn; 1 is the highest", "LIST", int_list, 0, kind=_IN_TURN, analyzer=True)]  # fmt: skip
    timeout_us: Annotated["int | Sequence[int]", Option(
        "--timeout-us", "queue timeouts of the requests, in turn", "LIST", int_list, 0, kind=_IN_TURN, analyzer=True)]  # fmt: skip


class Data(TypedDict, total=False):
    """What requests send."""

    inputs: GivenInputs
    shapes: Shapes
    input_data: InputData
    string_length: Annotated[int, Option(
        "--string-length", f"of generated strings ({STRING_LENGTH})", "N", int, STRING_LENGTH, kind=_POSITIVE, analyzer=True)]  # fmt: skip
    string_data: Annotated["str | None", Option("--string-data", "or the string itself", "TEXT", kind=_TEXT)]  # fmt: skip


class Sequences(TypedDict, total=False):
    """Sequences, of a model with a sequence batcher."""

    sequence_length: Annotated["int | None", Option(
        "--sequence-length", "requests of a sequence; 20, or the steps of the data", "N", int, kind=optional(_POSITIVE),
        analyzer=True)]  # fmt: skip
    sequence_length_variation: Annotated[float, Option(
        "--sequence-length-variation", "by which lengths vary to either side (20)", "PERCENT", float, 20.0, kind=_SHARE,
        analyzer=True)]  # fmt: skip
    sequence_id_range: Annotated["int | str | Sequence[int] | None", Option(
        "--sequence-id-range", "correlation ids, END excluded; from 1", "START[:END]", str)]  # fmt: skip
    num_of_sequences: Annotated[int, Option(
        "--num-of-sequences", "live sequences that share a request rate (4)", "N", int, 4, kind=_POSITIVE, analyzer=True)]  # fmt: skip
    serial_sequences: Annotated[bool, Option(
        "--serial-sequences", "with a request rate: one request of a sequence at a time", default=False,
        action="store_true", kind=SWITCH)]  # fmt: skip


class Sweep(TypedDict, total=False):
    """Configurations to go through."""

    instances: Annotated["int | Sequence[int] | None", Option(
        "--instances", "sweep over instances", "LIST", int_list, kind=_WHOLE)]  # fmt: skip
    max_batch_size: Annotated["int | Sequence[int] | None", Option(
        "--max-batch-size", "sweep over max_batch_size", "LIST", int_list, kind=_WHOLE)]  # fmt: skip
    max_queue_delay_us: Annotated["int | Sequence[int] | None", Option(
        "--max-queue-delay-us", "sweep over queue delays", "LIST", int_list, kind=_WHOLE)]  # fmt: skip
    dynamic_batching: Annotated["bool | Sequence[bool] | None", Option(
        "--dynamic-batching", "sweep over batching (alone: on)", "on|off|off,on", switches, kind=_SWITCH, alone=[True])]  # fmt: skip
    preferred: Annotated["int | Sequence[int] | Sequence[Sequence[int]] | None", Option(
        "--preferred", "preferred sizes: 4,8 or 4/8/4,8", "SIZES", size_lists, kind=_SIZES)]  # fmt: skip
    isolation: Annotated["str | Sequence[str] | None", Option(
        "--isolation", "sweep over thread, process, auto, ray", "LIST", name_list, kind=_NAME)]  # fmt: skip
    cache: Annotated["bool | Sequence[bool] | None", Option(
        "--cache", "sweep over the response cache", "on|off|off,on", switches, kind=_SWITCH)]  # fmt: skip
    rate_limit: Annotated["str | Sequence[str] | None", Option(
        "--rate-limit", "sweep over the server's rate limiter: off, execution_count", "LIST", name_list)]  # fmt: skip
    sweep_models: Annotated["Sequence[str]", Option("--sweep-models", "of an ensemble", "NAMES", name_list, (), kind=NAMES)]  # fmt: skip


class Placed(TypedDict, total=False):
    """Likewise: devices, on a live server."""

    kind: KindSweep
    placement: Annotated["Placement | Sequence[Placement] | None", Option(
        "--placement", "sweep over cpu, models-on-gpu, gpu, gpu:N, or one device a model: bert=gpu:1+trees=cpu", "LIST",
        placements)]  # fmt: skip


class Windows(TypedDict, total=False):
    """How long to measure, and when it is enough."""

    measurement_mode: Annotated['Literal["time_windows", "count_windows"]', Option(
        "--measurement-mode", "whether a window ends after a time or a number of requests (time_windows)",
        choices=("time_windows", "count_windows"), default="time_windows", analyzer=True)]  # fmt: skip
    measurement_interval_ms: Annotated["float | None", Option(
        "-p --measurement-interval", "length of a window (250; longer by itself where requests are slow)", "MS", float,
        kind=_INTERVAL, analyzer=True)]  # fmt: skip
    measurement_request_count: Annotated[int, Option(
        "--measurement-request-count", "least requests of a window of count_windows (50)", "N", int, 50, kind=_POSITIVE,
        analyzer=True)]  # fmt: skip
    stability_percentage: Annotated[float, Option(
        "-s --stability-percentage", "by which the last three windows of a stable level differ at most (10)", "PERCENT",
        float, 10.0, kind=_SHARE, analyzer=True)]  # fmt: skip
    max_trials: Annotated[int, Option(
        "-r --max-trials", "windows a level at most (10)", "N", int, 10, kind=_POSITIVE, analyzer=True)]  # fmt: skip
    percentile: Percentile
    latency_threshold_ms: Annotated["float | None", Option(
        "-l --latency-threshold", "stop at this latency", "MS", float, kind=_LATENCY, analyzer=True)]  # fmt: skip
    binary_search: Annotated[bool, Option(
        "--binary-search", "search the highest level below it", default=False, action="store_true", kind=SWITCH)]  # fmt: skip


class Run(TypedDict, total=False):
    """The run as a whole."""

    seed: Seed
    quick: Annotated[bool, Option(
        "--quick", "short windows: a look within 3 s", default=False, action="store_true", kind=SWITCH)]  # fmt: skip


class SweepSettings(Sweep, Placed, total=False):
    """Configurations to go through, on whatever device."""


class PerfSettings(
    Place, Chain, Memory, Load, Data, Sequences, Sweep, Placed, Windows, Run, total=False
):
    """The options of a measurement."""


PERF = table_of(PerfSettings)
PLACE, CHAIN, MEMORY, LOAD, DATA, SEQUENCES, SWEEP, PLACEMENT, WINDOWS, RUN = (
    tuple(PERF[name] for name in block.__annotations__)
    for block in (Place, Chain, Memory, Load, Data, Sequences, Sweep, Placed, Windows, Run)
)
DATA += (Option("-z --zero-input", "the same as --input-data zero", action="store_const", const="zero", name="input_data",
                default="random"),)  # fmt: skip
