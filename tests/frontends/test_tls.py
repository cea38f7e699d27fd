"""TLS over HTTP and gRPC, with Triton's own clients and certificates of this test."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")
pytest.importorskip("geventhttpclient", reason="Triton's client for HTTP needs it")

import grpc
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, Tls, serve
from nbtriton.serving.frontends.flags import endpoint_options, parse_flags
from tests.frontends.certificates import openssl, write_keys
from tests.frontends.raw import Client, post
from tests.frontends.starving import BODY, CONFIG, LIVE

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")

ARRAY = np.arange(4, dtype=np.float32).reshape(1, 4)
LONG = np.arange(1 << 18, dtype=np.float32).reshape(1, -1)
FLEXIBLE = CONFIG.replace("dims: 4", "dims: -1")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    def same(IN: np.ndarray) -> np.ndarray:  # noqa: N803
        return IN

    with Server(gpus=()) as running:
        running.load(FLEXIBLE, same, name="m")
        yield running


def opened(server: Server, keys: Path, *, mutual: bool) -> Endpoints:
    tls = Tls(str(keys / "server.pem"), str(keys / "server.key"), str(keys / "root.pem"), mutual)
    return serve(server, http_port=0, grpc_port=0, metrics_port=None, http_tls=tls, grpc_tls=tls)


@pytest.fixture(scope="module")
def one_sided(server: Server, keys: Path) -> Iterator[Endpoints]:
    with opened(server, keys, mutual=False) as endpoints:
        yield endpoints


@pytest.fixture(scope="module")
def mutual(server: Server, keys: Path) -> Iterator[Endpoints]:
    with opened(server, keys, mutual=True) as endpoints:
        yield endpoints


def over_grpc(port: int | None, keys: Path, name: str = "") -> Any:
    files = {"root_certificates": str(keys / "root.pem")}
    if name:
        files |= {"private_key": str(keys / f"{name}.key"), "certificate_chain": str(keys / f"{name}.pem")}  # fmt: skip
    return grpc_client.InferenceServerClient(f"localhost:{port}", ssl=True, **files)


def over_http(port: int | None, keys: Path, name: str = "") -> Any:
    files = {"ca_certs": str(keys / "root.pem")}
    if name:
        files |= {"keyfile": str(keys / f"{name}.key"), "certfile": str(keys / f"{name}.pem")}
    return http_client.InferenceServerClient(f"localhost:{port}", ssl=True, ssl_options=files)


def answered(module: Any, client: Any, array: np.ndarray) -> np.ndarray:
    tensor = module.InferInput("IN", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return client.infer("m", [tensor]).as_numpy("OUT")


@pytest.mark.parametrize("array", [ARRAY, LONG])
@pytest.mark.parametrize("name", ["", "client"])
def test_tritons_clients_are_answered(
    request: pytest.FixtureRequest, keys: Path, name: str, array: np.ndarray
) -> None:
    endpoints = request.getfixturevalue("mutual" if name else "one_sided")
    with over_grpc(endpoints.grpc_port, keys, name) as client:
        for _ in range(3):
            np.testing.assert_array_equal(answered(grpc_client, client, array), array)
    with over_http(endpoints.http_port, keys, name) as client:
        for _ in range(3):
            np.testing.assert_array_equal(answered(http_client, client, array), array)


def test_streams_over_tls(one_sided: Endpoints, keys: Path) -> None:
    import queue

    found: queue.Queue[Any] = queue.Queue()
    tensor = grpc_client.InferInput("IN", [1, 4], "FP32")
    tensor.set_data_from_numpy(ARRAY)
    with over_grpc(one_sided.grpc_port, keys) as client:
        client.start_stream(lambda result, error: found.put((result, error)))
        for _ in range(5):
            client.async_stream_infer("m", [tensor])
        for _ in range(5):
            result, error = found.get(timeout=60)
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("OUT"), ARRAY)


@pytest.mark.parametrize("name", ["", "unknown"])
def test_a_client_without_a_certificate_of_ours_is_refused(
    mutual: Endpoints, keys: Path, name: str
) -> None:
    with over_grpc(mutual.grpc_port, keys, name) as client, pytest.raises(Exception) as caught:
        client.is_server_live(client_timeout=60)
    assert "UNAVAILABLE" in str(caught.value)
    with over_http(mutual.http_port, keys, name) as client, pytest.raises(Exception) as caught:
        client.is_server_live()
    assert any(word in repr(caught.value).lower() for word in ("ssl", "closed", "reset", "pipe"))


def test_a_client_without_tls_loses_only_its_own_connection(
    one_sided: Endpoints, keys: Path
) -> None:
    for port in (one_sided.http_port, one_sided.grpc_port):
        with Client(port or 0) as client:
            client.send(LIVE)
            assert client.is_over()
    with over_http(one_sided.http_port, keys) as client:
        assert client.is_server_live()


@pytest.mark.parametrize(("protocol", "offered"), [("http", "http/1.1"), ("grpc", "h2")])
def test_alpn_agrees_on_the_protocol(
    one_sided: Endpoints, keys: Path, protocol: str, offered: str
) -> None:
    context = ssl.create_default_context(cafile=str(keys / "root.pem"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    at = ("127.0.0.1", getattr(one_sided, f"{protocol}_port"))
    with (
        socket.create_connection(at, 30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        assert secured.selected_alpn_protocol() == offered
        assert secured.version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.medium
def test_limits_and_ends_of_connections_over_tls(one_sided: Endpoints, keys: Path) -> None:
    context = ssl.create_default_context(cafile=str(keys / "root.pem"))

    def connected() -> Client:
        client = Client(one_sided.http_port or 0)
        client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        return client

    with connected() as client:
        client.send(post("/v2/models/m/infer", BODY) * 50)
        assert all(client.receive().status == 200 for _ in range(50))
        client.send(b"junk\r\n\r\n")
        assert client.receive().status == 400
        assert client.is_over()
    with connected() as client:
        client.send(post("/v2/models/m/infer", BODY, "Connection: close"))
        assert client.receive().status == 200
        assert client.is_over()


def test_a_wrong_certificate_is_reported(keys: Path, server: Server, tmp_path: Path) -> None:
    certificate, key = str(keys / "server.pem"), str(keys / "server.key")
    locked = tmp_path / "locked.key"
    openssl(tmp_path, "ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", str(locked))
    for tls, error in (
        (Tls("", key), "TLS needs the file of the server's certificate"),
        (Tls(certificate, str(tmp_path / "none")), "No such file or directory"),
        (Tls(certificate, str(keys / "client.key")), "are not a certificate and its key in PEM"),
        (Tls(key, key), "are not a certificate and its key in PEM"),
        (Tls(certificate, str(locked)), "the key asks for a password"),
        (Tls(certificate, key, "", mutual=True), "TLS needs the file of the root certificate"),
        (Tls(certificate, key, key, mutual=True), "holds no certificate in PEM"),
    ):
        for protocol in ("http", "grpc"):
            with pytest.raises(InvalidArgumentError, match=error):
                serve(
                    server, http_port=0, grpc_port=0, metrics_port=None, **{f"{protocol}_tls": tls}
                )


def test_grpc_reports_a_client_without_tls(one_sided: Endpoints) -> None:
    with grpc.insecure_channel(f"localhost:{one_sided.grpc_port}") as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        with pytest.raises(grpc.RpcError) as caught:
            live(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_flags(protocol: str) -> None:
    files = [f"--{protocol}-server-{what}={what}" for what in ("cert", "key")]
    files.append(f"--{protocol}-root-cert=root")

    def read(*flags: str) -> Tls | None:
        return endpoint_options(parse_flags([*files, *flags]))[f"{protocol}_tls"]

    assert read() is None
    assert read(f"--{protocol}-use-ssl=true") == Tls("cert", "key", "root")
    assert read(f"--{protocol}-use-ssl-mutual=true") == Tls("cert", "key", "root", mutual=True)
    size = endpoint_options(parse_flags(["--max-decompressed-size=5"]))["limits"]
    assert size.decompressed_bytes == 5
    with pytest.raises(InvalidArgumentError, match="must be greater than 0"):
        endpoint_options(parse_flags(["--max-decompressed-size=0"]))
