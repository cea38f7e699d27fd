"""Options that several magics have: those of a measurement, in blocks by what they say."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.magic_arguments import argument

from nbtriton.magics.common import evaluate, float_list, int_list, name_list, unquoted

__all__ = [
    "DATA", "LOAD", "MEMORY", "PLACE", "PLACEMENT", "RUN", "SEQUENCES", "SWEEP", "WINDOWS", "arguments", "only", "profile_option",
    "read_options", "read_profile",
]  # fmt: skip

Method = TypeVar("Method", bound=Callable[..., Any])


def _switches(text: str) -> list[bool]:
    words = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
    try:
        return [words[part.lower()] for part in unquoted(text).split(",")]
    except KeyError as error:
        raise ArgumentTypeError(f"{error} is neither on nor off; write off,on for both") from None


def _placements(text: str) -> list[Any]:
    """Read placements: names, or devices of models such as ``bert=gpu:1+trees=cpu``."""
    found: list[Any] = []
    for part in unquoted(text).split(","):
        if "=" not in part:
            found.append(part.strip())
            continue
        pairs = [each.partition("=") for each in part.split("+")]
        found.append({model.strip(): device.strip() for model, _, device in pairs})
    return found


def _size_lists(text: str) -> list[list[int]]:
    return [int_list(part) for part in unquoted(text).split("/")]


def _shape(text: str) -> tuple[str, list[int]]:
    name, colon, dims = unquoted(text).rpartition(":")
    if not colon:
        raise ArgumentTypeError(f"'{text}' is not NAME:DIMS, such as IN:3,224,224")
    return name, int_list(dims)


# Where to measure.
PLACE = (
    argument(
        "--version",
        "-x",
        dest="model_version",
        type=int,
        metavar="N",
        help="of the model (the highest)",
    ),
    argument(
        "-u",
        "--url",
        type=unquoted,
        metavar="HOST:PORT",
        help="measure a server there; http:// or grpc:// may stand in front",
    ),
    argument(
        "-i",
        "--protocol",
        choices=("inproc", "http", "grpc"),
        help="how to ask: in the process by default, http at a --url; here over http or grpc at the "
        "port that %%triton_serve has open, or one for the run",
    ),
)

# Over HTTP and gRPC, of a server on this machine.
MEMORY = (
    argument(
        "--shared-memory",
        choices=("none", "system", "cuda"),
        default="none",
        help="over http and grpc: have all tensors in shared memory of this machine (none)",
    ),
    argument(
        "--output-shared-memory-size",
        type=int,
        default=102_400,
        metavar="BYTES",
        help="room a row for an output of strings or of variable dims (102400)",
    ),
)

# The load, and what each request has.
LOAD = (
    argument(
        "-c",
        "--concurrency",
        "--concurrency-range",
        type=unquoted,
        default=1,
        metavar="LEVELS",
        help="requests kept outstanding (1): 8, 1:32, 1:32:4, 1:32:x2 (doubling) or 1,8,32",
    ),
    argument(
        "--request-rate",
        "--request-rate-range",
        type=unquoted,
        metavar="LEVELS",
        help="or requests per second, written likewise",
    ),
    argument(
        "--request-distribution",
        choices=("constant", "poisson"),
        default="constant",
        help="gaps between the requests of a rate (constant)",
    ),
    argument(
        "--intervals",
        "--request-intervals",
        type=unquoted,
        metavar="LIST|EXPR",
        help="or the gaps themselves in microseconds",
    ),
    argument(
        "--periodic-concurrency",
        "--periodic-concurrency-range",
        type=unquoted,
        metavar="START:END:STEP",
        help="or, of a decoupled model, STEP more requests each time the last have had some responses",
    ),
    argument(
        "--request-period",
        type=int,
        default=10,
        metavar="N",
        help="responses of each (10)",
    ),
    argument(
        "--recording",
        type=unquoted,
        metavar="FILE",
        help="or when the requests for this model came in a file of %%triton_record",
    ),
    argument(
        "--speed",
        type=float_list,
        default=1.0,
        metavar="LIST",
        help="how many times as fast as they came (1)",
    ),
    argument(
        "--request-count", type=int, default=0, metavar="N", help="exactly N requests a level"
    ),
    argument("-b", "--batch-size", type=int_list, metavar="LIST", help="rows per request (1)"),
    argument(
        "--streaming",
        action="store_true",
        help="listen to each response, for decoupled models: time to the first and between them",
    ),
    argument(
        "--priority",
        type=int_list,
        default=0,
        metavar="LIST",
        help="of the requests, in turn; 1 is the highest",
    ),
    argument(
        "--timeout-us",
        type=int_list,
        default=0,
        metavar="LIST",
        help="queue timeouts of the requests, in turn",
    ),
)

# What requests send.
DATA = (
    argument(
        "--inputs",
        type=unquoted,
        metavar="EXPR",
        help="what to send: a mapping of arrays, or a list of them",
    ),
    argument(
        "--shape",
        dest="shapes",
        type=_shape,
        action="append",
        metavar="NAME:DIMS",
        help="dims of an input with variable ones",
    ),
    argument(
        "--input-data",
        type=unquoted,
        default="random",
        metavar="random|zero|FILE",
        help="without --inputs (random); a JSON file of perf_analyzer's, or a directory of files",
    ),
    argument(
        "-z",
        "--zero-input",
        dest="input_data",
        action="store_const",
        const="zero",
        help="the same as --input-data zero",
    ),
    argument(
        "--string-length", type=int, default=128, metavar="N", help="of generated strings (128)"
    ),
    argument("--string-data", type=unquoted, metavar="TEXT", help="or the string itself"),
)

# Sequences, of a model with a sequence batcher.
SEQUENCES = (
    argument(
        "--sequence-length",
        type=int,
        metavar="N",
        help="requests of a sequence; 20, or the steps of the data",
    ),
    argument(
        "--sequence-length-variation",
        type=float,
        default=20.0,
        metavar="PERCENT",
        help="by which lengths vary to either side (20)",
    ),
    argument(
        "--sequence-id-range", metavar="START[:END]", help="correlation ids, END excluded; from 1"
    ),
    argument(
        "--num-of-sequences",
        type=int,
        default=4,
        metavar="N",
        help="live sequences that share a request rate (4)",
    ),
    argument(
        "--serial-sequences",
        action="store_true",
        help="with a request rate: one request of a sequence at a time",
    ),
)

# Configurations to go through.
SWEEP = (
    argument("--instances", type=int_list, metavar="LIST", help="sweep over instances"),
    argument("--max-batch-size", type=int_list, metavar="LIST", help="sweep over max_batch_size"),
    argument("--max-queue-delay-us", type=int_list, metavar="LIST", help="sweep over queue delays"),
    argument(
        "--dynamic-batching", type=_switches, metavar="on|off|off,on", help="sweep over batching"
    ),
    argument(
        "--preferred", type=_size_lists, metavar="SIZES", help="preferred sizes: 4,8 or 4/8/4,8"
    ),
    argument(
        "--isolation", type=name_list, metavar="LIST", help="sweep over thread, process, auto"
    ),
    argument(
        "--cache", type=_switches, metavar="on|off|off,on", help="sweep over the response cache"
    ),
    argument(
        "--rate-limit",
        type=name_list,
        metavar="LIST",
        help="sweep over the server's rate limiter: off, execution_count",
    ),
    argument("--sweep-models", type=name_list, default=[], metavar="NAMES", help="of an ensemble"),
)

# Likewise: devices, on a live server.
PLACEMENT = (
    argument("--kind", type=name_list, metavar="LIST", help="sweep over cpu, gpu, auto, model"),
    argument(
        "--placement",
        type=_placements,
        metavar="LIST",
        help="sweep over cpu, models-on-gpu, gpu, gpu:N, or one device a model: bert=gpu:1+trees=cpu",
    ),
)

# How long to measure, and when it is enough.
WINDOWS = (
    argument(
        "--measurement-mode",
        choices=("time_windows", "count_windows"),
        default="time_windows",
        help="whether a window ends after a time or a number of requests (time_windows)",
    ),
    argument(
        "-p",
        "--measurement-interval",
        dest="measurement_interval_ms",
        type=float,
        metavar="MS",
        help="length of a window (250; longer by itself where requests are slow)",
    ),
    argument(
        "--measurement-request-count",
        type=int,
        default=50,
        metavar="N",
        help="least requests of a window of count_windows (50)",
    ),
    argument(
        "-s",
        "--stability-percentage",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help="by which the last three windows of a stable level differ at most (10)",
    ),
    argument(
        "-r", "--max-trials", type=int, default=10, metavar="N", help="windows a level at most (10)"
    ),
    argument("--percentile", type=float, metavar="N", help="judge by it instead of the mean"),
    argument(
        "-l",
        "--latency-threshold",
        dest="latency_threshold_ms",
        type=float,
        metavar="MS",
        help="stop at this latency",
    ),
    argument("--binary-search", action="store_true", help="search the highest level below it"),
)

# The run as a whole.
RUN = (
    argument("--seed", type=int, default=0, metavar="N", help="of random data and gaps (0)"),
    argument("--quick", action="store_true", help="short windows: a look within 3 s"),
)


def arguments(*blocks: tuple[Any, ...]) -> Callable[[Method], Method]:
    """Add blocks of options to a magic, in this order."""

    def add(method: Method) -> Method:
        for option in reversed([option for block in blocks for option in block]):
            method = option(method)
        return method

    return add


def only(block: tuple[Any, ...], *names: str) -> tuple[Any, ...]:
    """Return those options of a block that have one of these names."""
    return tuple(option for option in block if set(names) & set(option.args))


def profile_option(help_text: str) -> Any:
    """Return the option ``--profile``."""
    return argument("--profile", type=unquoted, metavar="EXPR|FILE", help=help_text)


def read_options(shell: Any, options: dict[str, Any]) -> None:
    """Evaluate, in place, the options that are expressions; the names are those of `nbtriton.perf`."""
    options["shapes"] = dict(options["shapes"] or ()) or None
    if (text := options.get("inputs")) is not None:
        options["inputs"] = evaluate(shell, text, "--inputs ")
    if (text := options.get("intervals")) is not None:
        text = f"[{text}]" if "," in text else text
        options["intervals"] = evaluate(shell, text, "--intervals ")


def read_profile(shell: Any, given: str) -> Any:
    """Return the profile that an expression or the name of a file gives."""
    from nbtriton.lab.simulate import Profile

    if given.endswith(".json"):
        return Profile.load(given)
    return evaluate(shell, given, "--profile ")
