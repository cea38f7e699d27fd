"""The unmodified HTTP client of Triton, as its own example programs use it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import serve
from tests.frontends.models import load_all

SERVED = ("one", "two", "plain", "sequence", "text", "words", "labelled")

try:
    from tritonclient import http
    from tritonclient.utils import shared_memory as shm
except (ImportError, RuntimeError):  # its own way to say that a part is missing
    pytest.skip("tritonclient[http] is not installed", allow_module_level=True)


@pytest.fixture
def client(port: int) -> Iterator[http.InferenceServerClient]:
    with http.InferenceServerClient(f"127.0.0.1:{port}", concurrency=8) as made:
        yield made


def tensor(name: str, array: np.ndarray, *, binary: bool = True) -> http.InferInput:
    datatype = {"f": "FP32", "i": "INT32", "O": "BYTES", "b": "BOOL"}[array.dtype.kind]
    made = http.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


X = np.arange(4, dtype=np.float32)[None]


@pytest.mark.medium
def test_health_and_metadata(client: http.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("two", query_params={"a": "b"})
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata()["name"] == "triton"
    assert client.get_model_metadata("two")["name"] == "two"
    assert client.get_model_config("two")["max_batch_size"] == 8
    with pytest.raises(http.InferenceServerException, match="Request for unknown model"):
        client.get_model_metadata("nope")


@pytest.mark.parametrize("request_compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_infer(
    client: http.InferenceServerClient,
    request_compression: str | None,
    response_compression: str | None,
    binary: bool,
) -> None:
    result = client.infer(
        "two",
        [tensor("INPUT0", X, binary=binary), tensor("INPUT1", X + 1)],
        outputs=[
            http.InferRequestedOutput("OUTPUT0", binary_data=binary),
            http.InferRequestedOutput("OUTPUT1", binary_data=not binary),
        ],
        request_id="7",
        headers={"mine": "x"},
        query_params={"a": 1},
        request_compression_algorithm=request_compression,
        response_compression_algorithm=response_compression,
        parameters={"custom": "y"},
        timeout=1000,
        priority=1,
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), X)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), X + 1)
    assert result.get_response()["id"] == "7"


def test_CL3_infer_all_outputs(client: http.InferenceServerClient) -> None:
    result = client.infer("two", [tensor("INPUT0", X), tensor("INPUT1", X)])
    assert sorted(o["name"] for o in result.get_response()["outputs"]) == ["OUTPUT0", "OUTPUT1"]
    (entry,) = client.get_inference_statistics("two")["model_stats"]
    assert entry["inference_stats"]["success"]["count"] >= 1


def test_async_infer(client: http.InferenceServerClient) -> None:
    asked = [client.async_infer("one", [tensor("IN", X * n)]) for n in range(20)]
    for number, answer in enumerate(asked):
        np.testing.assert_array_equal(answer.get_result().as_numpy("OUT"), X * number)


@pytest.mark.parametrize("binary", [True, False])
def test_strings(client: http.InferenceServerClient, binary: bool) -> None:
    items = np.array(["plain", "\N{SNOWMAN} \u00e9", "a\0b", ""], dtype=np.object_)
    result = client.infer(
        "text", [tensor("IN", items, binary=binary)],
        outputs=[http.InferRequestedOutput("OUT", binary_data=binary)],
    )  # fmt: skip
    found = result.as_numpy("OUT").tolist()
    assert [i if isinstance(i, str) else i.decode() for i in found] == items.tolist()


def test_sequences(client: http.InferenceServerClient) -> None:
    for sequence in (12, str(uuid.uuid4())):
        for start, end in ((True, False), (False, False), (False, True)):
            result = client.infer(
                "sequence", [tensor("IN", X)], sequence_id=sequence, sequence_start=start,
                sequence_end=end,
            )  # fmt: skip
            np.testing.assert_array_equal(result.as_numpy("OUT"), X)


def test_classification(client: http.InferenceServerClient) -> None:
    result = client.infer(
        "labelled", [tensor("IN", np.array([[1, 9, 5]], np.float32))],
        outputs=[http.InferRequestedOutput("OUT", class_count=2)],
    )  # fmt: skip
    assert result.as_numpy("OUT").tolist() == [[b"9.000000:1:one", b"5.000000:2:two"]]


def test_shared_memory(client: http.InferenceServerClient) -> None:
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    key = f"/nbtriton-{uuid.uuid4().hex}"
    region = shm.create_shared_memory_region("inputs", key, 64)
    try:
        shm.set_shared_memory_region(region, [X, X * 2])
        client.register_system_shared_memory("inputs", key, 64)
        assert len(client.get_system_shared_memory_status()) == 1
        inputs = [http.InferInput(f"INPUT{n}", [1, 4], "FP32") for n in range(2)]
        outputs = [http.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
        for number in range(2):
            inputs[number].set_shared_memory("inputs", 16, offset=16 * number)
            outputs[number].set_shared_memory("inputs", 16, offset=32 + 16 * number)
        for _ in range(2):
            result = client.infer("two", inputs, outputs=outputs)
        for number in range(2):
            assert result.get_output(f"OUTPUT{number}")["datatype"] == "FP32"
            found = shm.get_contents_as_numpy(region, np.float32, [1, 4], 32 + 16 * number)
            np.testing.assert_array_equal(found, X * (number + 1))
        client.unregister_system_shared_memory("inputs")
        assert client.get_system_shared_memory_status() == []
    finally:
        shm.destroy_shared_memory_region(region)


def test_generate(client: http.InferenceServerClient) -> None:
    response = client._post(
        "v2/models/words/generate", request_body=json.dumps({"IN": "hi"}), headers=None,
        query_params=None,
    )  # fmt: skip
    assert json.loads(response.read())["OUT"] == "hi"


def test_settings_and_index(client: http.InferenceServerClient) -> None:
    assert client.get_trace_settings()["trace_mode"] == "triton"
    assert client.update_trace_settings("one", {"trace_level": None})["trace_rate"] == "1000"
    assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    client.update_log_settings({"log_verbose_level": 0})
    assert {entry["state"] for entry in client.get_model_repository_index()} == {"READY"}
    with pytest.raises(http.InferenceServerException, match="explicit model load / unload"):
        client.load_model("one")


@pytest.mark.medium
def test_many_clients_leave_nothing(repository) -> None:
    with Server(gpus=()) as server:
        load_all(server, repository, ("one",))
        with serve(server, http_port=0, metrics_port=None) as endpoints:
            for _ in range(200):
                with http.InferenceServerClient(f"127.0.0.1:{endpoints.http_port}") as client:
                    client.infer("one", [tensor("IN", X)])
            # All but what the last close() has not reached yet.
            assert len(endpoints._open["http"].connections) <= 1
