"""The models that both servers run in the tests of the endpoints: one repository for all."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MODELS", "WORDS_CONFIG", "load_all", "write_all"]

# A text model for the OpenAI endpoint, without its code.
WORDS_CONFIG = """
name: "words" backend: "python" max_batch_size: 0
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
input { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
input { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "num_output_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
"""

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        import json
        config = json.loads(args["model_config"])
        self.pairs = list(zip([i["name"] for i in config["input"]], [o["name"] for o in config["output"]]))

    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = []
            for into, out in self.pairs:
                tensor = pb_utils.get_input_tensor_by_name(request, into)
                if tensor is not None:
                    tensors.append(pb_utils.Tensor(out, tensor.as_numpy()))
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

FAILING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("not today", pb_utils.TritonError.INTERNAL)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""

STREAMING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            sender = request.get_response_sender()
            if count < 0:
                error = pb_utils.TritonError("bad count", pb_utils.TritonError.INTERNAL)
                sender.send(pb_utils.InferenceResponse(error=error))
            for index in range(min(max(0, count), 100_000)):
                tensor = pb_utils.Tensor("OUT", np.array([index], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""

PARAMETERS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", np.array([request.parameters().encode()], dtype=object))]
            )
            for request in requests
        ]
"""


def _tensors(*pairs: tuple[str, str, str], kind: str, extra: str = "") -> str:
    return "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {extra} }}\n'
        for name, datatype, dims in pairs
    )


def _echo(datatype: str, dims: str, batch: int = 8, extra: str = "") -> str:
    return (
        f'backend: "python" max_batch_size: {batch}\n'
        + _tensors(("IN", datatype, dims), kind="input")
        + _tensors(("OUT", datatype, dims), kind="output")
        + extra
    )


_CORRELATED = """
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
}
"""

# name -> (config, source)
MODELS: dict[str, tuple[str, str]] = {
    "two": (
        'backend: "python" max_batch_size: 8\n'
        + _tensors(("INPUT0", "FP32", "4"), ("INPUT1", "FP32", "4"), kind="input")
        + _tensors(("OUTPUT0", "FP32", "4"), ("OUTPUT1", "FP32", "4"), kind="output"),
        ECHO,
    ),
    "one": (_echo("FP32", "4"), ECHO),
    "plain": (_echo("FP32", "4", 0), ECHO),
    "flexible": (_echo("INT32", "-1", 0), ECHO),
    "wide": (_echo("FP32", "-1, -1", 0), ECHO),
    "words": (_echo("STRING", "1"), ECHO),
    "text": (_echo("STRING", "-1", 0), ECHO),
    "single_word": (_echo("STRING", "1", 0), ECHO),
    "half": (_echo("FP16", "2"), ECHO),
    **{
        f"all_{datatype.lower()}": (_echo(datatype, "-1", 0), ECHO)
        for datatype in (
            "BOOL",
            "UINT8",
            "UINT16",
            "UINT32",
            "UINT64",
            "INT8",
            "INT16",
            "INT32",
            "INT64",
            "FP16",
            "FP32",
            "FP64",
            "STRING",
        )
    },
    "all_bf16": (_echo("BF16", "-1", 0), ECHO),
    "optional": (
        'backend: "python" max_batch_size: 8\n'
        + _tensors(("INPUT0", "FP32", "4"), kind="input")
        + _tensors(("INPUT1", "FP32", "4"), kind="input", extra="optional: true")
        + _tensors(("OUTPUT0", "FP32", "4"), ("OUTPUT1", "FP32", "4"), kind="output"),
        ECHO,
    ),
    "reshaped": (
        """
        backend: "python" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ 2, 2 ] }
        """,
        ECHO,
    ),
    "sequence": (_echo("FP32", "4", 8, _CORRELATED), ECHO),
    "failing": (_echo("FP32", "4"), FAILING),
    "stream": (
        'backend: "python" max_batch_size: 0\n'
        + _tensors(("IN", "INT32", "1"), kind="input")
        + _tensors(("OUT", "INT32", "1"), kind="output")
        + "model_transaction_policy { decoupled: true }",
        STREAMING,
    ),
    "parameters": (
        'backend: "python" max_batch_size: 0\n'
        + _tensors(("IN", "FP32", "1"), kind="input")
        + _tensors(("OUT", "STRING", "1"), kind="output"),
        PARAMETERS,
    ),
    "labelled": (
        'backend: "python" max_batch_size: 8\n'
        + _tensors(("IN", "FP32", "3"), kind="input")
        + _tensors(("OUT", "FP32", "3"), kind="output", extra='label_filename: "labels.txt"'),
        ECHO,
    ),
}


def write_all(repository: Path) -> None:
    """Lay the models out as a repository."""
    for name, (config, source) in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (folder.parent / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
        (folder / "model.py").write_text(source)
        if "labels.txt" in config:
            (folder.parent / "labels.txt").write_text("zero\none\ntwo\n")


def load_all(server: object, repository: Path, names: tuple[str, ...]) -> None:
    """Load models of the repository into one of our servers."""
    for name in names:
        folder = repository / name
        server.load((folder / "config.pbtxt").read_text(), folder / "1" / "model.py")  # type: ignore[attr-defined]
