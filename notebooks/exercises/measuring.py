"""Exercise of ``05_measuring.ipynb``; reading on spoils it."""

import nbtriton as nt


@nt.lessons.exercise(
    example="1.5",
    solution="rush.points[-1].infer_per_s * rush.points[-1].latency_avg_us / 1e6",
    hint="Little's law: throughput x time inside. rush.points[-1] has infer_per_s and latency_avg_us.",
    mistakes={
        "500": "That is how many there were in all. How many were inside at the same time?",
        "1": "Then no request would ever have met another one.",
    },
)
def requests_inside(answer, server):
    """At the last rate of `rush` the number of outstanding requests was not fixed.

    How many were inside the server at a time, on average?
    """
    requests = server.requests("scorer")[-500:]
    assert len(requests) == 500, "Run the three rates first."
    span = max(one.answered_ns for one in requests) - min(one.arrival_ns for one in requests)
    inside = sum(one.answered_ns - one.arrival_ns for one in requests) / span
    assert 0.7 < answer / inside < 1.3, "The recorder's number differs by a third or more."
    return f"The recorder counts {inside:.1f}; the law needs neither the queue's rules nor the model's times."
