"""Other people's HTTP/2 clients against a running endpoint: nghttp, h2load, curl, grpcio and tritonclient."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import grpc
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

from nbtriton.extensions.grpc.http2.frames import ErrorCode
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, serve
from tests.frontends.grpc_support import infer
from tests.frontends.h2.peer import BODY as ANY_BODY
from tests.frontends.http2_raw import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INFER,
    PING,
    RST_STREAM,
    STREAM,
    Client,
    fields,
    frame,
    number,
    prefixed,
    setting,
)

SERVED = ("one", "flexible")

TIMEOUT_S = 60
METADATA = ("te: trailers", "content-type: application/grpc")
MESSAGE = prefixed(infer("one").SerializeToString())


@pytest.fixture(scope="module")
def endpoints(server: Server) -> Iterator[Endpoints]:
    with serve(server, http_port=None, metrics_port=None, grpc_port=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(endpoints: Endpoints) -> str:
    return f"127.0.0.1:{endpoints.grpc_port}"


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "body"
    file.write_bytes(MESSAGE)
    return file


def run(program: str, *arguments: object) -> str:
    """Return what a program prints; skips where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (Debian: nghttp2-client, curl)")
    done = subprocess.run(
        [found, *map(str, arguments)], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def headers() -> list[str]:
    return [part for one in METADATA for part in ("-H", one)]


# -- programs ----------------------------------------------------------------------------------------


@pytest.mark.medium
def test_nghttp_gets_headers_data_and_trailers(address: str, body: Path) -> None:
    said = run("nghttp", "-v", "-d", body, *headers(), f"http://{address}{INFER.decode()}")
    for line in (r"recv .*:status: 200", r"recv DATA frame", r"recv .*grpc-status: 0"):
        assert re.search(line, re.sub(r"\x1b\[[0-9;]*m", "", said)), said


def test_nghttp_multiplexes_calls(address: str, body: Path) -> None:
    said = run("nghttp", "-v", "-m", 20, "-d", body, *headers(), f"http://{address}{INFER.decode()}")  # fmt: skip
    assert len(re.findall(r"grpc-status: 0", said)) == 20


@pytest.mark.parametrize(("clients", "streams"), [(1, 1), (1, 32), (4, 8)])
def test_h2load_has_no_failures(address: str, body: Path, clients: int, streams: int) -> None:
    said = run(
        "h2load", "-n", 400, "-c", clients, "-m", streams, "-d", body, *headers(),
        f"http://{address}{INFER.decode()}",
    )  # fmt: skip
    assert "400 succeeded, 0 failed, 0 errored, 0 timeout" in said, said


def test_curl_gets_the_message(address: str, body: Path, tmp_path: Path) -> None:
    answer, fields_file = tmp_path / "answer", tmp_path / "fields"
    run(
        "curl", "-sS", "--http2-prior-knowledge", "--data-binary", f"@{body}", "-o", answer, "-D",
        fields_file, *headers(), f"http://{address}{INFER.decode()}",
    )  # fmt: skip
    response = pb.ModelInferResponse.FromString(answer.read_bytes()[5:])
    assert response.raw_output_contents[0] == infer("one").raw_input_contents[0]
    assert "grpc-status: 0" in fields_file.read_text()


def test_curl_with_GET_gets_a_status_instead_of_a_reset(address: str) -> None:
    said = run("curl", "-sS", "--http2-prior-knowledge", "-D", "-", f"http://{address}/")
    assert "grpc-message: Bad method header" in said


# -- libraries ---------------------------------------------------------------------------------------


def test_grpcio_calls_and_streams(address: str) -> None:
    ask = infer("one")
    with grpc.insecure_channel(address) as channel:
        unary = channel.unary_unary(
            INFER.decode(), type(ask).SerializeToString, pb.ModelInferResponse.FromString
        )
        futures = [unary.future(ask, timeout=TIMEOUT_S) for _ in range(50)]
        assert all(future.result().raw_output_contents for future in futures)
        stream = channel.stream_stream(
            STREAM.decode(), type(ask).SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        answers = list(stream(iter([ask] * 30), timeout=TIMEOUT_S))
        assert [answer.error_message for answer in answers] == [""] * 30


@pytest.mark.medium
def test_tritonclient_sends_and_gets_large_messages(address: str) -> None:
    array = np.arange(3 << 20, dtype=np.int32)
    given = triton.InferInput("IN", array.shape, "INT32")
    given.set_data_from_numpy(array)
    client = triton.InferenceServerClient(address)
    try:
        for _ in range(2):
            answer = client.infer("flexible", [given], client_timeout=TIMEOUT_S)
            assert (answer.as_numpy("OUT") == array).all()
    finally:
        client.close()


def test_closing_sends_goaway_to_a_client_of_grpcio(server: Server) -> None:
    """Its calls end well or with UNAVAILABLE, none is lost, and the next one finds nobody."""
    ask = infer("one")
    opened = serve(server, http_port=None, metrics_port=None, grpc_port=0)
    with grpc.insecure_channel(f"127.0.0.1:{opened.grpc_port}") as channel:
        unary = channel.unary_unary(
            INFER.decode(), type(ask).SerializeToString, pb.ModelInferResponse.FromString
        )
        assert unary(ask, timeout=TIMEOUT_S).raw_output_contents
        futures = [unary.future(ask, timeout=TIMEOUT_S) for _ in range(50)]
        opened.close()
        codes = {future.code() for future in futures}
        assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        with pytest.raises(grpc.RpcError) as late:
            unary(ask, timeout=TIMEOUT_S)
        assert late.value.code() is grpc.StatusCode.UNAVAILABLE


# -- a sample of the rules, on the socket --------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(frame(HEADERS, END_HEADERS, 2, fields()), ErrorCode.PROTOCOL_ERROR, id="5.1.1-even-stream"),
        pytest.param(frame(DATA, END_STREAM, 1, ANY_BODY), ErrorCode.PROTOCOL_ERROR, id="5.1-idle-DATA"),
        pytest.param(frame(RST_STREAM, 0, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR, id="6.4-RST_STREAM-of-3-bytes"),
        pytest.param(frame(4, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR, id="6.5-ACK-with-a-payload"),
        pytest.param(setting(2, 2), ErrorCode.PROTOCOL_ERROR, id="6.5.2-ENABLE_PUSH"),
        pytest.param(frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR, id="6.7-PING-on-a-stream"),
        pytest.param(frame(HEADERS, 5, 1, b"\x80"), ErrorCode.COMPRESSION_ERROR, id="4.3-invalid-block"),
    ],
)  # fmt: skip
def test_a_violation_ends_a_real_connection(address: str, data: bytes, code: ErrorCode) -> None:
    with Client(int(address.rpartition(":")[2]), data) as client:
        client.to_the_end()
        (last,) = client.of(GOAWAY)
        assert last.content[4:8] == number(code)


@pytest.mark.medium
def test_a_malformed_call_is_reset_and_its_neighbour_answered(address: str) -> None:
    wrong = frame(HEADERS, END_HEADERS | END_STREAM, 1, fields(None, [(b"connection", b"close")]))
    right = frame(HEADERS, END_HEADERS, 3, fields()) + frame(DATA, END_STREAM, 3, MESSAGE)
    with Client(int(address.rpartition(":")[2]), wrong, right) as client:
        assert client.answer(3).status == (0, "")
        assert client.answer(1).reset == ErrorCode.PROTOCOL_ERROR
