"""Rows 1 to 6, 21, 22 and 25 to 27: sums and differences, by every kind of call."""

from __future__ import annotations

import asyncio
import threading
from types import ModuleType
from typing import Any

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.examples.site import Site

LEFT = np.arange(16, dtype=np.int32)[np.newaxis]
RIGHT = np.ones((1, 16), np.int32)
UNKNOWN = "Request for unknown model"


def pair(module: ModuleType, **options: Any) -> list[Any]:
    """Return both inputs of ``simple``; over HTTP the first one as JSON."""
    inputs = [module.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in (0, 1)]
    inputs[0].set_data_from_numpy(LEFT, **options)
    inputs[1].set_data_from_numpy(RIGHT)
    return inputs


def check(result: Any) -> None:
    """Assert that a response holds sums and differences."""
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), LEFT + RIGHT)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), LEFT - RIGHT)


def _mixed_outputs() -> list[Any]:
    return [
        http.InferRequestedOutput("OUTPUT0", binary_data=True),
        http.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]


def _query() -> dict[str, Any]:
    # New ones each time: the client writes its own headers into them.
    return {"query_params": {"test_1": 1, "test_2": 2}, "headers": {"test": "1"}}


def http_infer(site: Site) -> None:
    with http.InferenceServerClient(site.http) as client:
        for algorithm in (None, "gzip", "deflate"):
            compression = {
                "request_compression_algorithm": algorithm,
                "response_compression_algorithm": algorithm,
            }
            for outputs in (_mixed_outputs(), None):  # CL3: where none are named, all are binary
                inputs = pair(http, binary_data=False)
                check(client.infer("simple", inputs, outputs=outputs, **compression, **_query()))
        assert len(client.get_inference_statistics("simple")["model_stats"]) == 1
        with pytest.raises(InferenceServerException) as refused:
            client.infer("wrong_model_name", pair(http))
        assert refused.value.message().startswith(UNKNOWN)


def grpc_infer(site: Site) -> None:
    with grpc.InferenceServerClient(site.grpc) as client:
        for algorithm in (None, "gzip", "deflate"):
            options = {"compression_algorithm": algorithm, "headers": {"test": "1"}}
            outputs = [grpc.InferRequestedOutput(f"OUTPUT{index}") for index in (0, 1)]
            check(client.infer("simple", pair(grpc), outputs=outputs, client_timeout=60, **options))
            check(client.infer("simple", pair(grpc), **options))
        assert len(client.get_inference_statistics("simple").model_stats) == 1


def http_async_infer(site: Site) -> None:
    with http.InferenceServerClient(site.http, concurrency=2) as client:
        asked = [client.async_infer("simple", pair(http)) for _ in range(2)]
        for each in asked:
            check(each.get_result())


def grpc_async_infer(site: Site) -> None:
    answered = threading.Event()
    seen: list[tuple[Any, Any]] = []

    def on_answer(result: Any, error: Any) -> None:
        seen.append((result, error))
        answered.set()

    with grpc.InferenceServerClient(site.grpc) as client:
        client.async_infer("simple", pair(grpc), on_answer, client_timeout=60)
        assert answered.wait(30)
    ((result, error),) = seen
    assert error is None
    check(result)


def http_aio_infer(site: Site) -> None:
    async def ask() -> None:
        async with http_aio.InferenceServerClient(site.http) as client:
            for algorithm in (None, "gzip", "deflate"):
                compression = {
                    "request_compression_algorithm": algorithm,
                    "response_compression_algorithm": algorithm,
                }
                both = await asyncio.gather(
                    *(
                        client.infer(
                            "simple",
                            pair(http_aio, binary_data=False),
                            outputs=outputs,
                            **compression,
                            **_query(),
                        )
                        for outputs in (_mixed_outputs(), None)
                    )
                )
                for result in both:
                    check(result)
            statistics = await client.get_inference_statistics("simple")
            assert len(statistics["model_stats"]) == 1
            with pytest.raises(InferenceServerException) as refused:
                await client.infer("wrong_model_name", pair(http_aio))
            assert refused.value.message().startswith(UNKNOWN)

    asyncio.run(ask())


def grpc_aio_infer(site: Site) -> None:
    async def ask() -> None:
        async with grpc_aio.InferenceServerClient(site.grpc) as client:
            for algorithm in (None, "gzip", "deflate"):
                check(
                    await client.infer(
                        "simple", pair(grpc), compression_algorithm=algorithm, client_timeout=30
                    )
                )
            statistics = await client.get_inference_statistics("simple")
            assert len(statistics.model_stats) == 1

    asyncio.run(ask())


def grpc_keepalive(site: Site) -> None:
    options = grpc.KeepAliveOptions(
        keepalive_time_ms=2**31 - 1,
        keepalive_timeout_ms=20_000,
        keepalive_permit_without_calls=False,
        http2_max_pings_without_data=2,
    )
    with grpc.InferenceServerClient(site.grpc, keepalive_options=options) as client:
        check(client.infer("simple", pair(grpc)))


def grpc_custom_args(site: Site) -> None:
    arguments = [
        ("grpc.max_send_message_length", 1 << 20),
        ("grpc.max_receive_message_length", 1 << 20),
        ("grpc.keepalive_time_ms", 2**31 - 1),
        ("grpc.dns_enable_srv_queries", 1),
    ]
    with grpc.InferenceServerClient(site.grpc, channel_args=arguments) as client:
        check(client.infer("simple", pair(grpc)))


def explicit_int_content(site: Site) -> None:
    _typed(site, "simple", "INT32", "int_contents")


def explicit_int8_content(site: Site) -> None:
    _typed(site, "simple_int8", "INT8", "int_contents")


def explicit_byte_content(site: Site) -> None:
    _typed(site, "simple_string", "BYTES", "bytes_contents")


def _typed(site: Site, model: str, datatype: str, field: str) -> None:
    """Ask with typed contents and the generated stubs alone; outputs come as raw bytes."""
    request = pb.ModelInferRequest(model_name=model)
    for index, numbers in enumerate((LEFT, RIGHT)):
        tensor = request.inputs.add(name=f"INPUT{index}", datatype=datatype, shape=[1, 16])
        items = [str(n).encode() if datatype == "BYTES" else int(n) for n in numbers.flat]
        getattr(tensor.contents, field).extend(items)
        request.outputs.add(name=f"OUTPUT{index}")
    with grpc_core.insecure_channel(site.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(request)
        for index, numbers in enumerate((LEFT + RIGHT, LEFT - RIGHT)):
            assert list(response.outputs[index].shape) == [1, 16]
            raw = response.raw_output_contents[index]
            if datatype == "BYTES":
                items = [str(n).encode() for n in numbers.flat]
                expected = b"".join(len(item).to_bytes(4, "little") + item for item in items)
            else:
                expected = numbers.astype(np.dtype(datatype.lower())).tobytes()
            assert raw == expected
        request.model_version = "wrong_specification"
        with pytest.raises(
            grpc_core.RpcError,
            match="failed to get model version from specified version string 'wrong_specification'",
        ):
            stub.ModelInfer(request)
