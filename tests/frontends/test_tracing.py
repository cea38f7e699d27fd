"""Traces: sampling of requests, the file, and the real server's file beside ours."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.runtime.engine import TraceSample
from nbtriton.serving.frontends.tracing import TRACE_LEVELS, TraceValues, Tracing
from tests.differential.servers import COMPLETE
from tests.until import until

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if x.flat[0] < 0:
                raise ValueError("below zero")
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x * 2)]))
        return out
"""
CALLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        out = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="echo", requested_output_names=["OUT"], trace=request.trace(),
                inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
            )
            out.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return out
"""
STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            for index in range(count):
                tensor = pb_utils.Tensor("OUT", np.array([[index]], np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
STEP = """step { model_name: "%s" model_version: -1
  input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } }
"""
MODELS = {
    "echo": ("", ECHO),
    "calls": ("", CALLS),
    "cached": ("response_cache { enable: true }", ECHO),
    "stream": ("model_transaction_policy { decoupled: true }", STREAM),
    "inner": (f"ensemble_scheduling {{ {STEP % ('echo', 'IN', 'OUT')} }}", None),
    "outer": (
        f"""ensemble_scheduling {{
            {STEP % ("inner", "IN", "between")} {STEP % ("echo", "between", "OUT")} }}""",
        None,
    ),
}
BOTH = frozenset(TRACE_LEVELS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, (config, source) in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        kind = 'backend: "python"' if source else 'platform: "ensemble"'
        (root / name / "config.pbtxt").write_text(f"{kind} {TENSORS} {config}")
        if source:
            (root / name / "1" / "model.py").write_text(source)
    return root


def tensor_of(value: float) -> grpcclient.InferInput:
    tensor = grpcclient.InferInput("IN", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    return tensor


class Client:
    """Sends the same requests to either server."""

    def __init__(self, http: str, grpc: str, file: Path) -> None:
        self.http = http
        self.grpc = grpc
        self.file = file

    def post(self, path: str, document: object) -> str:
        request = urllib.request.Request(f"http://{self.http}{path}", json.dumps(document).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def infer(self, model: str, *values: float, request_id: str = "") -> str:
        tensor = {
            "name": "IN", "shape": [len(values), 1], "datatype": "FP32", "data": list(values),
        }  # fmt: skip
        return self.post(f"/v2/models/{model}/infer", {"id": request_id, "inputs": [tensor]})

    def stream(self, model: str, value: float) -> int:
        tensor = tensor_of(value)
        answers: queue.Queue = queue.Queue()
        with contextlib.closing(grpcclient.InferenceServerClient(self.grpc)) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
            count = 0
            while True:
                result, error = answers.get(timeout=60)
                assert error is None
                if result.get_response().parameters["triton_final_response"].bool_param:
                    return count
                count += 1

    def unary(self, model: str, value: float) -> None:
        tensor = tensor_of(value)
        with contextlib.closing(grpcclient.InferenceServerClient(self.grpc)) as client:
            client.infer(model, [tensor], request_id="g")

    def written(self, number: int) -> list[dict]:
        """Read one of the numbered files once it exists: it is written after the answer."""
        path = self.file.with_name(f"{self.file.name}.{number}")
        found: list[dict] = []

        def is_there() -> bool:
            with contextlib.suppress(OSError, ValueError):
                found.extend(json.loads(path.read_text()))
            return bool(found)

        assert until(is_there), f"no file {path.name}"
        return found


@contextlib.contextmanager
def ours(repository: Path, file: Path, values: TraceValues) -> Iterator[Client]:
    with nt.Server(gpus=(), cache_bytes=1 << 20) as server:
        server.load_repository(repository)
        with server.serve(
            http_port=0, grpc_port=0, metrics_port=None, trace_file=str(file), trace=values
        ) as endpoints:
            ports = endpoints.http_port, endpoints.grpc_port
            yield Client(*(f"127.0.0.1:{port}" for port in ports), file)


SCENARIOS = {
    "http": lambda client: client.infer("echo", 1.5, 2.0, request_id="mine"),
    "failed": lambda client: client.infer("echo", -1),
    "grpc": lambda client: client.unary("echo", 3),
    "stream of one": lambda client: client.stream("echo", 3),
    "ensembles": lambda client: client.infer("outer", 2, request_id="e"),
    "failed ensemble": lambda client: client.infer("outer", -1),
    "calls": lambda client: client.infer("calls", 4),
    "decoupled": lambda client: client.stream("stream", 3),
    "none": lambda client: client.stream("stream", 0),
    "generate": lambda client: client.post("/v2/models/echo/generate", {"IN": [1.5]}),
}


def shape_of(entries: list[dict]) -> list:
    """Return what two servers' files have in common: everything except ids, times and their order.

    Nor how often a stream's sends are noted: 2.51 loses some of them.
    """
    parents = {each["id"]: each.get("parent_id", 0) for each in entries if "model_name" in each}
    found = {}
    events: dict[int, set[str]] = defaultdict(set)
    tensors: dict[int, list] = defaultdict(list)
    for each in entries:
        if "model_name" in each:
            found[each["id"]] = (each["model_name"], each["model_version"], each.get("request_id"))
        elif "timestamps" in each:
            events[each["id"]].update(stamp["name"] for stamp in each["timestamps"])
        else:
            tensors[each["id"]].append((each["activity"], tuple(sorted(each["tensor"].items()))))

    def path(number: int) -> tuple:
        return (*(path(parents[number]) if parents[number] else ()), found[number])

    return sorted((path(number), sorted(events[number]), tensors[number]) for number in found)


def traced(client: Client) -> dict[str, list]:
    """Return the file of each scenario."""
    found = {}
    for number, (name, send) in enumerate(SCENARIOS.items()):
        send(client)
        found[name] = shape_of(client.written(number))
    return found


def traced_by(reference, repository: Path, file: Path) -> dict[str, list]:
    """Return the same of the real server, which may crash: 2.51 frees a lock that it holds."""
    settings = (
        f"triton,file={file}", "triton,log-frequency=1", "rate=1", "level=TIMESTAMPS",
        "level=TENSORS",
    )  # fmt: skip
    # And of more calls over gRPC than it has room for.
    flags = ["--grpc-infer-allocation-pool-size=128", *(f"--trace-config={s}" for s in settings)]
    for _ in range(4):
        for left in file.parent.glob(f"{file.name}.*"):
            left.unlink()
        with reference.server(repository, COMPLETE, *flags) as real:
            try:
                return traced(Client(real.http_url, real.grpc_url, file))
            except Exception:
                # Its connections are closed a moment before it has ended.
                if not until(lambda: real.process.poll() is not None, 20.0):
                    raise
    pytest.skip("the real server died of tracing four times")


@pytest.mark.reference
@pytest.mark.slow
def test_files_of_both_servers_have_the_same_entries(reference, repository, tmp_path):
    theirs = traced_by(reference, repository, tmp_path / "theirs")
    with ours(repository, tmp_path / "ours", TraceValues(BOTH, 1, -1, 1)) as client:
        mine = traced(client)
    for name in SCENARIOS:
        assert mine[name] == theirs[name], name


@pytest.mark.medium
def test_times_are_in_order(repository, tmp_path):
    with ours(repository, tmp_path / "t", TraceValues(BOTH, 1, -1, 1)) as client:
        client.infer("outer", 2)
        entries = client.written(0)
    times: dict[int, dict[str, int]] = defaultdict(dict)
    for each in entries:
        for stamp in each.get("timestamps", ()):
            times[each["id"]][stamp["name"]] = stamp["ns"]
    top, *steps = (times[number] for number in sorted(times))
    assert next(iter(top.values())) <= top["REQUEST_START"] <= top["QUEUE_START"]
    assert top["REQUEST_END"] <= top["HTTP_SEND_END"]
    assert len(steps) == 3  # the inner ensemble, its step, and the second step
    for step in steps:
        assert top["REQUEST_START"] <= step["REQUEST_START"] <= step["QUEUE_START"]
        assert step["REQUEST_END"] <= top["REQUEST_END"]
        stages = [step[name] for name in step if name.startswith("COMPUTE")]
        assert stages == sorted(stages)
        assert len(stages) in (0, 4)


def stamps_of(entries: list[dict]) -> dict[str, int]:
    return {each["name"]: each["ns"] for entry in entries for each in entry.get("timestamps", ())}


@pytest.mark.medium
def test_HTTP_RECV_is_from_the_first_byte_to_the_last(repository, tmp_path):
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor]}).encode()
    with ours(repository, tmp_path / "t", TraceValues(BOTH, 1, -1, 1)) as client:
        host, _, port = client.http.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            before_ns = time.monotonic_ns()
            connection.sendall(
                b"POST /v2/models/echo/infer HTTP/1.1\r\nExpect: 100-continue\r\n"
                b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # the head has been read
            between_ns = time.monotonic_ns()
            connection.sendall(body)
            while connection.recv(1000):
                pass
        seen = stamps_of(client.written(0))
    assert before_ns < seen["HTTP_RECV_START"] < between_ns < seen["HTTP_RECV_END"]
    assert seen["HTTP_RECV_END"] <= seen["REQUEST_START"]


@pytest.mark.medium
def test_GRPC_WAITREAD_begins_when_the_request_before_had_come(repository, tmp_path):
    answers: queue.Queue = queue.Queue()
    with ours(repository, tmp_path / "t", TraceValues(BOTH, 1, -1, 1)) as client:
        before_ns = time.monotonic_ns()
        with grpcclient.InferenceServerClient(client.grpc) as c:
            c.infer("echo", [tensor_of(1)])
            first_ns = time.monotonic_ns()
            # Before the next request, whose file may be written earlier.
            found = [client.written(0)]
            c.start_stream(lambda result, error: answers.put(error))
            times_ns = []
            for number in (1, 2):
                times_ns.append(time.monotonic_ns())
                c.async_stream_infer("echo", [tensor_of(1)])
                assert answers.get(timeout=60) is None
                found.append(client.written(number))
            c.stop_stream()
        call, one, two = map(stamps_of, found)
    start, end = "GRPC_WAITREAD_START", "GRPC_WAITREAD_END"
    assert before_ns < call[start] < call[end] <= call["REQUEST_START"] < first_ns
    assert first_ns < one[start] < one[end] == two[start]
    assert times_ns[0] < one[end] < times_ns[1] < two[end] <= two["REQUEST_START"]


@pytest.mark.medium
def test_a_hit_of_the_cache_computes_nothing(repository, tmp_path):
    with ours(repository, tmp_path / "t", TraceValues(BOTH, 1, -1, 1)) as client:
        found = []
        for number in range(2):
            client.infer("cached", 7)
            found += shape_of(client.written(number))
        miss, hit = found
    assert "COMPUTE_START" in miss[1]
    assert not [name for name in hit[1] if name.startswith("COMPUTE")]
    assert hit[2] == miss[2]  # the same tensors


@pytest.mark.medium
def test_levels_and_refused_settings(repository, tmp_path):
    with ours(repository, tmp_path / "t", TraceValues(frozenset({"TENSORS"}), 1, -1, 1)) as client:
        client.infer("echo", 1, 2, 3, 4, 5)  # more than max_batch_size
        client.infer("echo", 1)
        entries = client.written(0)
        assert all("timestamps" not in each for each in entries)
        assert [each.get("activity") for each in entries] == [
            None, "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT",
        ]  # fmt: skip
        client.post("/v2/models/echo/trace/setting", {"trace_level": ["TIMESTAMPS"]})
        client.infer("echo", 1)
        assert all("tensor" not in each for each in client.written(1))
        client.post("/v2/models/echo/trace/setting", {"trace_level": ["OFF"]})
        client.infer("echo", 1)
        client.infer("cached", 1)
        assert client.written(2)[0]["model_name"] == "cached"


def test_a_tensor_in_BF16_needs_no_further_package(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    trace = TraceSample(frozenset({"TENSORS"}), print).begin()
    given = {"IN": torch.ones(2, dtype=torch.bfloat16), "MORE": np.ones(1, np.int8)}
    trace.tensors("TENSOR_QUEUE_INPUT", given)
    found = [(one.tensor, one.datatype, one.array.tolist()) for one in trace.activities]
    assert found == [("IN", "BF16", [0x3F80, 0x3F80]), ("MORE", "INT8", [1])]


# -- which requests, and which files -----------------------------------------------------------------


def _end(trace) -> None:
    """Record a finished request."""
    trace.model = "m"
    trace.sample.release()
    trace.sample.release()


def _files(folder: Path) -> dict[str, int]:
    """Return the number of traces in each file."""
    return {
        path.name: sum("model_name" in each for each in json.loads(path.read_text()))
        for path in sorted(folder.iterdir())
    }


def test_activities_after_the_end_of_a_sample_are_in_no_file(tmp_path):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(BOTH, 1, -1, 1))
    trace = tracing.sample("m")
    _end(trace)
    late = trace.child()
    late.model = "late"
    late.sample.release()
    tracing.close()
    assert _files(tmp_path) == {"t.0": 1}


def test_one_request_in_rate_is_traced(tmp_path):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(BOTH, 3))
    assert tracing.on
    taken = [tracing.sample("m") for _ in range(7)]
    assert [trace is not None for trace in taken] == [False, False, True] * 2 + [False]
    for trace in filter(None, taken):
        _end(trace)
    assert _files(tmp_path) == {}
    tracing.close()
    assert _files(tmp_path) == {"t": 2}


def test_no_more_requests_than_the_count_are_traced(tmp_path):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(BOTH, 2, 2))
    taken = [trace for trace in (tracing.sample("m") for _ in range(9)) if trace is not None]
    assert len(taken) == 2
    assert tracing.get()["trace_count"] == "0"
    _end(taken[0])
    assert _files(tmp_path) == {}
    _end(taken[1])
    assert _files(tmp_path) == {"t.0": 2}
    tracing.update("", {"count": 1})
    _end([tracing.sample("m") for _ in range(2)][1])
    tracing.close()
    assert _files(tmp_path) == {"t.0": 2, "t.1": 1}


def test_a_file_for_each_log_frequency_traces_and_the_rest_at_the_end(tmp_path):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(BOTH, 1, -1, 2))
    for _ in range(5):
        _end(tracing.sample("m"))
    assert _files(tmp_path) == {"t.0": 2, "t.1": 2}
    late = tracing.sample("m")
    tracing.close()
    assert _files(tmp_path) == {"t.0": 2, "t.1": 2}
    _end(late)
    assert _files(tmp_path) == {"t.0": 2, "t.1": 2, "t.2": 2}


@pytest.mark.parametrize(("count", "names"), [(-1, ["t"]), (3, ["t.0", "t.1"])])
def test_a_request_that_never_ends_does_not_keep_the_others_out_of_the_file(tmp_path, count, names):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(BOTH, 1, count))
    hangs = tracing.sample("m")
    for _ in range(2):
        _end(tracing.sample("m"))
    assert _files(tmp_path) == {}
    tracing.close()
    assert _files(tmp_path) == {names[0]: 2}
    _end(hangs)
    assert list(_files(tmp_path)) == names


def test_traces_keep_the_settings_that_they_began_with(tmp_path):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(BOTH, 1))
    first = tracing.sample("m")
    tracing.update("", {"level": frozenset()})
    assert not tracing.on
    assert tracing.sample("m") is None
    _end(first)
    tracing.update("", {"level": None})
    _end(tracing.sample("m"))
    tracing.close()
    assert _files(tmp_path) == {"t": 2}


def test_models_inherit_settings_that_they_do_not_set(tmp_path):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(frozenset(), 1000, 5))
    tracing.update("m", {"rate": 1})
    assert not tracing.on
    tracing.update("", {"level": BOTH})
    assert tracing.get("m") == {**tracing.get(), "trace_rate": "1"}
    assert tracing.sample("m") is not None
    assert tracing.sample("other") is None
    assert (tracing.get("m")["trace_count"], tracing.get()["trace_count"]) == ("4", "5")
    tracing.update("m", {"rate": None})
    assert tracing.get("m") == tracing.get()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rate": 0}, "sample rate must be non-zero"),
        ({"count": 0}, ""),
    ],
)
def test_wrong_settings_are_refused(tmp_path, values, reason):
    tracing = Tracing(str(tmp_path / "t"), TraceValues(BOTH, 7))
    tracing.update("m", {"rate": 8})
    before = tracing.get(), tracing.get("m")
    for model in ("", "m"):
        with pytest.raises(InvalidArgumentError) as caught:
            tracing.update(model, values)
        assert caught.value.message == f"Attempting to set invalid trace setting :{reason}"
        assert (tracing.get(), tracing.get("m")) == before
    tracing.update("", {"level": frozenset(), **values})  # off: then it does not matter
    with pytest.raises(InvalidArgumentError, match="trace file name is not given"):
        Tracing("", TraceValues(BOTH))


@pytest.mark.medium
def test_a_file_that_cannot_be_written_harms_no_request(repository, tmp_path, caplog):
    values = TraceValues(BOTH, 1, -1, 1)
    with ours(repository, tmp_path / "missing" / "t", values) as client:
        assert "4.0" in client.infer("echo", 2)
        assert "4.0" in client.infer("echo", 2)
    assert "failed creating trace file" in caplog.text


# -- the settings over both protocols ----------------------------------------------------------------

# (protocol, model, settings): None clears, as tritonclient sends it.
UPDATES = (
    ("http", "", {"trace_level": ["TIMESTAMPS"], "trace_rate": "7"}),
    ("http", "echo", {"trace_rate": "3", "log_frequency": "2"}),
    ("grpc", "echo", {"trace_count": "5", "trace_level": ["TENSORS", "TIMESTAMPS"]}),
    ("grpc", "cached", {"trace_rate": ["9"]}),
    ("grpc", "", {"trace_rate": None}),
    ("http", "echo", {"trace_rate": None, "trace_level": None}),
    ("grpc", "cached", {"trace_rate": None}),
    ("http", "", {"trace_level": ["OFF"]}),
    ("grpc", "echo", {"trace_count": None, "log_frequency": None}),
    ("http", "", {"trace_level": None}),
)


def settle(http: str, grpc: str) -> list[dict]:
    """Return all settings over both protocols after each update."""
    said = []
    with (
        contextlib.closing(httpclient.InferenceServerClient(http)) as over_http,
        contextlib.closing(grpcclient.InferenceServerClient(grpc)) as over_grpc,
    ):
        clients = {"http": over_http, "grpc": over_grpc}
        for protocol, model, settings in UPDATES:
            clients[protocol].update_trace_settings(model_name=model, settings=settings)
            for name in ("", "echo", "cached"):
                found = over_http.get_trace_settings(model_name=name)
                message = over_grpc.get_trace_settings(model_name=name)
                also = {key: list(entry.value) for key, entry in message.settings.items()}
                assert also == {
                    key: value if isinstance(value, list) else [value]
                    for key, value in found.items()
                }
                said.append({key: found[key] for key in found if key != "trace_file"})
    return said


@pytest.mark.reference
@pytest.mark.slow
def test_both_servers_report_the_same_settings_after_each_update(reference, repository, tmp_path):
    with ours(repository, tmp_path / "ours", TraceValues()) as client:
        mine = settle(client.http, client.grpc)
    flag = f"--trace-config=triton,file={tmp_path / 'theirs'}"
    with reference.server(repository, COMPLETE, flag) as real:
        theirs = settle(real.http_url, real.grpc_url)
    assert mine == theirs
