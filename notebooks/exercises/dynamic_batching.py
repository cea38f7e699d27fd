"""Exercises of ``03_dynamic_batching.ipynb``; reading on spoils them."""

import numpy as np

import nbtriton as nt

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
