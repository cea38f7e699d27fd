"""A small client of the HTTP protocol: what the verification needs, with the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbtriton.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.tensors import (
    datatype_of,
    deserialize_bytes,
    numpy_dtype,
    serialize_bytes,
    shape_of,
    to_numpy,
)

__all__ = [
    "HttpClient",
    "Reply",
    "encode_infer",
    "error_of",
    "infer_path",
    "tensor_bytes",
    "tensor_of",
]

_BY_STATUS: dict[int, type[TritonError]] = {
    400: InvalidArgumentError,
    404: NotFoundError,
    500: InternalError,
    501: UnsupportedError,
    503: UnavailableError,
}
_HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Reply:
    """One response: its arrays by name, and what else it says."""

    outputs: Mapping[str, np.ndarray[Any, Any]]
    model_version: int
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpClient:
    """Talks to one server.

    Parameters
    ----------
    url : str
        ``host:port``.
    timeout_s : float
        Of one call; loading a model may take long.
    """

    url: str
    timeout_s: float = 120.0

    def infer(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> Reply:
        """Send one request with binary tensors.

        Raises
        ------
        TritonError
            What the server answered.
        """
        body, size = encode_infer(inputs, parameters)
        path = infer_path(name, version)
        content, length = self._post(path, body, {_HEADER_LENGTH: str(size)})
        end = int(length) if length else len(content)
        told = json.loads(content[:end])
        return Reply(
            _outputs(told.get("outputs", []), memoryview(content)[end:]),
            int(told.get("model_version", -1)),
            told.get("parameters", {}),
        )

    def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model (explicit control)."""
        body = json.dumps({"parameters": dict(parameters)}) if parameters else ""
        self._post(f"/v2/repository/models/{name}/load", body.encode())

    def config(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return a model's configuration as the server reports it."""
        path = f"/v2/models/{name}" + (f"/versions/{version}" if version != -1 else "")
        found: dict[str, Any] = json.loads(self._get(path + "/config"))
        return found

    def index(self) -> list[dict[str, str]]:
        """Return the repository index."""
        found: list[dict[str, str]] = json.loads(self._post("/v2/repository/index", b"")[0])
        return found

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics of one model or of all."""
        path = f"/v2/models/{name}/stats" if name else "/v2/models/stats"
        if version != -1:
            path = f"/v2/models/{name}/versions/{version}/stats"
        found: dict[str, Any] = json.loads(self._get(path))
        return found

    def describe(self) -> str:
        """Return the server's name and version."""
        told = json.loads(self._get("/v2"))
        return f"{told['name']} {told['version']}"

    def _get(self, path: str) -> bytes:
        return self._send(urllib.request.Request(f"http://{self.url}{path}"))[0]

    def _post(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, str]:
        return self._send(
            urllib.request.Request(
                f"http://{self.url}{path}", body, dict(headers or {}), method="POST"
            )
        )

    def _send(self, request: urllib.request.Request) -> tuple[bytes, str]:
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                return reply.read(), reply.headers.get(_HEADER_LENGTH, "")
        except urllib.error.HTTPError as error:
            raise error_of(error.code, error.read()) from None
        except OSError as error:
            raise UnavailableError(f"the server at {self.url} does not answer: {error}") from None


def infer_path(name: str, version: int = -1) -> str:
    """Return where a model's requests are sent to."""
    return f"/v2/models/{name}" + (f"/versions/{version}" if version != -1 else "") + "/infer"


def encode_infer(
    inputs: Mapping[str, Any], parameters: Mapping[str, bool | int | str] | None = None
) -> tuple[bytes, int]:
    """Return the body of a request with binary tensors both ways, and the length of its JSON."""
    described, bodies = [], []
    for tensor, value in inputs.items():
        body = tensor_bytes(value)
        described.append(
            {
                "name": tensor,
                "datatype": datatype_of(value),
                "shape": list(shape_of(value)),
                "parameters": {"binary_data_size": len(body)},
            }
        )
        bodies.append(body)
    header = json.dumps(
        {"inputs": described, "parameters": {"binary_data_output": True, **(parameters or {})}}
    ).encode()
    return header + b"".join(bodies), len(header)


def tensor_bytes(value: Any) -> bytes:
    """Return a tensor as the protocol sends it."""
    array = to_numpy(value)
    if datatype_of(value) == "BYTES":
        return serialize_bytes(array)
    return bytes(array.tobytes())


def tensor_of(datatype: str, shape: list[int], body: bytes | memoryview) -> Any:
    """Return a tensor that was sent as bytes."""
    if datatype == "BYTES":
        return deserialize_bytes(body).reshape(shape)
    return np.frombuffer(body, numpy_dtype(datatype)).reshape(shape)


def error_of(status: int, body: bytes) -> TritonError:
    """Return what an answer of a status other than 200 means."""
    return _BY_STATUS.get(status, InternalError)(_message(body))


def _message(body: bytes) -> str:
    try:
        told = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    return str(told.get("error", told)) if isinstance(told, dict) else str(told)


def _outputs(described: list[dict[str, Any]], rest: memoryview) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for output in described:
        datatype, shape = output["datatype"], output["shape"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            dtype = object if datatype == "BYTES" else numpy_dtype(datatype)
            found[output["name"]] = np.array(output.get("data", []), dtype).reshape(shape)
        else:
            found[output["name"]] = tensor_of(datatype, shape, rest[:size])
            rest = rest[size:]
    return found
