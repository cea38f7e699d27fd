"""The model repository that the client programs ask: Triton's example models, of our own making.

Most exist twice, with one signature: as what Triton's own examples are, ONNX files and its identity
backend, and as Python models, which the real server that we compare with can run too.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nbtriton.backends import find_backend
from nbtriton.common.errors import TritonError

__all__ = [
    "EIGHT",
    "MODELS",
    "SEVEN",
    "has_onnx",
    "labels",
    "weights",
    "write_backend_models",
    "write_images",
    "write_models",
]

FOLDER = Path(__file__).parent
# The width and height of the pictures are no network's: they have to be resized.
_PICTURES = {"blue.jpg": (20, 40, 220), "green.png": (30, 200, 60), "red.jpg": (230, 30, 10)}


@dataclass(frozen=True, slots=True)
class Model:
    """One model: its configuration but for the backend, and what implements it.

    Attributes
    ----------
    config : str
        Text without ``name``, ``backend`` and ``platform``.
    python : str
        Its ``model.py`` in ``models/``; none for an ensemble.
    onnx : str
        The function of `tests.examples.onnx_models` that builds it; none for what is no ONNX file.
    backend : str
        One of Triton's that needs no file.
    """

    config: str
    python: str = ""
    onnx: str = ""
    backend: str = ""


def _tensor(kind: str, name: str, datatype: str, dims: str, extra: str = "") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {extra} }}\n'


def _two_by_two(datatype: str) -> str:
    return "max_batch_size: 8\n" + "".join(
        _tensor(kind, f"{kind.upper()}{index}", datatype, "16")
        for kind in ("input", "output")
        for index in (0, 1)
    )


def _control(name: str, kind: str, value: str) -> str:
    return f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {value} }} }}'


_FLAG = "int32_false_true: [ 0, 1 ]"
_START, _END, _READY = (_control(name, name, _FLAG) for name in ("START", "END", "READY"))
_NUMBERS = (
    "max_batch_size: 8\n"
    + _tensor("input", "INPUT", "INT32", "1")
    + _tensor("output", "OUTPUT", "INT32", "1")
)


# Longer than a busy machine takes from one request of a client to its next.
_IDLE_US = 60_000_000


def _oldest(corrid_type: str) -> str:
    corrid = _control("CORRID", "CORRID", f"data_type: TYPE_{corrid_type}")
    return f"""{_NUMBERS}
sequence_batching {{
  max_sequence_idle_microseconds: {_IDLE_US}
  oldest {{ max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }}
  {_START} {_END} {_READY} {corrid}
}}
"""


_INCEPTION_OUTPUT = "InceptionV3/Predictions/Softmax:0"
_LABELS = 'label_filename: "labels.txt"'

MODELS: dict[str, Model] = {
    "simple": Model(_two_by_two("INT32"), "add_sub", "add_sub"),
    "simple_int8": Model(_two_by_two("INT8"), "add_sub", "add_sub"),
    "simple_string": Model(_two_by_two("STRING"), "add_sub", "add_sub"),
    "simple_identity": Model(
        "max_batch_size: 8\n"
        + _tensor("input", "INPUT0", "STRING", "-1")
        + _tensor("output", "OUTPUT0", "STRING", "-1"),
        "identity",
    ),
    "simple_sequence": Model(
        f"{_NUMBERS} sequence_batching {{ max_sequence_idle_microseconds: {_IDLE_US} {_START} {_READY} }} "
        "instance_group { kind: KIND_CPU }",
        "sequence",
        "sequence",
    ),
    "simple_dyna_sequence": Model(
        _oldest("UINT64") + "instance_group { count: 2 kind: KIND_CPU }", "sequence", "sequence"
    ),
    "densenet_onnx": Model(
        "max_batch_size: 0\n"
        + _tensor(
            "input", "data_0", "FP32", "3, 224, 224",
            "format: FORMAT_NCHW reshape { shape: [ 1, 3, 224, 224 ] }",
        )
        + _tensor(
            "output", "fc6_1", "FP32", "1000", f"reshape {{ shape: [ 1, 1000, 1, 1 ] }} {_LABELS}"
        ),
        "classifier",
        "classifier",
    ),
    "inception_onnx": Model(
        "max_batch_size: 0\n"
        + _tensor(
            "input", "input:0", "FP32", "299, 299, 3",
            "format: FORMAT_NHWC reshape { shape: [ 1, 299, 299, 3 ] }",
        )
        + _tensor(
            "output", _INCEPTION_OUTPUT, "FP32", "1001", f"reshape {{ shape: [ 1, 1001 ] }} {_LABELS}"
        ),
        "classifier",
        "classifier",
    ),
    # Not among Triton's example models, but asked by its example programs:
    "simple_string_dyna_sequence": Model(
        _oldest("STRING") + "instance_group { kind: KIND_CPU }", "string_sequence"
    ),
    "custom_identity_int32": Model(
        "max_batch_size: 8\n"
        + _tensor("input", "INPUT0", "INT32", "-1")
        + _tensor("output", "OUTPUT0", "INT32", "-1"),
        "identity",
        backend="identity",
    ),
    "inception_batched": Model(
        "max_batch_size: 8\n"
        + _tensor("input", "IMAGE", "FP32", "299, 299, 3", "format: FORMAT_NHWC")
        + _tensor("output", "Softmax", "FP32", "1001", _LABELS),
        "classifier",
        "classifier",
    ),
    "decode_image": Model(
        "max_batch_size: 8\n"
        + _tensor("input", "FILE", "STRING", "1")
        + _tensor("output", "IMAGE", "FP32", "299, 299, 3"),
        "decode",
    ),
    "preprocess_inception_ensemble": Model(
        'platform: "ensemble" max_batch_size: 8\n'
        + _tensor("input", "INPUT", "STRING", "1")
        + _tensor("output", "OUTPUT", "FP32", "1001")
        + """
ensemble_scheduling {
  step {
    model_name: "decode_image" model_version: -1
    input_map { key: "FILE" value: "INPUT" }
    output_map { key: "IMAGE" value: "pixels" }
  }
  step {
    model_name: "inception_batched" model_version: -1
    input_map { key: "IMAGE" value: "pixels" }
    output_map { key: "Softmax" value: "OUTPUT" }
  }
}
"""
    ),
}  # fmt: skip

# What the model control programs want to count: over gRPC the folder of Triton's examples as it is,
# over HTTP one model less.
EIGHT = tuple(MODELS)[:8]
SEVEN = EIGHT[:7]


def weights(classes: int) -> np.ndarray:
    """Return the weights of the stand-in networks: FP32 [3, classes], the same ones every time."""
    # Small: pixels go up to 255, and a softmax over scores that far apart is 1 for one class alone.
    return (np.random.default_rng(classes).standard_normal((3, classes)) / 64).astype(np.float32)


def labels(classes: int) -> list[str]:
    """Return names for classes; some hold what real labels hold: spaces and commas."""
    return [f"CLASS {index}, SO NAMED" for index in range(classes)]


def write_models(directory: Path, names: Iterable[str] = MODELS, *, python: bool) -> None:
    """Write models as a repository.

    Parameters
    ----------
    directory : Path
        Created if it does not exist.
    names : iterable of str
    python : bool
        Whether all are Python models.
    """
    for name in names:
        model = MODELS[name]
        folder = directory / name
        version = folder / "1"
        version.mkdir(parents=True)
        header = f'name: "{name}"\n'
        if model.backend and not python:
            header += f'backend: "{model.backend}"\n'
        elif model.onnx and not python:
            from tests.examples import onnx_models

            header += 'platform: "onnxruntime_onnx"\n'
            (version / "model.onnx").write_bytes(getattr(onnx_models, model.onnx)(name))
        elif model.python:
            header += 'backend: "python"\n'
            shutil.copyfile(FOLDER / "models" / f"{model.python}.py", version / "model.py")
        (folder / "config.pbtxt").write_text(header + model.config)
        if "label_filename" in model.config:
            classes = 1000 if name == "densenet_onnx" else 1001
            (folder / "labels.txt").write_text("\n".join(labels(classes)))
            if python:
                np.save(version / "weights.npy", weights(classes))


def has_onnx() -> bool:
    """Return whether ONNX files can be written, and run by nbtriton."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
        return False
    try:
        find_backend("onnxruntime")
    except TritonError:
        return False
    return True


def write_backend_models(directory: Path, names: Iterable[str] = ()) -> None:
    """Write our models of the python backend's examples as a repository; all that can load here.

    Parameters
    ----------
    names : iterable of str
        Only these.
    """
    for folder in sorted((FOLDER / "python_backend").iterdir()):
        if names and folder.name not in names:
            continue
        if folder.name == "jax" and importlib.util.find_spec("jax") is None:
            continue
        written = directory / folder.name
        (written / "1").mkdir(parents=True)
        for file in folder.glob("*.*"):
            target = written / "1" if file.name == "model.py" else written
            shutil.copyfile(file, target / file.name)


def write_images(directory: Path) -> list[Path]:
    """Write small pictures for the image programs to classify; returns them in order of name."""
    from PIL import Image

    directory.mkdir(parents=True)
    for number, (name, colour) in enumerate(_PICTURES.items()):
        image = Image.new("RGB", (320 + 16 * number, 200), colour)
        image.putpixel((3, 5), (255, 255, 255))
        image.save(directory / name)
    return sorted(directory.iterdir())
