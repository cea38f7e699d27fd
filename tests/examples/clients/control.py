"""Rows 17 to 20: metadata of a server and its models, and loading of models."""

from __future__ import annotations

from typing import Any

import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.examples.clients.infer import UNKNOWN
from tests.examples.site import Site

MALFORMED = '"parameters": {"config": {{"max_batch_size": "16"}}}'
NOT_THERE = "failed to poll from model repository"


def http_health_metadata(site: Site) -> None:
    with http.InferenceServerClient(site.http) as client:
        query = {"query_params": {"test_1": 1, "test_2": 2}}
        assert client.is_server_live(**query)
        assert client.is_server_ready()
        assert client.is_model_ready("simple", **query)
        assert client.get_server_metadata()["name"] == "triton"
        assert client.get_model_metadata("simple", **query)["name"] == "simple"
        _unknown(client)


def grpc_health_metadata(site: Site) -> None:
    with grpc.InferenceServerClient(site.grpc) as client:
        headers = {"headers": {"test": "1", "dummy": "2"}}
        assert client.is_server_live(**headers)
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
        assert client.get_server_metadata().name == "triton"
        assert client.get_model_metadata("simple", **headers).name == "simple"
        assert client.get_model_config("simple").config.name == "simple"
        _unknown(client)


def http_model_control(site: Site) -> None:
    with http.InferenceServerClient(site.http) as client:
        assert len(client.get_model_repository_index()) == _models(site)
        _load_and_unload(client, lambda: client.get_model_config("simple")["max_batch_size"])


def grpc_model_control(site: Site) -> None:
    with grpc.InferenceServerClient(site.grpc) as client:
        assert len(client.get_model_repository_index().models) == _models(site)
        _load_and_unload(client, lambda: client.get_model_config("simple").config.max_batch_size)


def http_long_file_path(site: Site) -> None:
    with http.InferenceServerClient(site.http) as client:
        _long_file_path(client, "500")


def grpc_long_file_path(site: Site) -> None:
    with grpc.InferenceServerClient(site.grpc) as client:
        _long_file_path(client, "StatusCode.INTERNAL")


def _models(site: Site) -> int:
    return sum(1 for folder in site.repository.iterdir() if folder.is_dir())


def _unknown(client: Any) -> None:
    with pytest.raises(InferenceServerException, match=UNKNOWN):
        client.get_model_metadata("wrong_model_name")


def _load_and_unload(client: Any, max_batch_size: Any) -> None:
    try:
        client.load_model("simple")
        assert client.is_model_ready("simple")
        before = max_batch_size()
        with pytest.raises(InferenceServerException, match="failed to load"):
            client.load_model("simple", config=MALFORMED)
        assert client.is_model_ready("simple")
        assert max_batch_size() == before
        client.load_model("simple", config='{"max_batch_size":"16"}')
        assert max_batch_size() == 16
        client.unload_model("simple")
        assert not client.is_model_ready("simple")
        with pytest.raises(InferenceServerException, match="failed to load"):
            client.load_model("wrong_model_name")
    finally:
        client.load_model("simple")
    assert max_batch_size() == 8


def _long_file_path(client: Any, status: str) -> None:
    with pytest.raises(InferenceServerException, match=NOT_THERE) as refused:
        client.load_model("simple", config="{}", files={"file:" + "A" * 256: b"a"})
    assert refused.value.status() == status
    assert client.is_server_live()
    assert client.is_model_ready("simple")
