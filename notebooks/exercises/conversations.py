"""Exercises of ``09_conversations.ipynb``; reading on spoils them."""

import numpy as np

import nbtriton as nt
from nbtriton.extensions.lessons import sent_within


def conversations_of(server, requests):
    """Return the conversations in each of the last executions, in order."""
    batches = nt.lessons.last_batches(server, "chat", request_count=requests)
    numbers = sorted(number for batch in batches for number in batch.requests)
    # They were sent in turn: 1, 2, 3, 1, 2, 3, ...
    return [sorted(numbers.index(number) % 3 + 1 for number in batch.requests) for batch in batches]


def the_third_began(answer, server):
    """Compare an answer with the execution in which conversation 3 began, 1 for the first, and say what was seen."""
    executions = conversations_of(server, 9)
    sent_within(server.requests("chat")[-9:], 25)
    happened = next(i for i, members in enumerate(executions, 1) if 3 in members)
    assert answer == happened, "The recorder saw it begin in another execution."
    return f"The executions had the conversations {executions}."


@nt.lessons.exercise(
    example="1",
    solution="4",
    hint="There are two slots. What ends when conversation 1 says its third word, and in which execution is that?",
    mistakes={
        "1": "The first execution has only the very first word: the others came while it ran.",
        "2": "Conversations 1 and 2 have the two slots. Number 3 has none yet, although its first word has come.",
        "3": "In the third execution conversation 1 ends: its slot is free after that.",
    },
)
def the_third_begins(answer, server):
    """Two slots, three conversations of three words each. In which execution (1 is the first) does number 3 begin?"""
    return the_third_began(answer, server)


@nt.lessons.exercise(
    example="1",
    solution="2",
    hint="There are four candidates now, so all three conversations are candidates from the start.",
    mistakes={
        "4": "That was with two slots: here no conversation has to end first.",
        "1": "When the first word came, nothing else was there, and there is no delay.",
    },
)
def the_third_begins_with_oldest(answer, server):
    """The oldest strategy, four candidates, the same words. In which execution does number 3 begin?"""
    return the_third_began(answer, server)


@nt.lessons.exercise(
    example="1",
    solution="6",
    hint="Does `chat` get the correlation id of the request for the ensemble?",
    mistakes={
        "2": "The ensemble passes the correlation id and the flags on to each of its steps: `chat` remembers.",
        "4": "The second text has words, too.",
    },
)
def said_through_an_ensemble(answer, server):
    """A conversation says "hello how are you", then "fine thanks", to the ensemble `listener`. What is its second answer?

    (The check sends both.)
    """
    assert server.is_ready("listener"), "Run the cells above first."
    for number, text in enumerate(("hello how are you", "fine thanks")):
        said = server.infer(
            "listener",
            {"TEXT": [[text]]},
            sequence_id=9,
            sequence_start=number == 0,
            sequence_end=number == 1,
        )
    assert answer == said["SO_FAR"].item(), "The model counted another number."
    return "Four words and two: the ensemble itself keeps nothing, its step does."


@nt.lessons.exercise(
    solution="""
        %%triton_config chat
        name: "chat"
        max_batch_size: 2
        sequence_batching { direct { } max_sequence_idle_microseconds: 200000 }
    """,
    hint="A sequence that sends nothing for max_sequence_idle_microseconds loses its slot. The default is a second.",
)
def forgotten_conversations(server):
    """Configure `chat` so that a conversation without an END loses its slot after 0.2 s.

    The check begins two and leaves them; a third one wants a slot. It measures how long that one waits.
    """
    futures = [
        server.submit(
            "chat", {"WORDS": np.ones((1, 1), np.int32)}, sequence_id=number,
            sequence_start=True, sequence_end=number == 903,
        )
        for number in (901, 902, 903)
    ]  # fmt: skip
    for future in futures:
        future.result()
    idle = server.config("chat").sequence_batching.max_sequence_idle_microseconds
    waited = max(server.requests("chat")[-3:], key=lambda one: one.answered_ns)
    waited_ms = (waited.answered_ns - waited.arrival_ns) / 1e6
    # Longer than that it may wait on any machine; less it cannot, where both slots are taken.
    direct = server.config("chat").sequence_batching.WhichOneof("strategy_choice") != "oldest"
    assert direct, "`oldest` has no slots to lose: the strategy is `direct`."
    sent_within(server.requests("chat")[-3:], 40)
    assert waited_ms > 150, (
        f"The third waited for {waited_ms:.0f} ms only: `chat` has more than two slots."
    )
    assert idle == 200_000, (
        f"The third waited for {waited_ms:.0f} ms: a slot is lost after {idle / 1000:.0f} ms."
    )
    return f"The third had its answer after {waited_ms:.0f} ms."
