"""Models of a running Triton as models here: of one of ours, and of the real one."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

pytest.importorskip("grpc", reason="the package grpcio is not installed")

import nbtriton as nt
from nbtriton.common.errors import (
    ConfigError,
    InvalidArgumentError,
    LoadError,
    RequestTimeoutError,
    UnavailableError,
)
from nbtriton.extensions.remote import RemoteModel
from nbtriton.serving.clients.http import HttpClient
from tests.differential.rest import Threads
from tests.differential.servers import COMPLETE
from tests.engine.support import WAIT_S, ensemble_text
from tests.until import PATIENCE_S, until

DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value, text = (pb_utils.get_input_tensor_by_name(request, name) for name in ("IN", "TEXT"))
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", value.as_numpy() * 2), pb_utils.Tensor("SAME", text.as_numpy()),
            ]))
        return answers
"""
SUMS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().any()
            key = request.correlation_id()
            self.sums[key] = value + (0 if start else self.sums.get(key, 0))  # a padding row has no START
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.sums[key])]))
        return answers
"""
COUNT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for number in range(int(value.flat[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full_like(value, number))]))
            error = pb_utils.InferenceResponse(error=pb_utils.TritonError("no more")) if value.flat[0] == 3 else None
            if error is not None:
                sender.send(error)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# A request for 0 is on its way until it is cancelled; every other one is answered with the number of those.
WAITS = """
import time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = 0

    def execute(self, requests):
        answers = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if not value.any():
                Path(__file__).with_name("begun").touch()
                while not request.is_cancelled():
                    time.sleep(0.01)
                self.seen += 1
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full_like(value, self.seen))]))
        return answers
"""
# Answers once there is the file that lets it.
SLOW = """
import time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        while not Path(__file__).with_name("go").exists():
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(one, "IN").as_numpy())])
                for one in requests]
"""
INT32 = """
backend: "python" max_batch_size: %d
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU }
"""
MODELS = {
    "double": (DOUBLE, INT32 % 8 + """
        input { name: "TEXT" data_type: TYPE_STRING dims: -1 } output { name: "SAME" data_type: TYPE_STRING dims: -1 }
        dynamic_batching { }"""),
    "sums": (SUMS, INT32 % 4 + """
        sequence_batching { max_sequence_idle_microseconds: 600000000 control_input { name: "START"
            control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }"""),
    "count": (COUNT, INT32 % 0 + "model_transaction_policy { decoupled: true }"),
    "waits": (WAITS, INT32 % 1),
    "slow": (SLOW, INT32 % 1),
}  # fmt: skip


@dataclass(frozen=True)
class Far:
    """A running server with `MODELS`, by protocol."""

    models: Path
    http: str
    grpc: str
    pid: int = 0  # of a server in another process, whose models do not hear that a client over HTTP has left

    def url(self, protocol: str) -> str:
        return f"{protocol}://{getattr(self, protocol)}"

    def successes(self, model: str) -> int:
        if self.pid:  # it counts after it has answered
            with contextlib.closing(Threads(self.pid)) as threads:
                assert threads.come_to_rest(PATIENCE_S)
        with HttpClient(self.http) as client:
            (found,) = client.statistics(model)["model_stats"]
        return int(found["inference_stats"]["success"]["count"])


@contextlib.contextmanager
def ours(root: Path) -> Iterator[Far]:
    with nt.Server(gpus=()) as server:
        server.load_repository(root)
        with server.serve(http_port=0, grpc_port=0, metrics_port=None) as ports:
            yield Far(root, f"127.0.0.1:{ports.http_port}", f"127.0.0.1:{ports.grpc_port}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, (code, config) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(code)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        "nbtriton",
        pytest.param("tritonserver", marks=(pytest.mark.reference, pytest.mark.slow)),
    ],
)
def far(request: pytest.FixtureRequest, root: Path) -> Iterator[Far]:
    if request.param == "nbtriton":
        with ours(root) as found:
            yield found
    else:
        with request.getfixturevalue("reference").server(root, COMPLETE) as real:
            yield Far(root, real.http_url, real.grpc_url, real.process.pid)


@pytest.fixture
def here() -> Iterator[nt.Server]:
    with nt.Server(gpus=()) as server:
        yield server


def row(value: int) -> np.ndarray:
    return np.array([[value]], np.int32)


def doubled(value: int, text: bytes = b"a") -> dict[str, np.ndarray]:
    return {"IN": row(value), "TEXT": np.array([[text, b"\xff\0"]], object)}


JOINING = """
max_batch_size: 4
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 600000000 }
"""
both = pytest.mark.parametrize("protocol", ["http", "grpc"])


@both
def test_its_configuration_comes_from_there(here: nt.Server, far: Far, protocol: str):
    here.load("", nt.remote(far.url(protocol)), name="double")
    config = here.config("double")
    assert (config.backend, config.max_batch_size) == ("remote", 8)
    assert [one.name for one in (*config.input, *config.output)] == ["IN", "TEXT", "OUT", "SAME"]
    assert config.HasField("dynamic_batching")
    assert config.instance_group[0].count == 2
    assert here.is_ready("double")
    found = here.infer("double", doubled(4))
    assert found["OUT"].tolist() == [[8]]
    assert found["SAME"].tolist() == [[b"a", b"\xff\0"]]
    found["OUT"][:] = 0  # the receiver's own memory


@both
def test_a_batch_goes_as_one_request(here: nt.Server, far: Far, protocol: str):

    here.load(JOINING, nt.remote(far.url(protocol), model="double"), name="m")
    before = far.successes("double")
    futures = [here.submit("m", doubled(n, b"%d" % n)) for n in range(4)]
    answers = [future.result(WAIT_S) for future in futures]
    assert [int(one["OUT"][0, 0]) for one in answers] == [0, 2, 4, 6]
    assert [one["SAME"][0, 0] for one in answers] == [b"0", b"1", b"2", b"3"]
    assert far.successes("double") == before + 1


@both
def test_inputs_go_by_shared_memory(here: nt.Server, far: Far, protocol: str):
    there = nt.remote(far.url(protocol), model="double", shared_memory_bytes=1 << 16)
    here.load(JOINING, there, name="m")
    with HttpClient(far.http) as client:
        (region,) = [name for name in regions(client) if name.startswith("remote-")]
        for forgotten in (False, True):
            if forgotten:  # as by a server that was started again
                client.unregister_memory(region)
            futures = [here.submit("m", doubled(n, b"%d" % n)) for n in range(4)]
            answers = [future.result(WAIT_S) for future in futures]
            assert [int(one["OUT"][0, 0]) for one in answers] == [0, 2, 4, 6]
            assert [one["SAME"][0, 0] for one in answers] == [b"0", b"1", b"2", b"3"]
            assert region in regions(client)  # for the second time because a request named it
        here.load("", nt.remote(far.url(protocol), shared_memory_bytes=1), name="double")  # no room
        assert here.infer("double", doubled(4))["OUT"].tolist() == [[8]]
        here.unload("m")
        assert until(lambda: region not in regions(client))


def test_an_interrupted_request_leaves_no_shared_memory(
    here: nt.Server, far: Far, monkeypatch: pytest.MonkeyPatch
):
    def pools() -> set[nt.SharedMemoryPool]:
        return {one for one in gc.get_objects() if isinstance(one, nt.SharedMemoryPool)}

    others = pools()
    there = nt.remote(far.http, model="double", shared_memory_bytes=1 << 16)
    here.load("", there, name="m")
    (pool,) = pools() - others

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as pressed, pytest.raises(KeyboardInterrupt):
        pressed.setattr(np, "copyto", interrupt)
        here.infer("m", doubled(1))
    assert pool.used == 0
    assert here.infer("m", doubled(4))["OUT"].tolist() == [[8]]


def test_a_server_that_cannot_share_memory_leaves_none_allocated(here: nt.Server, root: Path):
    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, json.dumps({"max_batch_size": 0, "input": [], "output": []}))

        def do_POST(self) -> None:
            self.answer(400, '{"error": "Unable to open shared memory region"}')

        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    def allocated() -> set[Path]:
        return {*Path("/dev/shm").glob(f"nbtriton-pool-remote-{os.getpid()}-*")}

    before = allocated()
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as far:
        threading.Thread(target=far.serve_forever, daemon=True).start()
        there = nt.remote(f"127.0.0.1:{far.server_port}", shared_memory_bytes=1 << 16)
        tensors = (f'{field}put {{ name: "{name}" data_type: TYPE_INT32 dims: 1 }}'
                   for field, name in (("in", "IN"), ("out", "OUT")))  # fmt: skip
        with pytest.raises(LoadError, match="Unable to open shared memory") as kept:
            here.load(" ".join(tensors), there, name="m")
        far.shutdown()
    assert kept.value  # an error that is kept, as a notebook does, keeps its frames
    assert allocated() <= before


def regions(client: HttpClient) -> list[str]:
    with urlopen(f"http://{client.url}/v2/systemsharedmemory/status") as answer:
        return [one["name"] for one in json.load(answer)]


@both
def test_requests_that_differ_go_by_themselves(here: nt.Server, far: Far, protocol: str):

    here.load(JOINING, nt.remote(far.url(protocol), model="double"), name="m")
    before = far.successes("double")
    futures = [
        here.submit("m", doubled(1)),
        here.submit("m", doubled(2), outputs=["OUT"]),
        here.submit("m", doubled(3), parameters={"note": "x"}),
        here.submit("m", doubled(4)),
    ]
    answers = [future.result(WAIT_S) for future in futures]
    assert [int(one["OUT"][0, 0]) for one in answers] == [2, 4, 6, 8]
    assert list(answers[1]) == ["OUT"]
    assert far.successes("double") == before + 3


@both
def test_it_is_a_step_of_an_ensemble(here: nt.Server, far: Far, protocol: str):
    here.load("", nt.remote(far.url(protocol), model="double"), name="there")
    plus = 'max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 }'
    here.load(plus, lambda X: {"Y": X + 1}, name="plus")  # noqa: N803
    here.load(
        ensemble_text(
            ("plus", {"X": "A"}, {"Y": "B"}),
            ("there", {"IN": "B", "TEXT": "T"}, {"OUT": "C", "SAME": "S"}),
            ("plus", {"X": "C"}, {"Y": "D"}),
            inputs={"A": "INT32[1]", "T": "STRING[-1]"},
            outputs={"D": "INT32[1]", "S": "STRING[-1]"},
        ),
        name="e",
    )
    found = here.infer("e", {"A": row(4), "T": doubled(0)["TEXT"]})
    assert found["D"].tolist() == [[11]]
    assert found["S"].tolist() == [[b"a", b"\xff\0"]]


@both
def test_sequences_keep_their_order_and_their_state(here: nt.Server, far: Far, protocol: str):
    here.load("", nt.remote(far.url(protocol)), name="sums")
    ids = (7, 8, (1 << 63) + 1) if protocol == "grpc" else (7, 8)
    futures = [
        here.submit("sums", {"IN": row(n + one % 5)}, sequence_id=one, sequence_start=n == 0, sequence_end=n == 4)
        for n in range(5)
        for one in ids
    ]  # fmt: skip
    sums = [int(future.result(WAIT_S)["OUT"][0, 0]) for future in futures]
    for place, one in enumerate(ids):
        assert sums[place :: len(ids)] == list(np.cumsum([n + one % 5 for n in range(5)]))
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        here.infer("sums", {"IN": row(1)}, sequence_id=9)


def test_a_stream_comes_as_it_is_sent(here: nt.Server, far: Far):
    here.load("", nt.remote(far.url("grpc")), name="count")
    value = {"IN": np.array([2], np.int32)}
    assert [int(one["OUT"][0]) for one in here.stream("count", value)] == [0, 1]
    assert list(here.stream("count", {"IN": np.array([0], np.int32)})) == []
    found = []
    with pytest.raises(nt.TritonError, match="no more"):
        found.extend(here.stream("count", {"IN": np.array([3], np.int32)}))
    with pytest.raises(LoadError, match="only allowed with gRPC"):
        here.load("", nt.remote(far.url("http"), model="count"), name="over_http")


@both
def test_a_cancelled_request_is_given_up_there(here: nt.Server, far: Far, protocol: str):
    if protocol == "http" and far.pid:
        pytest.skip("a model of 2.51 does not hear that a client over HTTP has left")
    here.load("", nt.remote(far.url(protocol)), name="waits")
    seen = int(here.infer("waits", {"IN": row(1)})["OUT"][0, 0])
    begun = far.models / "waits" / "1" / "begun"
    begun.unlink(missing_ok=True)
    future = here.submit("waits", {"IN": row(0)})
    assert until(begun.exists)
    assert future.cancel()
    assert int(here.infer("waits", {"IN": row(1)})["OUT"][0, 0]) == seen + 1


@both
def test_a_late_answer_is_not_waited_for(here: nt.Server, far: Far, protocol: str):
    if protocol == "http" and far.pid:
        pytest.skip("a model of 2.51 does not hear that a client over HTTP has left")
    here.load("", nt.remote(far.url(protocol)), name="waits")
    seen = int(here.infer("waits", {"IN": row(1)})["OUT"][0, 0])
    here.load("", nt.remote(far.url(protocol), model="waits", timeout_s=0.3), name="late")
    with pytest.raises(RequestTimeoutError, match=r"has not answered within 0\.3 s"):
        here.infer("late", {"IN": row(0)})
    # On a busy machine it may not have been on its way yet.
    assert int(here.infer("waits", {"IN": row(1)})["OUT"][0, 0]) - seen in (0, 1)


@both
def test_an_answer_after_the_limit_is_an_error_and_the_next_one_is_not(
    here: nt.Server, far: Far, protocol: str
):
    go = far.models / "slow" / "1" / "go"
    go.unlink(missing_ok=True)
    here.load("", nt.remote(far.url(protocol), model="slow", timeout_s=0.2), name="late")
    with pytest.raises(RequestTimeoutError, match=r"has not answered within 0\.2 s"):
        here.infer("late", {"IN": row(1)})
    go.touch()
    here.load("", nt.remote(far.url(protocol)), name="slow")
    assert here.infer("slow", {"IN": row(2)})["OUT"].tolist() == [[2]]


class Gateway:
    """Passes connections on to a server, after it has dropped some."""

    def __init__(self, place: str) -> None:
        host, _, port = place.rpartition(":")
        self._to = (host, int(port))
        self.drop = 0
        self.dropped = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._socket.accept()
                if self.drop:
                    self.drop -= 1
                    self.dropped += 1
                    one.close()
                    continue
                other = socket.create_connection(self._to)
                for ends in ((one, other), (other, one)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize(("retries", "answered"), [(2, True), (1, False), (0, False)])
def test_a_server_that_is_away_for_a_moment_is_asked_again(
    here: nt.Server, far: Far, retries: int, answered: bool
):
    with contextlib.closing(Gateway(far.http)) as gateway:
        here.load("", nt.remote(gateway.url, retries=retries), name="double")
        gateway.drop = 2
        if answered:
            assert here.infer("double", doubled(2))["OUT"].tolist() == [[4]]
        else:
            with pytest.raises(UnavailableError, match="does not answer"):
                here.infer("double", doubled(2))
        assert gateway.dropped == min(2, retries + 1)


def test_a_server_that_is_not_there_is_named(here: nt.Server):
    with socket.socket() as silent:  # it has the port, and does not listen
        silent.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(nt.TritonError, match=f"the server at {place} does not answer"):
            here.load("", nt.remote(place), name="m")


def test_a_model_that_is_not_there_is_named(here: nt.Server, far: Far):
    with pytest.raises(nt.TritonError, match="Request for unknown model: 'nope'"):
        here.load("", nt.remote(far.http, model="nope"), name="m")


def test_a_batch_is_not_larger_than_there(here: nt.Server, far: Far):
    with pytest.raises(ConfigError, match="max_batch_size of model 'm' is 9, that of the remote model 8"):  # fmt: skip
        here.load("max_batch_size: 9", nt.remote(far.http, model="double"), name="m")


def test_a_configuration_may_name_it(here: nt.Server, far: Far, tmp_path: Path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    parameters = {"REMOTE_URL": far.http, "REMOTE_MODEL": "double", "REMOTE_TIMEOUT_S": "9"}
    texts = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    ]
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "remote" ' + " ".join(texts))
    here.load_repository(tmp_path)
    assert here.infer("m", doubled(4))["OUT"].tolist() == [[8]]
    with pytest.raises(ConfigError, match="must specify parameter REMOTE_URL"):
        here.load('backend: "remote"', name="nowhere")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "localhost:99999"}, "has the port '99999'"),
        ({"url": "http://localhost", "protocol": "grpc"}, "not to be reached over grpc"),
        ({"url": "localhost", "timeout_s": 0}, "timeout_s"),
        ({"url": "localhost", "retries": -1}, "retries"),
        ({"url": "localhost", "retrys": 1}, "has no option 'retrys'"),
    ],
)
def test_wrong_options_are_refused(options: dict, text: str):
    with pytest.raises(InvalidArgumentError, match=text):
        nt.remote(**options)


def test_options_have_defaults():
    assert nt.remote("localhost") == RemoteModel("http://localhost:8000")
    assert nt.remote("localhost", protocol="grpc").url == "grpc://localhost:8001"


def test_an_export_says_that_it_runs_nowhere_else(here: nt.Server, far: Far, tmp_path: Path):
    here.load("", nt.remote(far.http), name="double")
    with pytest.raises(nt.TritonError, match="double"):
        here.export(tmp_path / "out")
