"""Exercise of ``14_lifecycle.ipynb``; reading on spoils it."""

import numpy as np

import nbtriton as nt


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
