"""Exercises of ``01_five_cells.ipynb``; reading on spoils them."""

from statistics import median

import numpy as np

import nbtriton as nt
from nbtriton.extensions.lessons import took_about


@nt.lessons.exercise(
    example="3",
    solution="8",
    hint="The instance runs one request at a time, in the order of arrival. Which ones are before yours?",
    mistakes={
        "1": "Only if it were alone: with 8 outstanding and one instance, 7 others are before it in the queue.",
        "7": "Seven others end before it. Its own call ends, too.",
    },
)
def calls_until_answered(answer, server):
    """While 8 requests are kept outstanding, one more comes in: it is one of the 8.

    How many calls of `classify` end between its arrival and its answer, its own included?
    """
    # Without those of a dynamic batcher, which comes later.
    alone = [
        one for one in server.requests("classify")
        if one.batch is not None and one.batch.reason == "batching_off"
    ]  # fmt: skip
    requests = alone[-40:]
    ends = [batch.end_ns for batch in server.batches("classify")]
    counts = [sum(one.arrival_ns < end <= one.answered_ns for end in ends) for one in requests[:-8]]
    assert counts, "Run the measurement first."
    took_about(median(one.batch.end_ns - one.batch.start_ns for one in requests), 5)
    happened = round(median(counts))
    assert answer == happened, (
        f"The recorder counts another number (the median of {len(counts)} requests)."
    )
    return "So the latency is 8 times that of a request alone, and the throughput is the same."


@nt.lessons.exercise(
    solution="""
        %%triton_config classify
        dynamic_batching { }
    """,
    hint="A fragment of config.pbtxt with one block is enough: %%triton_config classify. What is it called?",
)
def in_company(server):
    """Change the configuration of `classify` so that requests which wait are executed together.

    The check sends eight requests at once and counts the executions.
    """
    x = np.zeros((1, 64), np.float32)
    for future in [server.submit("classify", {"X": x}) for _ in range(8)]:
        future.result()
    batches = nt.lessons.last_batches(server, "classify", request_count=8, within_ms=20)
    sizes = [batch.batch_size for batch in batches]
    assert len(sizes) < 8, f"Eight requests were {len(sizes)} executions: each ran alone."
    return f"Eight requests were {len(sizes)} executions, of {sizes} rows."
