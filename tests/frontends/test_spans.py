"""Trace mode ``opentelemetry``: the spans that a collector gets, of both servers."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")
pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions import opentelemetry
from nbtriton.extensions.opentelemetry import SpanExport, read_traceparent
from nbtriton.magics.cli import main
from nbtriton.serving.frontends import OpenTelemetry, TraceValues
from nbtriton.serving.frontends.flags import parse_flags, trace_settings
from tests.differential.servers import COMPLETE
from tests.frontends import test_tracing
from tests.frontends.test_tracing import SCENARIOS, Client
from tests.sites import Site
from tests.until import until

repository = test_tracing.repository  # the fixture
TIMES = frozenset({"TIMESTAMPS"})
# Scenarios, and how many spans the request of each has: one, two for each model, one for each ensemble.
SPANS = {"http": 3, "grpc": 3, "ensembles": 7, "calls": 5, "decoupled": 3}
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENTS_SPAN = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "vendor=1"}
OWN_SPAN = """
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        contexts = [request.trace().get_context() for request in requests]
        out = [np.array([text or ""], dtype=object) for text in contexts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]) for x in out]
"""


class Collector:
    """Takes OTLP over HTTP, and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for group in _request(body, self.headers["Content-Type"]).resource_spans:
                    collector.resources.append(group.resource)
                    for scope in group.scope_spans:
                        assert scope.scope.name == "triton-server"
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = Site(Handler)
        self.url = f"127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def tree(self) -> tuple[Any, ...] | None:
        """Return the newest request's spans as (name, attributes, events, spans inside)."""
        roots = [span for span in self.spans if span.name == "InferRequest"]
        if not roots:
            return None
        inside: dict[bytes, list[Any]] = defaultdict(list)
        for span in self.spans:
            inside[span.parent_span_id].append(span)
        return _tree(roots[-1], inside)


def _request(body: bytes, kind: str) -> ExportTraceServiceRequest:
    """Read a request in either of OTLP's forms: Triton sends JSON, with ids in hexadecimal digits."""
    if kind == "application/x-protobuf":
        return ExportTraceServiceRequest.FromString(body)
    ids = re.compile(rb'("(?:traceId|spanId|parentSpanId)":\s*")([0-9a-f]*)"')
    text = ids.sub(
        lambda found: found[1] + base64.b64encode(bytes.fromhex(found[2].decode())) + b'"', body
    )
    return json_format.Parse(text, ExportTraceServiceRequest(), ignore_unknown_fields=True)


def _tree(span: Any, inside: dict[bytes, list[Any]]) -> tuple[Any, ...]:
    assert span.start_time_unix_nano <= span.end_time_unix_nano
    assert span.kind == span.SPAN_KIND_SERVER
    attributes = {each.key: each.value for each in span.attributes}
    told = {
        key: attributes[f"triton.{key}"].string_value or attributes[f"triton.{key}"].int_value
        for key in ("model_name", "model_version", "request_id")
        if f"triton.{key}" in attributes
    }
    events = sorted({event.name for event in span.events})
    children = sorted((_tree(each, inside) for each in inside[span.span_id]), key=repr)
    return span.name, told, sorted(attributes), events, children


@pytest.fixture
def collector() -> Iterator[Collector]:
    with contextlib.closing(Collector()) as found:
        yield found


@contextlib.contextmanager
def ours(repository: Path, collector: Collector, **values: Any) -> Iterator[Client]:
    options = OpenTelemetry(collector.url, {"service.name": "mine"}, bsp_schedule_delay=50)
    settings = TraceValues(TIMES, **{"rate": 1, **values})
    with nt.Server(gpus=(), cache_bytes=1 << 20) as server:
        server.load_repository(repository)
        with server.serve(
            http_port=0, grpc_port=0, metrics_port=None, trace=settings, opentelemetry=options
        ) as endpoints:
            ports = endpoints.http_port, endpoints.grpc_port
            yield Client(*(f"127.0.0.1:{port}" for port in ports), Path())


def received(collector: Collector, count: int) -> tuple[Any, ...]:
    """Return the spans of the newest request, once the collector has this number: it gets no end."""
    assert until(lambda: len(collector.spans) >= count), [span.name for span in collector.spans]
    tree = collector.tree()
    assert tree is not None
    return tree


def traced(client: Client, collector: Collector) -> dict[str, tuple[Any, ...]]:
    """Return the spans of each scenario."""
    collector.spans.clear()
    found = {}
    for name, count in SPANS.items():
        before = len(collector.spans)
        SCENARIOS[name](client)
        found[name] = received(collector, before + count)
    return found


@pytest.mark.reference
@pytest.mark.slow
def test_KS72_both_servers_send_the_same_spans(reference, repository, collector):
    flags = [
        f"--trace-config={setting}"
        for setting in (
            "mode=opentelemetry", "rate=1", "level=TIMESTAMPS",
            f"opentelemetry,url={collector.url}", "opentelemetry,bsp_schedule_delay=50",
        )
    ]  # fmt: skip
    with reference.server(repository, COMPLETE, *flags) as real:
        client = Client(real.http_url, real.grpc_url, Path())
        theirs = traced(client, collector)
        settings = httpclient.InferenceServerClient(real.http_url).get_trace_settings()
    assert len(collector.spans) == sum(SPANS.values())
    with ours(repository, collector) as client:
        mine = traced(client, collector)
        own = httpclient.InferenceServerClient(client.http).get_trace_settings()
    assert len(collector.spans) == sum(SPANS.values())
    assert mine == theirs
    own.pop("resource")
    assert {**own, "url": ""} == {**settings, "url": ""}


@pytest.mark.medium
def test_spans_lie_inside_each_other(repository, collector):
    with ours(repository, collector) as client:
        client.infer("outer", 2, request_id="e")
        received(collector, SPANS["ensembles"])
    spans = {span.span_id: span for span in collector.spans}
    assert len({span.trace_id for span in spans.values()}) == 1
    for span in spans.values():
        outside = spans.get(span.parent_span_id)
        if outside is None:
            assert span.name == "InferRequest"
            continue
        assert outside.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= outside.end_time_unix_nano
    assert sorted(span.name for span in spans.values()) == [
        "InferRequest", "compute", "compute", "echo", "echo", "inner", "outer",
    ]  # fmt: skip
    names = {each.key: each.value.string_value for each in collector.resources[0].attributes}
    assert names["service.name"] == "mine"


@pytest.mark.medium
def test_spans_follow_a_clock_that_was_set(repository, collector, monkeypatch):
    day_ns = 86_400 * 10**9
    with ours(repository, collector) as client:
        client.infer("echo", 1)
        received(collector, 3)
        before = {span.end_time_unix_nano for span in collector.spans}
        # As after a night in which the machine was suspended: the monotonic clock stands.
        monkeypatch.setattr(opentelemetry, "time_ns", lambda: time.time_ns() + day_ns)
        collector.spans.clear()
        client.infer("echo", 1)
        received(collector, 3)
    assert min(span.start_time_unix_nano for span in collector.spans) >= max(before) + day_ns // 2


def by_http(client: Client) -> None:
    tensor = httpclient.InferInput("IN", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    with contextlib.closing(httpclient.InferenceServerClient(client.http)) as connection:
        connection.infer("echo", [tensor], headers=dict(CLIENTS_SPAN))


def by_grpc(client: Client) -> None:
    tensor = grpcclient.InferInput("IN", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    with contextlib.closing(grpcclient.InferenceServerClient(client.grpc)) as connection:
        connection.infer("echo", [tensor], headers=dict(CLIENTS_SPAN))


@pytest.mark.medium
@pytest.mark.parametrize("send", [by_http, by_grpc])
def test_the_clients_span_goes_on_whatever_the_rate(
    send: Callable[[Client], None],
    repository,
    collector,
):
    with ours(repository, collector, rate=1000) as client:
        client.infer("echo", 1)  # not sampled
        send(client)
        received(collector, 3)
    (root,) = [span for span in collector.spans if span.name == "InferRequest"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert root.trace_state == "vendor=1"


@pytest.mark.medium
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_model_gets_the_context_for_spans_of_its_own(isolation, tmp_path, collector):
    (tmp_path / "own" / "1").mkdir(parents=True)
    (tmp_path / "own" / "1" / "model.py").write_text("import numpy as np\n" + OWN_SPAN)
    (tmp_path / "own" / "config.pbtxt").write_text(
        'backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: [ 1, 1 ] } '
        'output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } '
        f'parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "{isolation}" }} }}'
    )
    with ours(tmp_path, collector) as client:
        answer = json.loads(client.infer("own", 1.0))
        received(collector, 3)
    (span,) = [span for span in collector.spans if span.name == "own"]
    context = json.loads(answer["outputs"][0]["data"][0])
    assert context == {"traceparent": f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"}


def test_what_is_no_span_is_not_followed():
    good = CLIENTS_SPAN["traceparent"]
    assert read_traceparent(good) is not None
    assert read_traceparent("01" + good[2:] + "-later") is not None
    for wrong in ("", good[:-1], good + "-later", "ff" + good[2:], good.upper(), "00-0-0-0"):
        assert read_traceparent(wrong) is None
    assert read_traceparent(good.replace(SPAN_ID, "0" * 16)) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": ""}, "url must be an address"),
        ({"resource": {"a": None}}, "resource must be texts by name"),
        ({"bsp_max_queue_size": 0}, "bsp_max_queue_size must be a whole number from 1 on; found 0"),
        ({"bsp_schedule_delay": "x"}, "bsp_schedule_delay must be a whole number"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        OpenTelemetry(**options)


def test_a_queue_may_be_shorter_than_a_batch():
    export = SpanExport(OpenTelemetry(bsp_max_queue_size=9))
    export.close()
    assert export.settings()["bsp_max_queue_size"] == "9"


def test_a_flag_that_cannot_be_is_one_sentence(tmp_path, capsys):
    flags = ["mode=opentelemetry", "opentelemetry,bsp_schedule_delay=-1"]
    given = [f"--trace-config={flag}" for flag in flags]
    assert main(["serve", f"--model-repository={tmp_path}", *given]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "nbtriton: bsp_schedule_delay must be a whole number from 1 on; found -1"
    )


def test_flags_and_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "70")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "7")
    flags = [
        "mode=opentelemetry", "level=TIMESTAMPS", "opentelemetry,url=host:1/v1/traces",
        "opentelemetry,resource=a=b=c", "opentelemetry,resource=empty=", "opentelemetry,resource=alone",
        "opentelemetry,bsp_max_queue_size=9",
    ]  # fmt: skip
    _, values, spans = trace_settings(parse_flags([f"--trace-config={flag}" for flag in flags]))
    assert values.level == TIMES
    # What is left out is the key itself, as in Triton (tracer.cc).
    resource = {"a": "b=c", "empty": "", "alone": "alone"}
    assert spans == OpenTelemetry("host:1/v1/traces", resource, 9, 70)
