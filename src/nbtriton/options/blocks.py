"""Options of a request, and those of a load that a model and a figure share."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from nbtriton.options.reading import ISOLATIONS, int_list, name_list, switch, unquoted
from nbtriton.options.table import Option


class CallOptions(TypedDict, total=False):
    """A request's options, named as in `nbtriton.Server.infer`."""

    priority: int
    timeout_us: int
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    version: int
    outputs: Sequence[str]
    request_id: str
    parameters: Mapping[str, bool | int | str]


def _sequence_id(text: str) -> int | str:
    """Read a correlation id: digits are a number, unless they are quoted."""
    return int(text) if text.isdecimal() else unquoted(text)


REQUEST = (
    Option("--version", "by default the highest", "N", int, -1),
    Option("--outputs", "by default all", "NAMES", name_list, []),
    Option("--request-id", "comes back with the response", "ID", default=""),
    Option("--priority", "1 is the highest; 0: the model's default", "N", int, 0),
    Option("--timeout-us", "longest wait in the queue", "US", int, 0),
    Option("--sequence-id", "the sequence that the request belongs to: a number, or a text", "ID", _sequence_id, 0),
    Option("--sequence-start", "it is the sequence's first request", default=False, action="store_true"),
    Option("--sequence-end", "it is the sequence's last request", default=False, action="store_true"),
)  # fmt: skip
# How a model is batched and where it runs.
SCHEDULING = (
    Option("--max-batch-size", "largest batch; 0: no batching (what the model says, else 0)", "N", int),
    Option("--instances", "instances (1; on GPUs, one a GPU)", "N", int),
    Option(
        "--isolation", "where instances live: threads of this process, a process each, or nodes of a Ray cluster (as %%triton_server "
        "says; thread)", choices=ISOLATIONS),
    Option("--kind", "where the instances run (auto)", choices=("cpu", "gpu", "auto")),
    Option("--gpus", "GPU ids such as 0,1 (all)", "IDS", int_list),
    Option("--dynamic-batching", "join waiting requests to batches (off; alone: on)", "on|off", switch, alone=True),
    Option("--max-queue-delay-us", "wait so long for a fuller batch (0): max_queue_delay_microseconds", "US", int),
    Option("--preferred", "preferred_batch_size, such as 4,8 (the largest batch)", "SIZES", int_list),
)  # fmt: skip
