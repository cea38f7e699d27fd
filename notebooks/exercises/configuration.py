"""Exercise of ``13_configuration.ipynb``; reading on spoils it."""

import nbtriton as nt


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[2, 2]",
    hint="Add up in the order of arrival. What happens to the request that no longer fits?",
    mistakes={
        "[4]": "Together they are 168 readings.",
        "[3, 1]": "24 + 60 + 24 is 108.",
        "[1, 1, 1, 1]": "24 + 60 is 84, which fits.",
    },
)
def at_most_100(answer, server):
    """At most 100 readings a batch, and requests with 24, 60, 24 and 60 of them come in this order.

    How many requests has each batch?
    """
    batches = nt.lessons.last_batches(server, "daily", request_count=4, within_ms=150)
    sizes = [batch.batch_size for batch in batches]
    assert answer == sizes, "They were others."
    return "The third did not fit, so the batch left without it, and it began the next one."
