"""Clients that may not register shared memory, the default of newer versions of Triton."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, serve

try:
    from tritonclient import grpc, http
    from tritonclient.utils import InferenceServerException
except (ImportError, RuntimeError):  # its own way to say that a part is missing
    pytest.skip("tritonclient[grpc,http] is not installed", allow_module_level=True)

DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)
CHANGES: dict[str, Callable[[Any], object]] = {
    # No such object, no such handle: nothing of a request is looked at.
    "register": lambda client: client.register_system_shared_memory("r", "/none", 8),
    "unregister": lambda client: client.unregister_system_shared_memory("r"),
    "unregister all": lambda client: client.unregister_system_shared_memory(),
    "register cuda": lambda client: client.register_cuda_shared_memory(
        "r", base64.b64encode(b"short"), 0, 8
    ),
    "unregister cuda": lambda client: client.unregister_cuda_shared_memory("r"),
}


@pytest.fixture(scope="module")
def endpoints() -> Iterator[Endpoints]:
    with (
        Server() as server,
        serve(server, http_port=0, grpc_port=0, metrics_port=None, client_shm=False) as opened,
    ):
        yield opened


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request: pytest.FixtureRequest, endpoints: Endpoints) -> Iterator[Any]:
    if request.param == "http":
        made = http.InferenceServerClient(f"127.0.0.1:{endpoints.http_port}")
    else:
        made = grpc.InferenceServerClient(f"127.0.0.1:{endpoints.grpc_port}")
    with made:
        yield made


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_regions_are_refused(client: Any, change: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        CHANGES[change](client)
    assert caught.value.message() == DISABLED
    assert caught.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


def test_status_of_regions_is_answered(client: Any) -> None:
    for status in (
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
    ):
        found = status() if isinstance(client, http.InferenceServerClient) else status().regions
        assert not found
