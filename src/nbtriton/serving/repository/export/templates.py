"""Texts for ``model.py``: classes that call a function, an estimator or a TorchScript file."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ESTIMATOR", "TORCH", "wrapper"]

_CONVERTED = {"torch": "TORCH.from_numpy", "cupy": "CUPY.asarray"}
_HOST = """\
                array = array.get() if hasattr(array, "get") else array
                array = array.cpu() if hasattr(array, "cpu") else array
"""

# Calls a function once per batch, by keyword, with the requests' tensors joined along axis 0.
_FUNCTION = '''\
class TritonPythonModel:
    """Calls `FUNCTION` with the requests' tensors joined along axis 0."""

    def initialize(self, args):
        config = JSON.loads(args["model_config"])
        self.batches = config["max_batch_size"] > 0
        self.outputs = {
            tensor["name"]: PB_UTILS.triton_string_to_numpy(tensor["data_type"])
            for tensor in config["output"]
        }

    def gather(self, requests):
        tensors = [{t.name(): t.as_numpy() for t in request.inputs()} for request in requests]
        batch = {name: NP.concatenate([found[name] for found in tensors]) for name in tensors[0]}
        CONVERT
        return batch, [len(next(iter(found.values()))) if self.batches else 0 for found in tensors]

    def scatter(self, result, requests, sizes):
        if not isinstance(result, dict):
            values = result if isinstance(result, tuple) else (result,)
            result = dict(zip(self.outputs, values, strict=True))
        responses, start = [], 0
        for request, size in zip(requests, sizes):
            parts = []
            for name, dtype in self.outputs.items():
                if name not in request.requested_output_names():
                    continue
                array = result[name]
                HOST
                if not isinstance(array, NP.ndarray) or dtype is NP.object_:
                    array = NP.asarray(array, dtype)
                if self.batches:
                    array = array[start : start + size]
                parts.append(PB_UTILS.Tensor(name, NP.ascontiguousarray(array)))
            start += size
            responses.append(PB_UTILS.InferenceResponse(parts))
        return responses
'''

_BATCH = """
    def execute(self, requests):
        if self.batches:
            return self.run(requests)
        return [self.run([request])[0] for request in requests]

    def run(self, requests):
        batch, sizes = self.gather(requests)
        return self.scatter(FUNCTION(**batch), requests, sizes)
"""

_STREAM = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                batch, sizes = self.gather([request])
                for result in VALUES:
                    if request.is_cancelled():
                        break
                    sender.send(self.scatter(result, [request], sizes)[0])
            except Exception as error:
                sender.send(PB_UTILS.InferenceResponse(error=PB_UTILS.TritonError(str(error))))
            sender.send(flags=PB_UTILS.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

ESTIMATOR = """\
import json
import pickle
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

MODEL = pickle.loads((Path(__file__).parent / "model.pkl").read_bytes())


def predict(**inputs):
    batch = with_columns(inputs[GIVEN])
    return {CALLS}


def with_columns(batch):
    columns = getattr(MODEL, "feature_names_in_", None)
    if columns is None or batch.ndim != 2 or batch.shape[1] != len(columns):
        return batch
    import pandas as pd

    return pd.DataFrame(batch, columns=columns)


def rows(result):
    array = np.asarray(result)
    return array.reshape(-1, 1) if array.ndim == 1 else array
"""

TORCH = '''\
import json
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Runs FILENAME, which gets the inputs and gives the outputs in the configuration's order."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.batches = config["max_batch_size"] > 0
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        gpu = args["model_instance_kind"] == "GPU"
        self.device = f"cuda:{args['model_instance_device_id']}" if gpu else "cpu"
        file = Path(__file__).parent / "FILENAME"
        self.module = torch.jit.load(str(file), map_location=self.device).eval()

    def execute(self, requests):
        if self.batches:
            return self.run(requests)
        return [self.run([request])[0] for request in requests]

    def run(self, requests):
        tensors = [{t.name(): t.as_numpy() for t in request.inputs()} for request in requests]
        joined = [np.concatenate([found[name] for found in tensors]) for name in self.inputs]
        batch = [torch.from_numpy(array).to(self.device) for array in joined]
        with torch.inference_mode():
            results = self.module(*batch)
        if torch.is_tensor(results):
            results = [results]
        sizes = [len(found[self.inputs[0]]) for found in tensors]
        split = [r.cpu().split(sizes) if self.batches else [r.cpu()] for r in results]
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, parts[index].contiguous().numpy())
                    for name, parts in zip(self.outputs, split, strict=True)
                    if name in request.requested_output_names()
                ]
            )
            for index, request in enumerate(requests)
        ]
'''


def wrapper(function: str, kinds: Mapping[str, str], *, streams: bool, once: bool) -> str:
    """Return a class that calls a function, with modules as upper-case names to be replaced.

    Parameters
    ----------
    function : str
    kinds : mapping of str to str
        Array kind of each input: ``"torch"``, ``"cupy"``, or any other for NumPy.
    streams : bool
        Whether the function yields the responses of a decoupled model.
    once : bool
        Whether it returns a single response instead.
    """
    lines = "".join(
        f"        if {name!r} in batch:\n            batch[{name!r}] = {_CONVERTED[kind]}(batch[{name!r}])\n"
        for name, kind in kinds.items()
        if kind in _CONVERTED
    )
    text = _FUNCTION + (_STREAM if streams else _BATCH)
    values = "(FUNCTION(**batch),)" if once else "FUNCTION(**batch)"
    text = text.replace("VALUES", values).replace("FUNCTION", function)
    host = _HOST if lines else ""
    return text.replace("        CONVERT\n", lines).replace("                HOST\n", host)
