"""Exercises of ``04_queues.ipynb``; reading on spoils them."""

import nbtriton as nt
from nbtriton.extensions.lessons import MachineBusyError, sent_within

# How long each execution of `urgent` and `patient` takes.
WAIT_MS = 30


def configured(server, max_batch_size, **settings):
    """Ask for a question's own configuration: the next cells change it."""
    config = server.config("slow")
    found = {name: getattr(config.dynamic_batching, name) for name in settings}
    same = config.HasField("dynamic_batching") and config.max_batch_size == max_batch_size
    assert same and found == settings, (
        "`slow` has another configuration now: run the %%triton_config cell of this question, then the one with your answer."
    )


@nt.lessons.exercise(
    example="1",
    solution="2",
    hint="One runs. How many may wait?",
    mistakes={
        "3": "The first of the five runs at once: it waits in no queue.",
        "5": "A request is not refused while there is room.",
    },
)
def refused(answer, server):
    """Five requests at once, no batching (max_batch_size 1), max_queue_size 2. How many are refused?"""
    configured(server, 1)
    newest = sorted(server.requests("slow"), key=lambda one: one.arrival_ns)[-5:]
    assert len(newest) == 5, "Run the experiment first."
    sent_within(newest, 30)
    happened = sum(one.status == "UNAVAILABLE" for one in newest)
    assert answer == happened, "The scheduler refused another number."
    return f"They were refused at once: {next(one.error for one in newest if one.error)}."


@nt.lessons.exercise(
    example="[0, 1, 2]",
    solution="[0, 3, 5, 1, 2, 4]",
    hint="The one that runs is not interrupted. Of those that wait, which one goes first?",
    mistakes={
        "[3, 5, 0, 1, 2, 4]": "Request 0 was already running when the others came.",
        "[0, 1, 2, 3, 4, 5]": "That is the order of arrival: the order within one priority.",
    },
)
def in_which_order(answer, server):
    """Six requests (0 to 5) come at once, one runs at a time; 3 and 5 have priority 1, the others 2. In which order do they run?"""
    configured(server, 1, priority_levels=2)
    batches = nt.lessons.last_batches(server, "slow", request_count=6, within_ms=30)
    numbers = [number for batch in batches for number in batch.requests]
    happened = [sorted(numbers).index(number) for number in numbers]
    assert answer == happened, "They ran in another order: the timeline below shows it."
    return "Priority decides among those that wait, arrival within a priority."


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[0, 1]",
    hint="The short one has ended long before the long one. May its answer leave?",
    mistakes={"[1, 0]": "That is without preserve_ordering: whoever has ended answers."},
)
def answers_in_order(answer, server):
    """A request (0) of 80 ms and one (1) of 20 ms run at once on two instances, with preserve_ordering.

    In which order are they answered?
    """
    assert server.config("slow").dynamic_batching.preserve_ordering, (
        "`slow` has another configuration now: run the cell with your answer again."
    )
    nt.lessons.last_batches(server, "slow", request_count=2, within_ms=15, took_ms=(80, 20))
    newest = sorted(server.requests("slow"), key=lambda one: one.arrival_ns)[-2:]
    first, second = newest
    happened = [0, 1] if first.answered_ns <= second.answered_ns else [1, 0]
    assert answer == happened, "The recorder saw another order: the picture below shows it."
    held_ms = (second.answered_ns - second.batch.end_ns) / 1e6
    return f"The answer of the short one was ready, and was held back for {held_ms:.0f} ms."


@nt.lessons.exercise(
    example="3",
    solution="4",
    hint="Priority 1 gets twice as many turns as priority 2: write the order down, u u p u u p.",
    mistakes={
        "6": "All of the urgent ones first: that would starve the other. A priority is a share of the turns, not a precedence.",
        "3": "Turn by turn, as if both had the same priority.",
    },
)
def urgent_among_six(answer, server):
    """`urgent` (priority 1) and `patient` (priority 2) have six requests each, and one of them can run at a time.

    How many of the first six executions are of `urgent`?
    """
    names = ("urgent", "patient")
    both = [
        batch
        for name in names
        for batch in nt.lessons.last_batches(server, name, request_count=6, within_ms=WAIT_MS)
    ]
    sent = [one.arrival_ns for name in names for one in server.requests(name)[-6:]]
    if max(sent) > min(batch.end_ns for batch in both):
        raise MachineBusyError("the first request was answered before the last one was sent")
    first = sorted(both, key=lambda batch: batch.start_ns)[:6]
    happened = sum(batch.model == "urgent" for batch in first)
    assert answer == happened, "The scheduler gave another share of the turns to `urgent`."
    return f"The order was {' '.join(batch.model for batch in first)}."
