"""The options that magics and the command line share, in blocks by what they say; each is declared here alone."""

from __future__ import annotations

from nbtriton.options.reading import (
    float_list,
    int_list,
    name_list,
    placements,
    shape,
    size_lists,
    switches,
)
from nbtriton.options.table import Option

__all__ = [
    "DATA", "LOAD", "MEMORY", "PLACE", "PLACEMENT", "RUN", "SCHEDULING", "SEQUENCES", "SWEEP", "WINDOWS",
]  # fmt: skip

# Where to measure.
PLACE = (
    Option("--version -x", "of the model (the highest)", value="N", read=int, name="model_version"),
    Option(
        "-u --url",
        "measure a server there; http:// or grpc:// may stand in front",
        value="HOST:PORT",
    ),
    Option(
        "-i --protocol",
        "how to ask: in the process by default, http at a --url; here over http or grpc at the "
        "port that %%triton_serve has open, or one for the run",
        choices=("inproc", "http", "grpc"),
    ),
)

# Over HTTP and gRPC, of a server on this machine.
MEMORY = (
    Option(
        "--shared-memory",
        "over http and grpc: have all tensors in shared memory of this machine (none)",
        choices=("none", "system", "cuda"),
        default="none",
    ),
    Option(
        "--output-shared-memory-size",
        "room a row for an output of strings or of variable dims (102400)",
        value="BYTES",
        read=int,
        default=102_400,
    ),
)

# The load, and what each request has.
LOAD = (
    Option(
        "-c --concurrency --concurrency-range",
        "requests kept outstanding (1): 8, 1:32, 1:32:4, 1:32:x2 (doubling) or 1,8,32",
        value="LEVELS",
        default=1,
    ),
    Option(
        "--request-rate --request-rate-range",
        "or requests per second, written likewise",
        value="LEVELS",
    ),
    Option(
        "--request-distribution",
        "gaps between the requests of a rate (constant)",
        choices=("constant", "poisson"),
        default="constant",
    ),
    Option(
        "--intervals --request-intervals",
        "or the gaps themselves in microseconds",
        value="LIST|EXPR",
    ),
    Option(
        "--periodic-concurrency --periodic-concurrency-range",
        "or, of a decoupled model, STEP more requests each time the last have had some responses",
        value="START:END:STEP",
    ),
    Option("--request-period", "responses of each (10)", value="N", read=int, default=10),
    Option(
        "--recording",
        "or when the requests for this model came in a file of %%triton_record",
        value="FILE",
    ),
    Option(
        "--speed",
        "how many times as fast as they came (1)",
        value="LIST",
        read=float_list,
        default=1.0,
    ),
    Option("--request-count", "exactly N requests a level", value="N", read=int, default=0),
    Option("-b --batch-size", "rows per request (1)", value="LIST", read=int_list),
    Option(
        "--streaming",
        "listen to each response, for decoupled models: time to the first and between them",
        default=False,
        action="store_true",
    ),
    Option(
        "--priority",
        "of the requests, in turn; 1 is the highest",
        value="LIST",
        read=int_list,
        default=0,
    ),
    Option(
        "--timeout-us",
        "queue timeouts of the requests, in turn",
        value="LIST",
        read=int_list,
        default=0,
    ),
)

# What requests send.
DATA = (
    Option("--inputs", "what to send: a mapping of arrays, or a list of them", value="EXPR"),
    Option(
        "--shape",
        "dims of an input with variable ones",
        value="NAME:DIMS",
        read=shape,
        action="append",
        name="shapes",
    ),
    Option(
        "--input-data",
        "without --inputs (random); a JSON file of perf_analyzer's, or a directory of files",
        value="random|zero|FILE",
        default="random",
    ),
    Option(
        "-z --zero-input",
        "the same as --input-data zero",
        action="store_const",
        const="zero",
        name="input_data",
    ),
    Option("--string-length", "of generated strings (128)", value="N", read=int, default=128),
    Option("--string-data", "or the string itself", value="TEXT"),
)

# Sequences, of a model with a sequence batcher.
SEQUENCES = (
    Option(
        "--sequence-length",
        "requests of a sequence; 20, or the steps of the data",
        value="N",
        read=int,
    ),
    Option(
        "--sequence-length-variation",
        "by which lengths vary to either side (20)",
        value="PERCENT",
        read=float,
        default=20.0,
    ),
    Option(
        "--sequence-id-range",
        "correlation ids, END excluded; from 1",
        value="START[:END]",
        read=str,
    ),
    Option(
        "--num-of-sequences",
        "live sequences that share a request rate (4)",
        value="N",
        read=int,
        default=4,
    ),
    Option(
        "--serial-sequences",
        "with a request rate: one request of a sequence at a time",
        default=False,
        action="store_true",
    ),
)

# Configurations to go through.
SWEEP = (
    Option("--instances", "sweep over instances", value="LIST", read=int_list),
    Option("--max-batch-size", "sweep over max_batch_size", value="LIST", read=int_list),
    Option("--max-queue-delay-us", "sweep over queue delays", value="LIST", read=int_list),
    Option("--dynamic-batching", "sweep over batching", value="on|off|off,on", read=switches),
    Option("--preferred", "preferred sizes: 4,8 or 4/8/4,8", value="SIZES", read=size_lists),
    Option("--isolation", "sweep over thread, process, auto", value="LIST", read=name_list),
    Option("--cache", "sweep over the response cache", value="on|off|off,on", read=switches),
    Option(
        "--rate-limit",
        "sweep over the server's rate limiter: off, execution_count",
        value="LIST",
        read=name_list,
    ),
    Option("--sweep-models", "of an ensemble", value="NAMES", read=name_list, default=[]),
)

# Likewise: devices, on a live server.
PLACEMENT = (
    Option("--kind", "sweep over cpu, gpu, auto, model", value="LIST", read=name_list),
    Option(
        "--placement",
        "sweep over cpu, models-on-gpu, gpu, gpu:N, or one device a model: bert=gpu:1+trees=cpu",
        value="LIST",
        read=placements,
    ),
)

# How long to measure, and when it is enough.
WINDOWS = (
    Option(
        "--measurement-mode",
        "whether a window ends after a time or a number of requests (time_windows)",
        choices=("time_windows", "count_windows"),
        default="time_windows",
    ),
    Option(
        "-p --measurement-interval",
        "length of a window (250; longer by itself where requests are slow)",
        value="MS",
        read=float,
        name="measurement_interval_ms",
    ),
    Option(
        "--measurement-request-count",
        "least requests of a window of count_windows (50)",
        value="N",
        read=int,
        default=50,
    ),
    Option(
        "-s --stability-percentage",
        "by which the last three windows of a stable level differ at most (10)",
        value="PERCENT",
        read=float,
        default=10.0,
    ),
    Option("-r --max-trials", "windows a level at most (10)", value="N", read=int, default=10),
    Option("--percentile", "judge by it instead of the mean", value="N", read=float),
    Option(
        "-l --latency-threshold",
        "stop at this latency",
        value="MS",
        read=float,
        name="latency_threshold_ms",
    ),
    Option(
        "--binary-search", "search the highest level below it", default=False, action="store_true"
    ),
)

# The run as a whole.
RUN = (
    Option("--seed", "of random data and gaps (0)", value="N", read=int, default=0),
    Option("--quick", "short windows: a look within 3 s", default=False, action="store_true"),
)

# How a model is batched and where it runs.
SCHEDULING = (
    Option(
        "--max-batch-size",
        "largest batch; 0: no batching (what the model says, else 0)",
        value="N",
        read=int,
    ),
    Option("--instances", "instances (1; on GPUs, one a GPU)", value="N", read=int),
    Option(
        "--isolation",
        "where instances live: threads of this process, or a process each (as %%triton_server says; thread)",
        choices=("thread", "process", "auto"),
    ),
    Option("--kind", "where the instances run (auto)", choices=("cpu", "gpu", "auto")),
    Option("--gpus", "GPU ids such as 0,1 (all)", value="IDS", read=int_list),
    Option("--dynamic-batching", "join waiting requests to batches (off)", action="store_true"),
    Option(
        "--max-queue-delay-us",
        "wait so long for a fuller batch (0): max_queue_delay_microseconds",
        value="US",
        read=int,
    ),
    Option(
        "--preferred",
        "preferred_batch_size, such as 4,8 (the largest batch)",
        value="SIZES",
        read=int_list,
    ),
)
