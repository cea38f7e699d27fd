"""Exercises of ``11_configuration.ipynb``; reading on spoils them."""

import numpy as np

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


@nt.lessons.exercise(
    solution="""
        %%triton_config alarm
        version_policy { specific { versions: [ 2 ] } }
    """,
    hint="The policy is called `specific` and has a list of versions.",
)
def version_2_alone(server):
    """Serve version 2 of `alarm` and no other one."""
    two_degrees = {"CELSIUS": np.array([2], np.float32)}
    answers = {}
    for version in (1, 2):
        try:
            answer = server.infer("alarm", two_degrees, version=version)
        except nt.TritonError as error:
            answers[version] = error.message
        else:
            answers[version] = bool(answer["FROST"].item())
    assert answers[2] is True, f"Version 2 says: {answers[2]}"
    assert isinstance(answers[1], str), "Version 1 still answers."
    return f"Version 1: {answers[1]}."
