"""Exercise of ``12_whatif.ipynb``; reading on spoils it."""

import numpy as np

import nbtriton as nt
from nbtriton.extensions.lessons import MachineBusyError, took_about


@nt.lessons.exercise(
    example="100",
    solution="8 / 0.014",
    hint="A full batch has 8 rows. How long does it take, and how many of them fit into a second?",
    mistakes={
        "143": "That is one request after another, 7 ms each. Under load they share batches.",
        "1143": "8 rows in 7 ms: but a row more is a millisecond more.",
    },
)
def most_of_one_instance(answer, server):
    """A batch of `ranker` takes 6 ms and 1 ms a row, and has up to 8 rows.

    How many requests a second can one instance answer at most? (The check measures it.)
    """
    one = {"IN": np.ones((1, 4), np.float32)}
    report = nt.perf(server, "ranker", inputs=one, concurrency=16, request_count=160, instances=1)
    # The quicker ones: on a busy machine a sleep ends late.
    full = sorted(b.end_ns - b.start_ns for b in server.batches("ranker") if b.batch_size == 8)
    if not full:
        raise MachineBusyError("of 16 outstanding requests no 8 were waiting at a time")
    took_about(full[len(full) // 4], 14)
    took_ms = full[len(full) // 4] / 1e6
    most = 8 / took_ms * 1000
    said = f"A full batch took {took_ms:.1f} ms, which allows {most:.0f} a second"
    assert 0.75 < answer / most < 1.33, "That is not within a third of what it did."
    return (
        f"{said}; 16 outstanding requests were answered at {report.points[0].infer_per_s:.0f}. "
        "More than that needs a second instance, or longer batches."
    )
