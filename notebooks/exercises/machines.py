"""Exercises of ``19_more_machines.ipynb``; reading on spoils them."""

import numpy as np

import nbtriton as nt
from nbtriton.extensions.lessons import MachineBusyError


@nt.lessons.exercise(
    example="100",
    solution="87",
    hint="How many requests are 1,000,000 an hour in a second? How many does an instance with full batches answer?",
    mistakes={
        "195": "That is one request at a time. A full batch has 8 of them, in 2.5 s.",
        "86": "86 instances would be busy all the time, and 2.6 requests a second are left over.",
        "313": "1,000,000 requests an hour are 278 a second, not 1,000.",
    },
)
def fewest_instances(answer, server):  # noqa: ARG001 - a calculation
    """A million requests an hour; an instance takes 2.5 s for a full batch of 8. How many instances are needed at least?"""
    least = -(-1_000_000 * 2.5 // (3600 * 8))
    assert answer == least, (
        "Another number of instances answers them, if all are busy all the time."
    )
    return "All of them busy all the time: then the queue grows without an end, so that a plan needs some more."


@nt.lessons.exercise(
    example="3",
    solution="1",
    hint="What is more of an instance good for: a shorter wait, or a shorter execution?",
    mistakes={
        "4": "p99 is over the limit, but not by waiting for an instance.",
        "2": "A second one would execute as long as the first.",
    },
)
def out_of_reach(answer, server):
    """`reader` takes 40 ms, and p99 is to be at most 20 ms. Requests come, one after the other. How many instances will it have?

    (The check tries it, for some seconds.)
    """
    config = server.config("reader")
    before = config.instance_group[0].count
    config.instance_group[0].count = 1
    server.load(config, name="reader")
    one = {"PAGE": np.ones((1, 4), np.float32)}
    with nt.autoscale(server, "reader", between=(1, 4), p99_ms=20) as scaling:
        for _ in range(40):
            server.infer("reader", one)
        happened, reason = int(scaling.frame["after"].iloc[-1]), scaling.reason
    waits_ms = [(r.batch.formed_ns - r.arrival_ns) / 1e6 for r in server.requests("reader")[-40:]]
    config.instance_group[0].count = before
    server.load(config, name="reader")
    if happened > 1 and max(waits_ms) > 5:
        raise MachineBusyError(f"a request waited {max(waits_ms):.0f} ms for an idle instance")
    assert answer == happened, "It has another number."
    return f"It said: {reason}."


@nt.lessons.exercise(
    example="3",
    solution="4",
    hint="Two leave at once. What do the other seven do meanwhile, and what is the largest batch?",
    mistakes={
        "9": "Requests that wait here become a batch, and a batch travels as one request.",
        "3": "The first two do not wait for others: each travels alone.",
    },
)
def requests_that_travel(answer, server):
    """Nine requests of a row come at once to `far`, which has two instances and batches of up to four rows.

    How many requests does the other machine get?
    """
    batches = nt.lessons.last_batches(server, "far", request_count=9, within_ms=30)
    assert answer == len(batches), "The recorder has another number of batches."
    return f"Batches of {', '.join(str(batch.batch_size) for batch in batches)}: those that waited left together."
