"""Exercise of ``15_production.ipynb``; reading on spoils it."""

import nbtriton as nt
from nbtriton.extensions.lessons import sent_within


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
    sizes = [batch.batch_size for batch in batches]
    assert answer == sizes, "They were others: the table below shows them."
    return "Now the real server."
