"""Exercise of ``06_slow_requests.ipynb``; reading on spoils it."""

import nbtriton as nt
from nbtriton.extensions.lessons import MachineBusyError


@nt.lessons.exercise(
    example="5",
    solution="16",
    hint="While one call takes 40 ms, how many other requests are outstanding, and where?",
    mistakes={
        "2": "These are the requests whose own call is slow. What about those that wait behind it?",
        "100": "Between two slow calls there are 49 quick ones, and a request that comes then meets none.",
    },
)
def slow_percent(answer, server):
    """One call in 50 takes 40 ms. With 8 requests outstanding and one instance: how many percent of the requests
    are inside during a slow call?
    """
    requests = server.requests("hiccup")[-500:]
    assert len(requests) == 500, "Run the measurement first."
    first_ns = min(one.arrival_ns for one in requests)
    slow = [
        b for b in server.batches("hiccup")
        if b.end_ns - b.start_ns > 35_000_000 and b.start_ns >= first_ns
    ]  # fmt: skip
    if len(slow) > 15:
        raise MachineBusyError(f"{len(slow)} of 500 calls were slow, where 10 are meant to be")
    met = sum(
        one.arrival_ns < b.start_ns + 5_000_000 and one.answered_ns >= b.end_ns
        for b in slow
        for one in requests
    )
    # For each slow call, of which there is one in 50.
    each = met / len(slow)
    said = f"The recorder says that a slow call meets {each:.1f} requests: {2 * each:.0f}%"
    assert abs(answer - 2 * each) < 4, "The recorder counts another share (in percent)."
    return f"{said} with one slow call in 50, so p99 and p90 are slow, too."
