"""Exercise of ``11_readability.ipynb``; reading on spoils it."""

import numpy as np

import nbtriton as nt


@nt.lessons.exercise(
    example="1",
    solution="5",
    hint="BERT has two inputs, the trees have one. What do the two steps behind the host's have, and where is the mean?",
    mistakes={
        "3": "These go to the GPU. The scores have to come back: the mean is computed on the host.",
        "2": "These come back. What do BERT and the trees compute on?",
    },
)
def tensors_that_cross(answer, server):
    """`bert-large` and `cuml` are on the GPU, `preprocess` and `postprocess` on the host.

    How many tensors of one request cross between host and GPU? (The check counts them.)
    """
    nt.copies(server, clear=True)
    texts = np.array([[b"The cat sat on the mat."]], dtype=object)
    one = {"excerpt": texts, "BERT_WEIGHT": np.full((1, 1), 0.5, np.float32)}
    nt.perf(server, "ensemble_all", inputs=one, placement="models-on-gpu", request_count=2)
    copies = nt.copies(server, clear=True).query("requests > 0")  # without the weights
    edges = set(zip(copies["writer"], copies["reader"], strict=True))
    assert edges, "Nothing crossed: has the server a GPU? (%triton_server --gpus simulated:1)"
    assert answer == len(edges), "The server counted another number: the table below has each."
    return "Three on the way there, two on the way back."
