"""Readiness, model control, restricted APIs, forwarded headers, settings, statistics, metrics."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import queue
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nbtriton.backends.python.api.metrics import MetricKind, family_of
from nbtriton.common.errors import InternalError, InvalidArgumentError, LoadError
from nbtriton.model.config import as_config
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, serve
from nbtriton.serving.frontends.metrics import Metrics, MetricsConfig
from nbtriton.serving.frontends.service import EXTENSIONS, forwards_of
from nbtriton.serving.frontends.tracing import Tracing
from tests.frontends.cases import CASES, ONE_JSON, Case, ask, document, tensor
from tests.frontends.models import ECHO, MODELS, load_all
from tests.until import until

SERVED = ("one", "parameters", "sequence", "stream", "text")


class Control:
    """A model control that records its calls."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ready = True
        self.entries: list[dict[str, Any]] = [{"name": "one", "version": "1", "state": "READY"}]

    def index(self, ready: bool) -> list[dict[str, Any]]:
        self.asked.append(ready)
        return [entry for entry in self.entries if not ready or entry.get("state") == "READY"]

    def load(self, name: str, parameters: dict[str, Any]) -> None:
        if name == "broken":
            raise LoadError("load failed for model 'broken': no\n")
        if name == "absent":
            raise InternalError("failed to load 'absent', failed to poll from model repository")
        self.asked.append((name, parameters))

    def unload(self, name: str, parameters: dict[str, Any]) -> None:
        self.asked.append((name, parameters))

    def is_server_ready(self) -> bool:
        return self.ready


@pytest.fixture(scope="module")
def one(repository) -> Iterator[Server]:
    with Server(gpus=()) as server:
        load_all(server, repository, ("one", "parameters"))
        yield server


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def controlled(one: Server, control: Control) -> Iterator[Endpoints]:
    with serve(one, http_port=0, metrics_port=None, control=control) as endpoints:
        yield endpoints


def send(endpoints: Endpoints, path: str, body: Any = b"", method: str = "POST", **headers: str):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(endpoints.http_port, Case("", 0, path, data, method=method, headers=names))


# -- model control -----------------------------------------------------------------------------------


@pytest.mark.medium
def test_load_and_unload_reach_the_control(controlled: Endpoints, control: Control) -> None:
    files = {"file:1/model.py": base64.b64encode(b"code").decode(), "config": "{}"}
    assert send(controlled, "/v2/repository/models/m/load").status == 200
    assert send(controlled, "/v2/repository/models/m/load", {"parameters": files}).status == 200
    odd = {"parameters": {"file:x": "no base64 *** at all!", "config": "{}"}}
    assert send(controlled, "/v2/repository/models/m/load", odd).status == 200  # KS61
    seen = send(
        controlled, "/v2/repository/models/m/unload", {"parameters": {"unload_dependents": True}}
    )
    assert (seen.status, seen.body) == (200, b"")
    assert send(controlled, "/v2/repository/models/m/unload").status == 200
    first, second, third, *rest = control.asked
    assert first == ("m", {})
    assert second == ("m", {"file:1/model.py": b"code", "config": "{}"})
    assert isinstance(third[1]["file:x"], bytes)
    assert rest == [("m", {"unload_dependents": True}), ("m", {})]


@pytest.mark.parametrize(
    ("name", "body", "status", "error"),
    [
        ("broken", {}, 400, "load failed for model 'broken': no\n"),
        ("absent", {}, 500, "failed to load 'absent', failed to poll from model repository"),
        ("m", {"parameters": {"foo": "x"}}, 500, "unexpected error on creating Triton parameter"),
        ("m", {"parameters": {"config": 5}}, 500, "attempt to access JSON non-string as string"),
        ("m", {"parameters": 5}, 500, "attempt to get members for non-object"),
    ],
)
def test_KS65_load_errors(
    controlled: Endpoints, name: str, body: Any, status: int, error: str
) -> None:
    seen = send(controlled, f"/v2/repository/models/{name}/load", body)
    assert (seen.status, seen.error) == (status, error)


def test_KS16_index(controlled: Endpoints, control: Control) -> None:
    control.entries.append({"name": "bad", "version": "1", "state": "UNAVAILABLE", "reason": "x"})
    assert [e["name"] for e in send(controlled, "/v2/repository/index").json] == ["one", "bad"]
    assert [e["name"] for e in send(controlled, "/v2/repository/index", {"ready": True}).json] == ["one"]  # fmt: skip
    assert send(controlled, "/v2/repository/x/index").status == 200
    assert control.asked == [False, True, False]


@pytest.mark.medium
def test_without_control_models_can_only_be_listed(endpoints: Endpoints) -> None:
    index = send(endpoints, "/v2/repository/index").json
    assert {entry["name"] for entry in index} == set(SERVED)
    assert index[0] == {"name": min(SERVED), "version": "1", "state": "READY"}
    for verb in ("load", "unload"):
        seen = send(endpoints, f"/v2/repository/models/one/{verb}")
        assert seen.status == 503
        assert seen.error == "explicit model load / unload is not allowed if polling is enabled"


def test_KS11_readiness_is_strict(controlled: Endpoints, one: Server, control: Control) -> None:
    def ready() -> tuple[int, bytes]:
        seen = send(controlled, "/v2/health/ready", method="GET")
        return seen.status, seen.body

    assert ready() == (200, b"")
    control.ready = False
    assert ready() == (400, b"")
    with serve(
        one, http_port=0, metrics_port=None, control=control, strict_readiness=False
    ) as lenient:
        assert send(lenient, "/v2/health/ready", method="GET").status == 200


# -- who gets in -------------------------------------------------------------------------------------


def test_KS17_restricted_apis(one: Server) -> None:
    restricted = {"inference": ("mykey", "secret"), "health": ("other", "x")}
    with serve(one, http_port=0, metrics_port=None, restricted=restricted) as endpoints:
        for wrong in ({}, {"mykey": "guess"}, {"other": "secret"}):
            seen = send(endpoints, "/v2/models/one/infer", ONE_JSON, **wrong)
            assert (seen.status, seen.error) == (
                403, "This API is restricted, expecting header 'mykey'"
            )  # fmt: skip
        assert send(endpoints, "/v2/models/one/infer", ONE_JSON, MyKey="secret").status == 200
        assert send(endpoints, "/v2/models/one/ready", method="GET").status == 403
        assert send(endpoints, "/v2/models/one", method="GET").status == 200


def test_KS35_headers_become_parameters_if_asked(one: Server) -> None:
    body = document(tensor(shape=[1], data=[1]))
    with serve(
        one, http_port=0, metrics_port=None, header_forward_pattern="^x-|Trace"
    ) as endpoints:
        for _ in range(2):  # the second time the head has a template
            seen = send(endpoints, "/v2/models/parameters/infer", body, X_One="1", traceparent="T")
            found = json.loads(seen.json["outputs"][0]["data"][0])
            assert found == {"X-One": "1", "traceparent": "T"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("MY_H", ["my_header", "x-My_H"]),
        ("^my_h", ["my_header"]),
        ("(?-i)My_H", ["x-My_H"]),
        (r"\pL_\pL", ["my_header", "x-My_H"]),  # Python's own syntax has no \p
        (".*", ["my_header", "x-My_H", "\udcff"]),
    ],
)
def test_patterns_of_headers_are_those_of_re2(pattern: str, names: list[str]) -> None:
    forwards = forwards_of(pattern)
    assert forwards is not None
    given = ("my_header", "x-My_H", "\udcff")
    assert [name for name in given if forwards(name.encode("utf-8", "surrogateescape"))] == names


@pytest.mark.parametrize("pattern", ["", "[", "(?=ahead)", r"\1"])
def test_a_pattern_that_re2_cannot_read_forwards_nothing(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert forwards_of(pattern) is None
    assert len(caplog.messages) == (pattern != "")
    assert all(f"'{pattern}' is not an RE2 pattern" in message for message in caplog.messages)


# -- what is reported --------------------------------------------------------------------------------


def test_KS12_server_metadata(endpoints: Endpoints) -> None:
    found = send(endpoints, "/v2", method="GET").json
    assert list(found) == ["name", "version", "extensions"]
    assert found["name"] == "triton"
    assert found["extensions"] == list(EXTENSIONS)


def test_KS70_trace_settings_of_one_model_and_of_all(tmp_path) -> None:
    settings = Tracing(str(tmp_path / "trace.json"))
    settings.update("", {"level": frozenset({"TIMESTAMPS"}), "rate": 5})
    settings.update("m", {"rate": 7, "count": 3})
    assert settings.get("m")["trace_rate"] == "7"
    assert settings.get("m")["trace_level"] == ["TIMESTAMPS"]
    assert settings.get("other")["trace_count"] == "-1"
    settings.update("m", {"rate": None})
    assert settings.get("m")["trace_rate"] == "5"
    settings.update("", {"rate": None})
    assert settings.get("m")["trace_rate"] == "1000"
    with pytest.raises(Exception, match="sample rate must be non-zero"):
        settings.update("", {"rate": 0})
    assert settings.get()["trace_rate"] == "1000"


def test_KS71_log_settings_are_kept(endpoints: Endpoints) -> None:
    changed = send(
        endpoints,
        "/v2/logging",
        {"log_verbose_level": 2, "log_format": "ISO8601", "log_info": None},
    )
    assert changed.json["log_verbose_level"] == 2
    assert send(endpoints, "/v2/logging", method="GET").json == changed.json
    send(endpoints, "/v2/logging", {"log_verbose_level": 0, "log_format": "default"})


def test_KS80_CL4_statistics_have_one_entry_a_model(endpoints: Endpoints) -> None:
    send(endpoints, "/v2/models/one/infer", ONE_JSON)
    (entry,) = send(endpoints, "/v2/models/one/stats", method="GET").json["model_stats"]
    assert entry["name"] == "one"
    assert entry["inference_stats"]["success"]["count"] >= 1
    everything = send(endpoints, "/v2/models/stats", method="GET").json["model_stats"]
    assert len(everything) == len(SERVED)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_KS32_answers_are_compressed_if_asked(endpoints: Endpoints, encoding: str) -> None:
    seen = send(endpoints, "/v2/models/one/infer", ONE_JSON, Accept_Encoding=encoding)
    assert seen.headers["content-encoding"] == encoding
    text = gzip.decompress(seen.body) if encoding == "gzip" else zlib.decompress(seen.body)
    assert json.loads(text)["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]
    failed = send(endpoints, "/v2/models/nope/infer", ONE_JSON, Accept_Encoding=encoding)
    assert "content-encoding" not in failed.headers


# -- metrics -----------------------------------------------------------------------------------------

METRIC_MODEL = ECHO.replace(
    "    def execute(",
    """    def execute(self, requests):
        if not hasattr(self, "family"):
            kind = pb_utils.MetricFamily
            self.family = kind(name="my_count", description="mine\\nand yours", kind=kind.COUNTER)
            self.metric = self.family.Metric(labels={"who": 'a"b'})
            self.times = kind(name="my_times", description="t", kind=kind.HISTOGRAM)
            self.time = self.times.Metric(labels={"x": "y"}, buckets=[1, 2.5])
        self.metric.increment(2)
        self.time.observe(2)
        return self.answer(requests)

    def answer(""",
)
SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{(?:[a-z]\w*="(?:[^"\\\n]|\\.)*",?)*\})? (\S+)')


def scrape(endpoints: Endpoints, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoints.metrics_port}{path}") as reply:
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        return reply.read().decode()


def test_PB84_KS81_KS82_metrics(tmp_path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(METRIC_MODEL)
    with (
        Server(gpus=(), cache_bytes=1 << 20) as server,
        serve(server, http_port=0, metrics_port=0) as endpoints,
    ):
        server.load(MODELS["one"][0] + "response_cache { enable: true }", tmp_path / "1" / "model.py", name="one")  # fmt: skip
        for _ in range(3):
            server.infer("one", {"IN": np.ones((2, 4), np.float32)})
        text = scrape(endpoints)
        labels = '{model="one",version="1"}'
        lines = text.splitlines()
        for line in (
            f"nv_inference_request_success{labels} 3",
            f"nv_inference_count{labels} 2",
            f"nv_inference_exec_count{labels} 1",
            'nv_inference_request_failure{model="one",reason="REJECTED",version="1"} 0',
            'nv_inference_request_failure{model="one",reason="BACKEND",version="1"} 0',
            f"nv_inference_pending_request_count{labels} 0",
            f"nv_cache_num_hits_per_model{labels} 2",
            f"nv_cache_num_misses_per_model{labels} 1",
            "nv_cache_num_entries 1",
            'my_count{who="a\\"b"} 2',
            "# HELP my_count mine\\nand yours",
            'my_times_bucket{x="y",le="1"} 0',
            'my_times_bucket{x="y",le="2.5"} 1',
            'my_times_bucket{x="y",le="+Inf"} 1',
            'my_times_sum{x="y"} 2',
        ):
            assert line in lines
        # What Prometheus can read: each sample's family has been introduced.
        introduced = set()
        for line in lines:
            if line.startswith("# TYPE "):
                introduced.add(line.split()[2])
            elif not line.startswith("# HELP "):
                name = SAMPLE.fullmatch(line)[1]
                assert introduced & {name, re.sub(r"_(bucket|sum|count)$", "", name)}, line
        assert scrape(endpoints, "/metrics/").splitlines()[0] == lines[0]
        assert scrape(endpoints, "/anything") == ""
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(f"http://127.0.0.1:{endpoints.metrics_port}/metrics", data=b"")


def opened(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.reference
@pytest.mark.slow
def test_KS81_metrics_have_the_real_servers_names(
    reference, endpoints: Endpoints, tmp_path
) -> None:
    folder = tmp_path / "one"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('name: "one"\n' + MODELS["one"][0])
    (folder / "1" / "model.py").write_text(MODELS["one"][1])

    def families(text: str) -> dict[str, tuple[str, str]]:
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
        return {name: (kind, helps[name]) for name, kind in kinds.items()}

    with reference.server(tmp_path) as real:
        url = f"http://127.0.0.1:{real.metrics_port}/metrics"
        # The port of metrics opens after the one that says that the server is ready.
        assert until(lambda: opened(real.metrics_port))
        with urllib.request.urlopen(url) as reply:
            theirs = families(reply.read().decode())
    ours = families(scrape(endpoints))
    assert {name: entry for name, entry in ours.items() if name.startswith("nv_")} == theirs


def test_metric_tags_are_labels_of_the_models_metrics() -> None:
    with (
        Server(gpus=()) as server,
        serve(server, http_port=0, metrics_port=0) as endpoints,
    ):
        config = as_config(MODELS["one"][0] + "metric_tags { key: 'team' value: 'vision' }")
        server.load(config, Plain, name="one")
        lines = scrape(endpoints).splitlines()
        assert 'nv_inference_count{model="one",team="vision",version="1"} 0' in lines
        failure = '{model="one",reason="OTHER",team="vision",version="1"} 0'
        assert f"nv_inference_request_failure{failure}" in lines


class Plain:
    """A model without requests."""

    def execute(self, requests: list[object]) -> list[object]:
        raise AssertionError(requests)


def test_a_scrape_does_not_wait_for_a_model(endpoints: Endpoints) -> None:
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(scrape(endpoints))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 8


def test_every_case_is_answered_the_same_twice(endpoints: Endpoints) -> None:
    """The second time head and text have templates."""
    for case in CASES:
        if case.path.endswith("/infer") and "sequence" not in case.path:
            first, second = ask(endpoints.http_port, case), ask(endpoints.http_port, case)
            assert (first.status, first.body) == (second.status, second.body), case.id


@pytest.mark.parametrize("port", ["http_port", "grpc_port", "metrics_port", "openai_port"])
def test_a_port_that_there_is_not_is_refused(port):
    """The system would take its low 16 bits: 70000 is 4464."""
    with Server() as server, pytest.raises(InvalidArgumentError, match=f"{port} must be from 0"):
        serve(server, **{"http_port": None, "metrics_port": None, port: 70_000})


@pytest.mark.parametrize(
    "option",
    [
        {"http_port": "8000"}, {"host": 3}, {"host": None}, {"limits": 3}, {"trace": "x"}, {"openai": {}},
        {"http_tls": "cert.pem"}, {"restricted": "inference"}, {"strict_readiness": "no"},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_of_another_kind_opens_no_port(option):
    (name,) = option
    given = {"http_port": 0, "metrics_port": None, **option}
    with Server(gpus=()) as server, pytest.raises(InvalidArgumentError, match=f"{name} must be "):
        serve(server, **given)


# -- texts with half of a surrogate pair, as JSON and tokenizers give them ---------------------------


class Halves:
    """A model whose error, and whose metric, hold half of a character."""

    def initialize(self, args: Any) -> None:
        import triton_python_backend_utils as pb_utils

        self.family = pb_utils.MetricFamily("halves", "told \ud800", pb_utils.MetricFamily.GAUGE)
        self.metric = self.family.Metric({"text": "half \ud800"})

    def execute(self, requests: list[object]) -> list[object]:
        raise ValueError("half \ud800")


@pytest.fixture
def halves() -> Iterator[Endpoints]:
    with (
        Server(gpus=()) as server,
        serve(server, http_port=0, metrics_port=0, grpc_port=0) as endpoints,
    ):
        server.load(MODELS["one"][0], Halves, name="one")
        yield endpoints


@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
def test_an_error_that_is_no_unicode_is_answered(halves: Endpoints, path: str) -> None:
    body = ONE_JSON if path == "infer" else {"IN": [1.0] * 4}
    answer = send(halves, f"/v2/models/one/{path}", body)
    assert answer.status >= 400
    assert b"half ?" in answer.body


def test_an_error_that_is_no_unicode_is_answered_over_a_stream(halves: Endpoints) -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="Triton's client needs grpcio")
    made = client.InferInput("IN", (1, 4), "FP32")
    made.set_data_from_numpy(np.ones((1, 4), np.float32))
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with client.InferenceServerClient(f"127.0.0.1:{halves.grpc_port}") as connection:
        connection.start_stream(lambda result, error: answers.put((result, error)))
        connection.async_stream_infer("one", [made])
        result, error = answers.get(timeout=60)
        connection.stop_stream(cancel_requests=True)
    assert result is None
    assert "half ?" in str(error)


def test_a_load_whose_error_is_no_unicode_is_answered(one: Server) -> None:
    class Broken(Control):
        def load(self, name: str, parameters: dict[str, Any]) -> None:
            raise LoadError("half \ud800")

    with serve(one, http_port=0, metrics_port=None, control=Broken()) as endpoints:
        answer = send(endpoints, "/v2/repository/models/m/load")
    assert (answer.status, json.loads(answer.body)) == (400, {"error": "half ?"})


def test_metrics_that_are_no_unicode_are_written(halves: Endpoints) -> None:
    lines = scrape(halves).splitlines()
    assert 'halves{text="half ?"} 0' in lines
    assert "# HELP halves told ?" in lines


def test_metrics_that_cannot_be_written_are_an_error_and_not_silence() -> None:
    class Complex:
        def initialize(self, args: Any) -> None:
            import triton_python_backend_utils as pb_utils

            self.family = pb_utils.MetricFamily("odd", "", pb_utils.MetricFamily.GAUGE)
            self.metric = self.family.Metric({})
            self.metric.increment(1j)

    with Server(gpus=()) as server, serve(server, http_port=None, metrics_port=0) as endpoints:
        server.load(MODELS["one"][0], Complex, name="one")
        with pytest.raises(urllib.error.HTTPError, match="500") as caught:
            scrape(endpoints)
        assert b"TypeError" in caught.value.read()
        assert scrape(endpoints, "/anything") == ""


@pytest.mark.medium
def test_a_scrape_while_a_model_adds_labels() -> None:
    server = Server(gpus=())
    family = family_of(server.engine.model_server, "users", "", MetricKind.GAUGE)
    kept = [family.sample((("user", str(number)),), ()) for number in range(2000)]
    metrics = Metrics(server, MetricsConfig(machine=False))
    ended = threading.Event()

    def add() -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            family.sample((("new", str(number)),), ())  # and drop it

    adding = threading.Thread(target=add)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    adding.start()
    try:
        for _ in range(20):
            assert metrics.text().count(b"users{user=") == len(kept)
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        adding.join()
        server.close()
