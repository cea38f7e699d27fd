"""Exercise of ``17_street.ipynb``; reading on spoils it."""

import numpy as np

import nbtriton as nt


@nt.lessons.exercise(
    example="1",
    solution="2",
    hint="How long is it hidden, and for how many frames is a lost track kept?",
    mistakes={
        "1": "For that its track would have to live through the ten frames without a box.",
        "3": "It is lost once only: before and after that each box finds the track of the frame before.",
        "30": "A number belongs to a track, not to a frame.",
    },
)
def the_hidden_car(answer, server):
    """A car is seen for 10 frames, is hidden for 10, and is seen for 10 more. How many numbers does `forgetful` give it?"""
    given = set()
    for frame in range(30):
        seen = not 10 <= frame < 20
        left = 10.0 + 5.0 * frame
        boxes = np.array([[[left, 40, left + 50, 70]]], np.float32)[:, : int(seen)]
        found = server.infer(
            "forgetful",
            {"BOXES": boxes, "SCORES": np.full((1, int(seen)), 0.9, np.float32)},
            sequence_id=14,
            sequence_start=frame == 0,
            sequence_end=frame == 29,
        )
        given |= set(found["TRACK_IDS"].ravel().tolist()) - {0}
    assert answer == len(given), "It gave another count."
    return f"It gave {len(given)}: {', '.join(map(str, sorted(given)))}. With buffer=30 it is one."
