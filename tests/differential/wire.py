"""Requests and responses on the wire as plain data: what can be compared, without what differs by nature.

Over HTTP with one thread (``--http-thread-count=1``) tritonserver takes requests in the order in
which they came: the thread that reads them puts each into its queue. Over gRPC there are two such
threads, and a batcher that looks for requests again and again keeps one of them from its queue for
milliseconds, until the other has overtaken it.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = [
    "GRPC_STATUS",
    "counts_of",
    "difference",
    "exchange",
    "plain",
    "protocol_name",
    "raw_bytes",
    "read_message",
    "sum_of",
    "words",
]

GRPC_STATUS = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "UNIMPLEMENTED": "UNSUPPORTED",
    **{
        name: name
        for name in (
            "ALREADY_EXISTS", "CANCELLED", "INTERNAL", "NOT_FOUND", "UNAVAILABLE", "UNKNOWN"
        )
    },
}  # fmt: skip

_PROTOCOL_NAMES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "object": "BYTES",
}  # fmt: skip


def protocol_name(dtype: np.dtype[Any]) -> str:
    return _PROTOCOL_NAMES[dtype.name]


def raw_bytes(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in array.ravel())


def read_message(response: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a gRPC response's outputs and parameters as plain data."""
    outputs = {
        tensor.name: (tensor.datatype, list(tensor.shape), values_of(tensor.datatype, raw))
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return outputs, _parameters(response.parameters)


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in parameters.items()
    }


def plain(arrays: Mapping[str, Any]) -> dict[str, Any]:
    from nbtriton.model.tensors import datatype_of, shape_of, to_numpy

    return {
        name: (datatype_of(a), list(shape_of(a)), to_numpy(a).ravel().tolist())
        for name, a in arrays.items()
    }


def values_of(datatype: str, raw: bytes) -> list[Any]:
    if datatype != "BYTES":
        (name,) = (k for k, v in _PROTOCOL_NAMES.items() if v == datatype)
        return np.frombuffer(raw, dtype=name).tolist()
    values, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        values.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return values


def words(message: str) -> str:
    """Drop from a message what differs by nature.

    Folders of file names.
    """
    return re.sub(r"[^\s'\"(]*/([\w.]+\.py)", r"\1", message)


# --- HTTP --------------------------------------------------------------------------------------

_HTTP_STATUS = {
    400: "INVALID_ARG", 404: "NOT_FOUND", 409: "ALREADY_EXISTS", 499: "CANCELLED",
    500: "INTERNAL", 501: "UNSUPPORTED", 503: "UNAVAILABLE",
}  # fmt: skip
_LENGTH = "Inference-Header-Content-Length"


def exchange(url: str, request: Any, timeout_s: float) -> tuple[str, str, Any, Any]:
    """Send a gRPC request's message over HTTP.

    Returns
    -------
    status, message : str
        ``"OK"`` and nothing, or what is wrong.
    outputs, parameters : dict
        As `read_message` returns them.
    """
    head, body = _http_request(request)
    path = f"/v2/models/{request.model_name}"
    if request.model_version:
        path += f"/versions/{request.model_version}"
    connection = http.client.HTTPConnection(url, timeout=timeout_s)
    try:
        connection.request("POST", path + "/infer", head + body, {_LENGTH: str(len(head))})
        reply = connection.getresponse()
        content = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        return _HTTP_STATUS[reply.status], json.loads(content)["error"], {}, {}
    length = int(reply.headers.get(_LENGTH, len(content)))
    document, rest = json.loads(content[:length]), content[length:]
    outputs = {}
    for tensor in document.get("outputs", []):
        size = tensor["parameters"]["binary_data_size"]
        raw, rest = rest[:size], rest[size:]
        datatype = tensor["datatype"]
        outputs[tensor["name"]] = (datatype, tensor["shape"], values_of(datatype, raw))
    return "OK", "", outputs, document.get("parameters", {})


def _http_request(request: Any) -> tuple[bytes, bytes]:
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": len(raw)},
        }
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    ]
    document = {
        "id": request.id,
        "inputs": inputs,
        "parameters": {**_parameters(request.parameters), "binary_data_output": True},
    }
    if request.outputs:
        binary = {"binary_data": True}
        document["outputs"] = [{"name": t.name, "parameters": binary} for t in request.outputs]
        del document["parameters"]["binary_data_output"]
    return json.dumps(document).encode(), b"".join(request.raw_input_contents)


# --- statistics --------------------------------------------------------------------------------


def sum_of(versions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the statistics of the only version, or of all as if they were one."""
    if len(versions) == 1:
        return versions[0]
    together: dict[str, Any] = {"inference_stats": {}, "batch_stats": []}
    for statistics in versions:
        for key in ("inference_count", "execution_count"):
            together[key] = together.get(key, 0) + int(statistics.get(key, 0))
        for key, value in statistics["inference_stats"].items():
            count = together["inference_stats"].get(key, {"count": 0})["count"]
            together["inference_stats"][key] = {"count": count + value["count"]}
    return together


def counts_of(statistics: dict[str, Any]) -> dict[str, Any]:
    """Keep the counts of a statistics answer; times differ by nature."""
    counts = {
        "inference_count": statistics.get("inference_count", 0),
        "execution_count": statistics.get("execution_count", 0),
        **{key: value["count"] for key, value in statistics["inference_stats"].items()},
    }
    for entry in statistics["batch_stats"]:
        for part in ("compute_input", "compute_infer", "compute_output"):
            counts[f"batch {entry['batch_size']} {part}"] = entry[part]["count"]
    return counts


def difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    changes = {key: value - before.get(key, 0) for key, value in after.items()}
    return {key: value for key, value in changes.items() if value}
