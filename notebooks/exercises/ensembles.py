"""Exercises of ``07_ensembles.ipynb``; reading on spoils them."""

import io

import numpy as np
from PIL import Image

import nbtriton as nt


def executed(server, model):
    """Count the executions of a model; the recorder keeps the newest only."""
    (statistics,) = server.statistics(model)["model_stats"]
    return int(statistics["execution_count"])


@nt.lessons.exercise(
    example="2",
    solution="3",
    hint="An ensemble has no code, so it executes nothing itself. What do its steps do?",
    mistakes={
        "1": "The client sends one request. The server makes one of it for each step.",
        "4": "The ensemble itself has no instances: it only passes tensors on.",
    },
)
def executions_of_one(answer, server):
    """How many executions does the server make of one request for `ensemble_model`?"""
    requests = server.requests("ensemble_model")
    assert requests, "Send a request first."
    steps = nt.events(server, by="request").query(f"caller == {requests[-1].number}")
    happened = steps["batch"].nunique()
    assert answer == happened, "The recorder counts another number."
    return f"One a step: {', '.join(steps['model'])}."


@nt.lessons.exercise(
    solution="""
        %%triton_ensemble ink_alone
        image = image_preprocess_model(RAW_IMAGE=IMAGE)
        SEGMENTATION = segmentation_model(FORMATTED_IMAGE=image)
    """,
    hint="A line for each step: OUTPUT = model(INPUT=tensor). The decoded picture of the first is the input of the second.",
)
def ink_alone(server):
    """Write an ensemble `ink_alone` that gives the SEGMENTATION of an IMAGE, and does nothing else."""
    assert server.is_ready("ink_alone"), "There is no model `ink_alone` yet."
    file = io.BytesIO()
    Image.fromarray(np.arange(1024, dtype=np.uint8).reshape(32, 32)).save(file, "PNG")
    image = {"IMAGE": np.array([[file.getvalue()]], object)}
    expected = server.infer("ensemble_model", image)["SEGMENTATION"]
    before = executed(server, "classification_model")
    answer = server.infer("ink_alone", image)
    assert list(answer) == ["SEGMENTATION"], f"Its outputs are {list(answer)}."
    assert np.allclose(answer["SEGMENTATION"], expected), (
        "The ink differs from that of ensemble_model."
    )
    asked = executed(server, "classification_model") - before
    assert not asked, "The row reader was executed as well, although its answer was not asked for."
    return "The same ink, and the row reader was not executed."
