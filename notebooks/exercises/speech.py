"""Exercises of ``18_speech.ipynb``; reading on spoils them."""

import numpy as np

import nbtriton as nt


@nt.lessons.exercise(
    example="3",
    solution="6",
    hint="One comes from outside. How many does the ensemble send, and to whom?",
    mistakes={
        "5": "The question itself is a request, too.",
        "1": "One comes from outside; the ensemble sends one to each of its steps.",
    },
)
def requests_for_one_question(answer, server):
    """How many requests does the server handle for one question, those that it sends to itself included?"""
    asked = server.requests("conversation")
    assert asked, "Ask a question first."
    callers = nt.events(server, by="request")["caller"]
    happened = 1 + int((callers == asked[-1].number).sum())
    assert answer == happened, "The recorder counts another number."
    return "One for the conversation and one for each step: sound goes in and out once."


@nt.lessons.exercise(
    example="100",
    solution="201",
    hint="The spectrogram is of the resampled sound: 16,000 samples a second, a window every 160 of them.",
    mistakes={
        "200": "The first window stands at the beginning and the last one at the end: as with fence posts, one more.",
        "100": "A window every 160 samples, but of which sound: that of the phone, or the resampled one?",
        "101": "A window every 160 samples, but of which sound: that of the phone, or the resampled one?",
    },
)
def windows_of_two_seconds(answer, server):
    """Two seconds of sound from the phone: how many windows has its spectrogram?"""
    sound = np.zeros((1, 16000), np.float32)
    found = server.infer("ears", {"SOUND": sound})["MEL"].shape[2]
    assert answer == found, "The model `ears` says another number."
    return "32,000 samples after `resample`, a window every 160, and one more."


@nt.lessons.exercise(
    solution="""
        %%triton_ensemble conversation --output HEARD,SAID
        sound = resample(AUDIO=QUESTION)
        mel = mel_spectrogram(AUDIO=sound)
        HEARD = recognizer(MEL=mel)
        SAID = answerer(TEXT=HEARD)
        voice = speaker(TEXT=SAID)
        ANSWER = to_phone(AUDIO=voice)
    """,
    hint="The speaker's sound gets another name, and one more line makes ANSWER of it. The other lines stay.",
)
def the_answer_fits_the_phone(server):
    """Let `conversation` answer with 8,000 samples a second, by one more line with `to_phone`.

    The check asks a question and counts the samples of the answer.
    """
    found = server.infer("conversation", {"QUESTION": np.zeros((1, 16000), np.float32)})
    spoken = server.infer("speaker", {"TEXT": found["SAID"]})["AUDIO"].shape[1]
    samples = found["ANSWER"].shape[1]
    assert samples == -(-spoken // 2), (
        f"The answer has {samples} samples of the {spoken} that the speaker made."
    )
    return f"{spoken} samples of the speaker became {samples}."
