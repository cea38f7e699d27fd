"""Exercises of ``03_dynamic_batching.ipynb``; reading on spoils them."""

import numpy as np

import nbtriton as nt
from nbtriton.extensions.lessons import sent_within

OTHER = "The scheduler formed other batches: the timeline below shows them."


def configured(server, max_batch_size, **settings):
    """Ask for a question's own configuration: the next cells change it."""
    config = server.config("slow")
    found = {name: getattr(config.dynamic_batching, name) for name in settings}
    same = config.HasField("dynamic_batching") and config.max_batch_size == max_batch_size
    assert same and found == settings, (
        "`slow` has another configuration now: run the %%triton_config cell of this question, then the one with your answer."
    )


def sizes_of(server, requests, within_ms):
    """Return the sizes of the last batches, and a sentence with their reasons."""
    batches = nt.lessons.last_batches(server, "slow", request_count=requests, within_ms=within_ms)
    sizes = [batch.batch_size for batch in batches]
    return (
        sizes,
        f"The batches were {sizes}, for the reasons {[batch.reason for batch in batches]}.",
    )


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[1, 5]",
    hint="When the first request comes, the instance has nothing to do. What happens while it runs?",
    mistakes={
        "[6]": "The first request found an idle instance, and without a delay it had no reason to wait for the others.",
        "[1, 1, 1, 1, 1, 1]": "That is without dynamic batching.",
        "[3, 3]": "The scheduler does not know that six will come: it takes what is there.",
    },
)
def without_a_delay(answer, server):
    """Six requests of one row come at once, max_batch_size is 8, and there is no queue delay. Which batches leave?"""
    configured(server, 8, max_queue_delay_microseconds=0)
    sizes, said = sizes_of(server, 6, within_ms=30)
    assert answer == sizes, OTHER
    return said


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[4, 2]",
    hint="A batch leaves when it is full, or when its oldest request has waited for the delay.",
    mistakes={
        "[1, 4, 1]": "With a delay an idle instance is no reason to leave: the first one waits for others.",
        "[6]": "max_batch_size is 4 now.",
    },
)
def with_a_delay(answer, server):
    """The same six, but max_batch_size is 4 and the delay is 100 ms. Which batches leave?"""
    configured(server, 4, max_queue_delay_microseconds=100_000)
    sizes, said = sizes_of(server, 6, within_ms=80)
    assert answer == sizes, OTHER
    return said


@nt.lessons.exercise(
    example="'full'",
    solution="'delay'",
    hint="No other request comes. What else can end its wait?",
    mistakes={
        "'full'": "Two rows are not four.",
        "'idle'": "It was idle all the time, but now there is a delay.",
    },
)
def why_the_last_left(answer, server):
    """Why does the second of these batches leave: 'full', 'delay', 'preferred' or 'idle'?"""
    configured(server, 4, max_queue_delay_microseconds=100_000)
    last = nt.lessons.last_batches(server, "slow", request_count=6, within_ms=80)[-1]
    words = {
        "max_batch_size": "full",
        "max_queue_delay": "delay",
        "preferred_batch_size": "preferred",
        "no_delay": "idle",
    }
    happened = words.get(last.reason, last.reason)
    assert answer in (happened, last.reason), "The scheduler had another reason."
    return f"Its oldest request had waited {last.queue_ns / 1e6:.0f} ms."


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[4, 2]",
    hint="As soon as the waiting requests make a preferred size, the batch leaves, although it is not full.",
    mistakes={
        "[6]": "Six fit into max_batch_size 8, but the batch does not wait for them: 4 is preferred.",
        "[1, 5]": "There is a delay: the first one waits.",
    },
)
def with_a_preferred_size(answer, server):
    """Six requests, max_batch_size 8, preferred_batch_size [ 4 ], delay 100 ms. Which batches leave?"""
    configured(server, 8, max_queue_delay_microseconds=100_000)
    sizes, said = sizes_of(server, 6, within_ms=80)
    assert answer == sizes, OTHER
    return said


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
    solution="""
        %%triton_config slow
        name: "slow"
        max_batch_size: 4
        dynamic_batching { max_queue_delay_microseconds: 300000 }
    """,
    hint="A batch of four leaves at once if four is all that it can hold, and if the first one waits for the others.",
)
def two_full_batches(server):
    """Configure `slow` so that eight requests which come at once leave as two batches of four.

    The check sends them and looks.
    """
    x = np.full((1, 1), 20, np.float32)
    for future in [server.submit("slow", {"MS": x}) for _ in range(8)]:
        future.result()
    sizes, said = sizes_of(server, 8, within_ms=200)
    assert sizes == [4, 4], said
    return said


@nt.lessons.predict_batches
def while_another_runs():
    """Requests come while a batch runs, and one comes later. Which batches leave?"""
    return "batch_forms"
