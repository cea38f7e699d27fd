"""What a model repository may hold that runs in Triton alone: what it is, what it does there, the way in Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Foreign:
    """One such thing, as a sentence.

    Attributes
    ----------
    what, does : str
        What it is, and what it does in Triton.
    way : str
        What to do instead, with the line to type.
    """

    what: str
    does: str
    way: str

    def __str__(self) -> str:
        return f"{self.what} {self.does}; here {self.way}"


# By the name in ``backend``.
FOREIGN_BACKENDS = {
    "tensorrt": Foreign(
        "a TensorRT plan", "runs a network compiled for one kind of GPU, and on that alone",
        'load the model it was built from: backend: "onnxruntime" beside its model.onnx, or '
        "server.load(config, model=module) with the torch module",
    ),
    "tensorflow": Foreign(
        "a TensorFlow model", "runs by a backend that Triton has dropped since",
        'load it as ONNX: backend: "onnxruntime" beside its model.onnx, or call tensorflow in a model.py: '
        'backend: "python"',
    ),
    "dali": Foreign(
        "a DALI pipeline", "decodes and transforms images or audio for other models",
        "take ready steps, which %triton_step lists, or do the same in a model.py with Pillow, OpenCV or "
        'torchvision: backend: "python"',
    ),
    "bls": Foreign(
        "the C++ example of business logic scripting", "calls other models from the code of a backend",
        "call them from execute: pb_utils.InferenceRequest(model_name=…, requested_output_names=[…], "
        "inputs=[…]).exec()",
    ),
    "vllm": Foreign(
        "the vLLM backend", "runs a language model by vLLM's engine, response by response",
        'call vllm in a model.py, and send each piece: request.get_response_sender().send(…), backend: "python"',
    ),
    "tensorrtllm": Foreign(
        "the TensorRT-LLM backend", "runs a language model by TensorRT-LLM's executor",
        'call the library in a model.py: backend: "python"',
    ),
}  # fmt: skip
CPP_BACKEND = Foreign(
    "a C++ backend (libtriton_….so)", "runs its models by code compiled against Triton's C API",
    "write what it computes as a class with execute: %%triton_model NAME, or a model.py with "
    'backend: "python"',
)  # fmt: skip
BATCH_STRATEGY = Foreign(
    "a custom batching library (batchstrategy.so)", "decides in C++ which requests share a batch",
    "give its five functions in Python: server.load(config, model, batching=STRATEGY)",
)  # fmt: skip
SHAPE_TENSOR = Foreign(
    "a shape tensor", "tells a TensorRT plan the shapes of its other tensors, one for a whole batch",
    "make it an input of one row a request, which execute reads: input { … data_type: TYPE_INT32 }",
)  # fmt: skip


def cpp_backend_in(folders: Iterable[Path]) -> Path | None:
    """Return the first library of a C++ backend in these folders."""
    return next(
        (path for folder in folders for path in sorted(folder.glob("libtriton_*.so"))), None
    )


def batch_strategy_in(folders: Iterable[Path]) -> Path | None:
    """Return the first library for custom batching in these folders, a version's first, as Triton looks for it."""
    places = (folder / "batchstrategy.so" for folder in folders)
    return next((place for place in places if place.exists()), None)
