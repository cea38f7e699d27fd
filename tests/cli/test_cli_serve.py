"""``nbtriton serve``: tritonserver's flags, its log at the start, and its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbtriton.magics.cli import main
from nbtriton.serving.frontends.command import model_table
from tests.children import CHILD_TIMEOUT_S, finish, run_python
from tests.until import until

pytestmark = pytest.mark.slow  # most start a server of its own

MODEL = """
import os
import time

import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            os.write(1, b"executing\\n")  # at once: another model prints, too
            time.sleep(float(x.max()))
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x * 2)]))
        return found
"""
CONFIG = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
PORTS = ("--http-port=0", "--metrics-port", "0", "--allow-grpc=false")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("double", "other"):
        folder = tmp_path / "models" / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
        (folder.parent / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, int], list[str]]]:
    """Run the server until the block ends; yield the process, its ports and its lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nbtriton", "serve", *flags], stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    lines: list[str] = []
    ports: dict[str, int] = {}
    # A child that does not start writes the stacks of its threads, and ends.
    watchdog = threading.Timer(CHILD_TIMEOUT_S, process.send_signal, [signal.SIGABRT])
    watchdog.start()
    try:
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            found = re.search(r"Started (\S+).* at \S+:(\d+)", line)
            if found:
                ports[found[1]] = int(found[2])
            if "Started Metrics" in line:
                break
        assert not watchdog.finished.is_set(), "the server did not start in time"
        watchdog.cancel()
        yield process, ports, lines
    except BaseException:
        if process.poll() is None:  # it may be what the test waits for
            process.send_signal(signal.SIGABRT)
            print("the child at that moment:", *lines, *process.communicate(), sep="\n")
        raise
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def _run(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run a server that ends by itself."""
    return run_python("-m", "nbtriton", "serve", *flags)


def _infer(port: int, value: float) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    connection.request("POST", "/v2/models/double/infer", json.dumps({"inputs": [tensor]}))
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_L22_a_signal_drains_and_ends_with_0(repository: Path, number: signal.Signals) -> None:
    with serving("--model-repository", str(repository), *PORTS) as (process, ports, lines):
        text = "\n".join(lines)
        assert "| double | 1       | READY  |" in text
        connection = _infer(ports["HTTPService"], 0.5)
        assert process.stdout is not None
        assert process.stdout.readline() == "executing\n"
        process.send_signal(number)
        answer = json.load(connection.getresponse())
        assert answer["outputs"][0]["data"] == [1.0]
        connection.close()
        _, rest = finish(process)
        assert process.returncode == 0
        assert "Waiting for in-flight requests" in rest
        assert "Traceback" not in rest


def test_a_client_that_is_connected_is_answered_until_it_leaves(repository: Path) -> None:
    with serving("--model-repository", str(repository), *PORTS) as (process, ports, lines):
        connection = _infer(ports["HTTPService"], 0.0)
        connection.getresponse().read()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "Timeout 30: Found 1 HTTP service connections" in line:
                break
        for path in ("/v2/health/ready", "/v2/models/double/config"):
            connection.request("GET", path)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 200
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{ports['HTTPService']}/v2", timeout=60)
        connection.close()
        _, rest = finish(process)
        assert process.returncode == 0
        assert "Waiting for in-flight requests to complete." in rest


def test_the_connection_of_a_client_that_stays_is_aborted_at_the_timeout(repository: Path) -> None:
    flags = ("--model-repository", str(repository), "--exit-timeout-secs=1", *PORTS)
    with serving(*flags) as (process, ports, _lines):
        connection = _infer(ports["HTTPService"], 0.0)
        connection.getresponse().read()
        process.send_signal(signal.SIGTERM)
        _, rest = finish(process)
        assert process.returncode == 1
        assert "failed to stop server: Internal - Exit timeout expired." in rest


def test_a_load_that_hangs_ends_with_the_server(repository: Path) -> None:
    hanging = """
    def initialize(self, args):
        os.write(1, b"initializing\\n")
        time.sleep(3600)

    def execute"""
    (repository / "other" / "1" / "model.py").write_text(
        MODEL.replace("\n    def execute", hanging)
    )
    explicit = ("--model-control-mode=explicit", "--load-model=double", "--exit-timeout-secs=1")
    with serving("--model-repository", str(repository), *explicit, *PORTS) as (process, ports, _):
        connection = http.client.HTTPConnection("127.0.0.1", ports["HTTPService"], timeout=60)
        connection.request("POST", "/v2/repository/models/other/load")
        assert process.stdout is not None
        assert process.stdout.readline() == "initializing\n"
        process.send_signal(signal.SIGTERM)
        finish(process)
        assert process.returncode == 1


@pytest.fixture
def pipelines(repository: Path) -> Path:
    """A model that calls another one, and an ensemble of two steps; all wait as long as their input says."""
    (repository / "other" / "1" / "model.py").write_text(
        MODEL.replace("executing", "calling")
        .replace('"OUT", x * 2', '"OUT", answer.output_tensors()[0].as_numpy()')
        .replace(
            "            found.append",
            """            answer = pb_utils.InferenceRequest(
                model_name="double", requested_output_names=["OUT"],
                inputs=[pb_utils.Tensor("IN", x)],
            ).exec()
            found.append""",
        )
    )
    step = 'step { model_name: "double" model_version: -1 input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } }'
    folder = repository / "twice" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(
        'platform: "ensemble" '
        + CONFIG
        + f"ensemble_scheduling {{ {step % ('IN', 'MID')} {step % ('MID', 'OUT')} }}"
    )
    return repository


GRPC = ("--http-port=0", "--metrics-port=0", "--grpc-port=0")


def _grpc_infer(channel: Any, model: str, value: float) -> Any:
    from tests.frontends.grpc_support import infer, open_call, tensor

    raw = struct.pack("<f", value)
    return open_call(channel).future(infer(model, [tensor(shape=(1, 1))], [raw]), timeout=60)


def test_calls_of_models_and_steps_of_ensembles_are_finished(pipelines: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
    with serving("--model-repository", str(pipelines), *GRPC) as (process, ports, _lines):
        with grpc.insecure_channel(f"127.0.0.1:{ports['GRPCInferenceService']}") as channel:
            # Each has begun, "twice" first: "other" calls the model that prints what its steps print.
            running = [_grpc_infer(channel, "twice", 0.2)]
            assert process.stdout is not None
            assert process.stdout.readline() == "executing\n"
            running.append(_grpc_infer(channel, "other", 0.2))
            assert "calling\n" in iter(process.stdout.readline, "")
            process.send_signal(signal.SIGTERM)
            found = [
                round(struct.unpack("<f", one.result().raw_output_contents[0])[0], 3)
                for one in running
            ]
            assert found == [0.8, 0.4]
            _, rest = finish(process)
        assert process.returncode == 0
        assert "failed to stop server" not in rest


# The server sets its thresholds of the garbage collector, then waits for a signal.
SIGNALLED = """
import gc, signal, sys
from nbtriton.magics.cli import main

def run(lines):
    def trace(frame, event, _):
        nonlocal lines
        waits = gc.get_threshold()[0] == 50_000
        if waits and event == "line":
            lines -= 1
            if not lines:
                signal.raise_signal(signal.SIGTERM)
        return trace if waits or frame.f_code.co_name == "_serve" else None

    gc.set_threshold(700)
    sys.settrace(trace)
    try:
        return main(["serve", "--model-repository", sys.argv[1], *sys.argv[2:]])
    finally:
        sys.settrace(None)

print([run(lines) for lines in range(1, 13)])
"""


def test_a_signal_ends_the_server_before_any_line_that_it_waits_in(tmp_path: Path) -> None:
    done = run_python("-c", SIGNALLED, tmp_path, *PORTS, check=True)
    assert done.stdout == f"{[0] * 12}\n"


def test_a_request_beyond_the_timeout_gets_an_error(repository: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
    flags = ("--model-repository", str(repository), "--exit-timeout-secs=1", *GRPC)
    with serving(*flags) as (process, ports, _lines):
        with grpc.insecure_channel(f"127.0.0.1:{ports['GRPCInferenceService']}") as channel:
            running = _grpc_infer(channel, "double", 3600.0)
            assert process.stdout is not None
            assert process.stdout.readline() == "executing\n"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as failed:
                running.result()
            assert failed.value.code().name == "UNAVAILABLE"
            assert failed.value.details() == "Server is stopping"
            _, rest = finish(process)
        assert process.returncode == 1
        assert "Model 'double' (version 1) has 1 in-flight inferences" in rest
        assert "failed to stop server: Internal - Exit timeout expired." in rest


def test_every_request_under_load_is_answered_once(repository: Path, tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
    from tests.frontends.grpc_support import infer, open_stream, tensor

    ran = tmp_path / "ran"
    (repository / "double" / "1" / "model.py").write_text(
        MODEL.replace('os.write(1, b"executing\\n")', f'open({str(ran)!r}, "ab").write(b"x")')
    )
    (repository / "double" / "config.pbtxt").write_text(CONFIG + "dynamic_batching { }")
    message = infer("double", [tensor(shape=(1, 1))], [bytes(4)])
    answered = threading.Semaphore(0)
    ends: list[str] = []

    def call(channel: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            while True:
                for one in [_grpc_infer(channel, "double", 0.0) for _ in range(4)]:
                    try:
                        one.result()
                    except grpc.RpcError as error:
                        ends.append(error.code().name)
                        raise
                    answered.release()

    def stream(channel: Any) -> None:
        room = threading.Semaphore(4)
        over = threading.Event()

        def messages() -> Iterator[Any]:
            while room.acquire(timeout=60) and not over.is_set():
                yield message

        try:
            for answer in open_stream(channel)(messages(), timeout=60):
                if not answer.error_message:
                    answered.release()
                room.release()
        except grpc.RpcError as error:
            ends.append(error.code().name)
        over.set()
        room.release()

    with serving("--model-repository", str(repository), *GRPC) as (process, ports, _lines):
        with grpc.insecure_channel(f"127.0.0.1:{ports['GRPCInferenceService']}") as channel:
            clients = [
                threading.Thread(target=act, args=(channel,))
                for act in (call, call, stream, stream)
            ]
            for client in clients:
                client.start()
            for _ in range(40):
                assert answered.acquire(timeout=60)
            process.send_signal(signal.SIGTERM)
            finish(process)
            for client in clients:
                client.join(30)
        assert process.returncode == 0
        assert ends == 4 * ["UNAVAILABLE"]
    count = 40
    while answered.acquire(blocking=False):
        count += 1
    assert count == ran.stat().st_size


def test_flags_that_clients_notice(repository: Path) -> None:
    flags = (
        "--model-control-mode=explicit",
        "--load-model=other",
        "--id=mine",
        "--allow-client-shm=false",
        "--log-format",
        "ISO8601",
    )
    with serving(f"--model-repository={repository}", *flags, *PORTS) as (_, ports, lines):
        url = f"http://127.0.0.1:{ports['HTTPService']}/v2"
        assert json.load(urllib.request.urlopen(url))["name"] == "mine"
        assert not [line for line in lines if "| double" in line]
        urllib.request.urlopen(f"{url}/repository/models/double/load", b"{}").close()
        urllib.request.urlopen(f"{url}/models/double/ready").close()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/systemsharedmemory/unregister", b"")
        assert refused.value.code == 501
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ loader\.py:\d+\] ", lines[0])


def test_L4_a_model_that_fails_ends_the_server_unless_a_flag_says_otherwise(
    repository: Path,
) -> None:
    (repository / "double" / "1" / "model.py").write_text("raise ValueError('broken')")
    done = _run("--model-repository", str(repository), *PORTS)
    assert done.returncode == 1
    assert "failed to load all models" in done.stderr
    assert "| double | 1       | UNAVAILABLE: Internal: ValueError: broken" in done.stderr
    assert "failed to load 'double' version 1: Internal: ValueError: broken" in done.stderr
    assert "error: creating server: Internal - failed to load all models" in done.stderr
    (repository / "double" / "1" / "model.py").write_text(MODEL)
    done = _run(
        "--model-repository",
        str(repository),
        *PORTS,
        "--model-control-mode=explicit",
        "--load-model=nope",
    )
    assert done.returncode == 1
    assert "failed to poll model 'nope': model not found in any model repository." in done.stderr
    (repository / "double" / "1" / "model.py").write_text("raise ValueError('broken')")
    with serving("--model-repository", str(repository), "--exit-on-error=false", *PORTS) as (
        _, ports, _lines,
    ):  # fmt: skip
        url = f"http://127.0.0.1:{ports['HTTPService']}/v2"
        urllib.request.urlopen(f"{url}/models/other/ready").close()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/health/ready")


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_server_without_its_repository_stays_and_refuses(tmp_path: Path, strict: str) -> None:
    flags = (f"--model-repository={tmp_path / 'nowhere'}", *PORTS)
    done = _run(*flags)
    assert done.returncode == 1
    assert f"error: creating server: Internal - failed to stat file {tmp_path}" in done.stderr
    with serving(*flags, "--exit-on-error=false", f"--strict-readiness={strict}") as (
        _, ports, lines,
    ):  # fmt: skip
        assert any("Internal: failed to stat file" in line for line in lines)
        # What tritonserver 2.51 answers: only what has nothing to do with models.
        for path, status in (
            ("/health/live", 400),
            ("/health/ready", 400),
            ("/models/m/ready", 503),
            ("/models/m/config", 503),
            ("/models/m/stats", 503),
            ("/models/stats", 503),
            ("/models/m/trace/setting", 503),
            ("", 200),
            ("/systemsharedmemory/status", 200),
            ("/logging", 200),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", ports["HTTPService"], timeout=60)
            connection.request("GET", f"/v2{path}")
            reply = connection.getresponse()
            assert reply.status == status, path
            if status == 503:
                assert json.load(reply) == {"error": "Server not ready"}, path
        for path in ("index", "models/m/load", "models/m/unload"):
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(
                    f"http://127.0.0.1:{ports['HTTPService']}/v2/repository/{path}", b"{}"
                )


def test_a_named_model_that_fails_ends_the_server_with_its_error(repository: Path) -> None:
    (repository / "double" / "1" / "model.py").write_text("raise ValueError('broken')")
    for given, text in (
        (
            "double",
            "Invalid argument - load failed for model 'double': version 1 is at UNAVAILABLE",
        ),
        ("*", "Internal - failed to load all models"),
    ):
        done = _run(
            "--model-repository",
            str(repository),
            "--model-control-mode=EXPLICIT",
            f"--load-model={given}",
            *PORTS,
        )
        assert done.returncode == 1
        assert f"error: creating server: {text}" in done.stderr


def test_an_open_address_is_warned_about(repository: Path) -> None:
    with serving("--model-repository", str(repository), "--http-address=0.0.0.0", *PORTS) as (
        _, _ports, lines,
    ):  # fmt: skip
        assert any("everyone who can reach this machine" in line for line in lines)


def test_AC1_strict_model_config(repository: Path) -> None:
    (repository / "double" / "config.pbtxt").unlink()
    done = _run(
        "--model-repository",
        str(repository),
        "--strict-model-config=true",
        *PORTS,
    )
    assert done.returncode == 1


def test_a_taken_port_is_one_line_of_error(repository: Path) -> None:
    with serving("--model-repository", str(repository), *PORTS) as (_, ports, _lines):
        done = _run(
            "--model-repository",
            str(repository),
            f"--http-port={ports['HTTPService']}",
            "--allow-grpc=0",
            "--allow-metrics=off",
        )
        assert done.returncode == 1
        assert "already in use" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_table_of_models() -> None:
    table = model_table(
        [
            {"name": "a", "version": "1", "state": "READY"},
            {"name": "b", "version": "2", "state": "UNAVAILABLE", "reason": "no\n\nway "},
            {"name": "never loaded"},
        ]
    )
    assert table.splitlines()[3:5] == [
        "| a     | 1       | READY               |",
        "| b     | 2       | UNAVAILABLE: no way |",
    ]


NO_SECOND_INSTANCE = """
    def initialize(self, args):
        if args["model_instance_name"].endswith("_1"):
            raise RuntimeError("no room")
"""


def test_perf_and_export(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "double" / "1" / "model.py").write_text(
        MODEL.replace("time.sleep(float(x.max()))", "").replace('os.write(1, b"executing\\n")', "")
    )
    table = tmp_path / "report.csv"
    assert main(["perf", "double", "--model-repository", str(repository), "-c", "1,2",
                 "--request-count", "20", "-f", str(table)]) == 0  # fmt: skip
    assert "concurrency" in capsys.readouterr().out
    assert len(table.read_text().splitlines()) == 3
    # The second configuration cannot be loaded: the first is told, and the status says that it is not all.
    code = (repository / "double" / "1" / "model.py").read_text()
    (repository / "double" / "1" / "model.py").write_text(code + NO_SECOND_INSTANCE)
    assert main(["perf", "double", "--model-repository", str(repository), "--instances", "1,2",
                 "--request-count", "5"]) == 1  # fmt: skip
    told = capsys.readouterr().out
    assert "1 level measured" in told
    assert "no room" in told
    assert main(["export", str(repository), str(tmp_path / "written"), "double"]) == 0
    assert (tmp_path / "written" / "double" / "config.pbtxt").exists()
    assert not (tmp_path / "written" / "other").exists()
    with pytest.raises(SystemExit):
        main(["export"])
    assert capsys.readouterr().err.endswith("required: REPOSITORY, DIR\n")
    assert main(["perf", "nope", "--model-repository", str(repository)]) == 2
    assert "model 'nope': model not found in any model repository" in capsys.readouterr().err


def test_traces_and_summaries_from_the_flags(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    flags = (
        f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS",
        "--trace-config", "rate=1", "--metrics-config=summary_latencies=true",
        "--metrics-config", "summary_quantiles=0.5:0.05,0.75:0.01",
    )  # fmt: skip
    with serving(f"--model-repository={repository}", *flags, *PORTS) as (process, ports, _):
        for _ in range(2):
            _infer(ports["HTTPService"], 0).getresponse().read()
        url = f"http://127.0.0.1:{ports['Metrics']}/metrics"
        with urllib.request.urlopen(url) as reply:
            text = reply.read().decode()
        assert re.search(
            r'^nv_inference_queue_summary_us\{.*quantile="0.75"\} ', text, re.MULTILINE
        )
        assert not file.exists()
        process.send_signal(signal.SIGTERM)
        finish(process)
        assert process.returncode == 0
    written = json.loads(file.read_text())
    assert [each["model_name"] for each in written if "model_name" in each] == ["double"] * 2


def test_a_repository_is_polled(repository: Path) -> None:
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with serving(f"--model-repository={repository}", *flags, *PORTS) as (_, ports, _):
        url = f"http://127.0.0.1:{ports['HTTPService']}/v2"

        def ready() -> set[str]:
            request = urllib.request.Request(f"{url}/repository/index", b'{"ready": true}')
            with urllib.request.urlopen(request) as reply:
                return {entry["name"] for entry in json.load(reply)}

        assert ready() == {"double", "other"}
        shutil.copytree(repository / "double", repository / "third")
        shutil.rmtree(repository / "other")
        assert until(lambda: ready() == {"double", "third"})
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/repository/models/third/unload", b"{}")


def test_the_log_goes_to_a_file(repository: Path, tmp_path: Path, capfd) -> None:
    (repository / "double" / "1" / "model.py").write_text("raise ValueError('broken')")
    log = tmp_path / "log"
    flags = (f"--log-file={log}", "--log-info=false", *PORTS)
    done = _run(f"--model-repository={repository}", *flags)
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line for line in log.read_text().splitlines() if re.match(r"[IWE]\d{4} ", line)]
    assert lines
    assert {line[0] for line in lines} == {"E"}
    assert any("broken" in line for line in lines)


def test_the_openai_endpoint_is_started_with_its_port(repository: Path) -> None:
    flags = ("--model-repository", str(repository), *PORTS, "--openai-port=0")
    with serving(*flags, "--chat-template", "{{ messages[0].content }}") as (_process, ports, _):
        url = f"http://127.0.0.1:{ports['OpenAI']}/v1/models"
        with urllib.request.urlopen(url, timeout=60) as reply:
            assert json.load(reply) == {"object": "list", "data": []}
    done = _run(*flags, "--chat-template", "{% for")
    assert done.returncode == 1
    assert "the chat template cannot be read" in done.stderr
