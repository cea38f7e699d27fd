"""Exercise of ``15_production.ipynb``; reading on spoils it."""

import nbtriton as nt
from nbtriton.extensions.lessons import MachineBusyError, sent_within


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[3, 4, 2, 1]",
    hint="Four leave at once. What do the others wait for, and how long?",
    mistakes={
        "[3, 6, 1]": "When four of the six are there, the preferred size is reached: they do not wait for the rest.",
        "[4, 4, 2]": "The three wait for 400 ms, and the next burst comes after 900 ms.",
    },
)
def three_bursts(answer, server):
    """Bursts of 3, 6 and 1 requests, 0.9 s apart. `company` waits up to 400 ms and prefers batches of 4.

    How many requests has each batch?
    """
    batches = nt.lessons.last_batches(server, "company", request_count=10)
    came = sorted(server.requests("company")[-10:], key=lambda one: one.arrival_ns)
    for burst in (came[:3], came[3:9]):
        sent_within(burst, 300)
    apart_ms = (
        min(came[3].arrival_ns - came[2].arrival_ns, came[9].arrival_ns - came[8].arrival_ns) / 1e6
    )
    late_ms = max(batch.queue_ns for batch in batches) / 1e6
    if late_ms > apart_ms:
        raise MachineBusyError(
            f"a batch left after {late_ms:.0f} ms, and the bursts came within {apart_ms:.0f} ms"
        )
    sizes = [batch.batch_size for batch in batches]
    assert answer == sizes, "They were others: the table below shows them."
    return "Now the real server."
