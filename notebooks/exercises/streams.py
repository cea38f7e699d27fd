"""Exercises of ``10_streams.ipynb``; reading on spoils them."""

import numpy as np

import nbtriton as nt

TYPE_INT32 = 8  # of config.pbtxt


@nt.lessons.exercise(
    example="5",
    solution="31",
    hint="One instance, and `execute` returns only after the last word. How many words are before the fourth reader?",
    mistakes={
        "1": "Only the first reader has a word after one step: the instance is taken until its stream ends.",
        "4": "The streams do not take turns: `execute` of the first one returns after all of its words.",
        "30": "These are the words of the three before. The fourth reader's own first word is a step as well.",
    },
)
def steps_until_the_fourth_reads(answer, server):
    """Four readers ask at once for 10 words each, of the one instance of `words`.

    How many words has the model written when the last of them has a first word, that one included?
    """
    streams = server.requests("words")[-4:]
    assert len(streams) == 4, "Run the four readers first."
    last = max(streams, key=lambda one: one.first_response_ns)
    before = sum(one.responses for one in streams if one.answered_ns < last.first_response_ns)
    happened = before + 1
    assert answer == happened, "The recorder counts another number."
    return "Three whole streams, then the first word of the fourth."


@nt.lessons.exercise(
    solution="""
        %%triton_model countdown
        def countdown(N: "INT32[1]") -> {"LEFT": "INT32[1]"}:
            for left in range(N.item(), 0, -1):
                yield {"LEFT": np.array([left], np.int32)}
    """,
    hint="A generator function, as `words_of` above. For N = 0 its loop just does not run.",
)
def counts_down(server):
    """Write a model `countdown`: an input N and an output LEFT, both INT32[1], no batching.

    To N = 3 it answers three times: 3, 2, 1. To N = 0 it gives no response at all, which a decoupled model may.
    """
    assert "countdown" in {model.name for model in server.models()}, (
        "There is no model `countdown`."
    )
    config = server.config("countdown")
    assert not config.max_batch_size, "It batches: leave max_batch_size out."
    types = {tensor.data_type for tensor in (*config.input, *config.output)}
    assert len(types) == 1 and config.input[0].data_type == TYPE_INT32, "N and LEFT are INT32."
    for n in (3, 0, 1):
        stream = server.stream("countdown", {"N": np.array([n], np.int32)})
        found = [int(response["LEFT"].item()) for response in stream]
        assert found == list(range(n, 0, -1)), f"To N = {n} it answered {found}."
    return "Three responses, none, and one."
