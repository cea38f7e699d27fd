"""A server for each module, with the models that its `SERVED` names, and its endpoints; nothing may be left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, serve
from tests.frontends.models import load_all, write_all
from tests.until import until


@pytest.fixture(scope="module", autouse=True)
def pb_utils() -> None:
    """The models of these tests import it; a test that unloaded the extension took it away."""
    install_pb_utils()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_all(folder)
    return folder


# Not for the whole run: a model's own threads find their server where it is the only one.
@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, repository: Path) -> Iterator[Server]:
    with Server(gpus=()) as running:
        load_all(running, repository, request.module.SERVED)
        yield running


@pytest.fixture(scope="module")
def endpoints(server: Server) -> Iterator[Endpoints]:
    with serve(server, http_port=0, metrics_port=0) as opened:
        yield opened
    # The port waits for its workers only for a moment.
    assert until(lambda: not any(t.name.startswith("nbtriton-endpoints") for t in threading.enumerate()))  # fmt: skip


@pytest.fixture
def port(endpoints: Endpoints) -> int:
    assert endpoints.http_port is not None
    return endpoints.http_port


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[Any]:
    """A channel of grpcio's to an endpoint of the module's server."""
    grpc = pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0) as endpoints,
        grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as opened,
    ):
        yield opened
