"""Rows 11 and 12: BYTES tensors, binary and as JSON."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.examples.clients.infer import LEFT, RIGHT
from tests.examples.site import Site


def texts(numbers: np.ndarray) -> np.ndarray:
    """Return numbers as decimal texts, in an object array of bytes."""
    return np.array([str(n).encode() for n in numbers.flat], np.object_).reshape(numbers.shape)


def http_string_infer(site: Site) -> None:
    with http.InferenceServerClient(site.http) as client:
        for binary in (True, False):
            outputs = [
                http.InferRequestedOutput("OUTPUT0", binary_data=binary),
                http.InferRequestedOutput("OUTPUT1", binary_data=not binary),
            ]
            inputs = _inputs(http, LEFT, RIGHT)
            inputs[0].set_data_from_numpy(texts(LEFT), binary_data=binary)
            _check_sums(client.infer("simple_string", inputs, outputs=outputs))
            for strings in _odd_strings():
                tensor = http.InferInput("INPUT0", [1, 16], "BYTES")
                tensor.set_data_from_numpy(strings, binary_data=binary)
                output = http.InferRequestedOutput("OUTPUT0", binary_data=binary)
                result = client.infer("simple_identity", [tensor], outputs=[output])
                _check_same(result, strings)


def grpc_string_infer(site: Site) -> None:
    with grpc.InferenceServerClient(site.grpc) as client:
        _check_sums(client.infer("simple_string", _inputs(grpc, LEFT, RIGHT)))
        for strings in _odd_strings():
            tensor = grpc.InferInput("INPUT0", [1, 16], "BYTES")
            tensor.set_data_from_numpy(strings)
            _check_same(client.infer("simple_identity", [tensor]), strings)


def _inputs(module: ModuleType, *numbers: np.ndarray) -> list[Any]:
    inputs = []
    for index, values in enumerate(numbers):
        inputs.append(module.InferInput(f"INPUT{index}", [1, 16], "BYTES"))
        inputs[-1].set_data_from_numpy(texts(values))
    return inputs


def _odd_strings() -> list[np.ndarray]:
    """Return rows of 16: with an embedded NUL, beyond ASCII, empty, and of NumPy's bytes type."""
    odd = ("he\x00llo", "\N{SNOWMAN} \N{LATIN SMALL LETTER E WITH ACUTE}", "")
    return [
        *(np.array([[text.encode()] * 16], np.object_) for text in odd),
        np.array([[b"\x00\x01\x02\x03"] * 16], np.bytes_),
    ]


def _check_sums(result: Any) -> None:
    for name, numbers in (("OUTPUT0", LEFT + RIGHT), ("OUTPUT1", LEFT - RIGHT)):
        found = result.as_numpy(name)
        assert [int(item) for item in found.flat] == numbers.flatten().tolist()


def _check_same(result: Any, strings: np.ndarray) -> None:
    # What came as JSON is str in the client's array.
    found = [i.encode() if isinstance(i, str) else i for i in result.as_numpy("OUTPUT0").flat]
    assert found == strings.flatten().tolist()
