"""Metrics: Triton's names and labels, why requests failed, and latency summaries."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import tritonclient.grpc as grpcclient
from prometheus_client.parser import text_string_to_metric_families

import nbtriton as nt
from nbtriton.runtime.engine.core.summaries import Summary
from nbtriton.serving.frontends.metrics import DEFAULT_QUANTILES, Metrics, MetricsConfig
from tests.differential.rest import Threads
from tests.differential.servers import COMPLETE
from tests.until import PATIENCE_S, until

# 9 waits at a gate: a file, as it may wait in another process.
MODEL = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.place = args["model_repository"]

    def execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if x.flat[0] == -1:
                raise ValueError("below zero")
            if x.flat[0] == -2:
                error = pb_utils.TritonError("not this one")
                out.append(pb_utils.InferenceResponse(error=error))
                continue
            if x.flat[0] == 9:
                open(os.path.join(self.place, "started"), "w").close()
                while not os.path.exists(os.path.join(self.place, "gate")):
                    time.sleep(0.005)
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
        return out
"""
TENSORS = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
STEP = """ensemble_scheduling { step { model_name: "plain" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }
"""
MODELS = {
    "plain": 'backend: "python"',
    "hurried": """backend: "python" dynamic_batching { default_queue_policy {
        default_timeout_microseconds: 600000000 allow_timeout_override: true } }""",
    "full": 'backend: "python" dynamic_batching { default_queue_policy { max_queue_size: 1 } }',
    "cached": 'backend: "python" response_cache { enable: true }',
    "around": 'platform: "ensemble" ' + STEP,
}
SUMMARIES = (
    "nv_inference_request_summary_us",
    "nv_inference_queue_summary_us",
    "nv_inference_compute_input_summary_us",
    "nv_inference_compute_infer_summary_us",
    "nv_inference_compute_output_summary_us",
    "nv_cache_hit_summary_per_model",
    "nv_cache_miss_summary_per_model",
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    for name, config in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config + TENSORS)
        if "python" in config:
            (root / name / "1" / "model.py").write_text(MODEL)
    return root


class Client:
    """Sends requests to either server, and reads its metrics."""

    def __init__(self, http: int, grpc: int, metrics: int, pid: int = 0) -> None:
        self._http = f"http://127.0.0.1:{http}"
        self._metrics = f"http://127.0.0.1:{metrics}/metrics"
        self.grpc = f"127.0.0.1:{grpc}"
        self._pid = pid

    def rest(self) -> None:
        """Return when a server in another process has handled all that it has read."""
        if self._pid:
            with contextlib.closing(Threads(self._pid)) as threads:
                assert threads.come_to_rest(PATIENCE_S)

    def infer(self, model: str, *values: float) -> int:
        tensor = {
            "name": "IN", "shape": [len(values), 1], "datatype": "FP32", "data": list(values),
        }  # fmt: skip
        body = json.dumps({"inputs": [tensor]}).encode()
        url = f"{self._http}/v2/models/{model}/infer"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def text(self) -> str:
        with urllib.request.urlopen(self._metrics, timeout=60) as reply:
            return reply.read().decode()

    def samples(self, prefix: str = "nv_") -> dict[str, float]:
        lines = [line for line in self.text().splitlines() if line.startswith(prefix)]
        return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}

    def shows(self, prefix: str, value: float) -> bool:
        return list(self.samples(prefix).values()) == [value]

    def failures(self) -> dict[tuple[str, str], int]:
        """Return the counts that are not 0 by model and reason."""
        found = {}
        for key, value in self.samples("nv_inference_request_failure").items():
            model, reason = re.search(r'model="(\w+)",reason="(\w+)"', key).groups()
            if value:
                found[model, reason] = int(value)
        return found


@contextlib.contextmanager
def ours(repository: Path, *, summaries: bool = False, **options) -> Iterator[Client]:
    with nt.Server(gpus=(), cache_bytes=1 << 20, summaries=summaries) as server:
        server.load_repository(repository)
        config = MetricsConfig(**options)
        with server.serve(http_port=0, grpc_port=0, metrics_port=0, metrics=config) as endpoints:
            yield Client(endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port)


@contextlib.contextmanager
def theirs(reference, repository: Path, *flags: str) -> Iterator[Client]:
    cache = "--cache-config=local,size=1048576"
    with reference.server(repository, COMPLETE, cache, *flags) as real:
        yield Client(real.http_port, real.grpc_port, real.metrics_port, real.process.pid)


class Sender:
    """Requests that are answered later."""

    def __init__(self, url: str) -> None:
        self._client = grpcclient.InferenceServerClient(url)
        self._answers: queue.Queue = queue.Queue()

    def send(self, model: str, value: float, timeout_us: int | None = None):
        tensor = grpcclient.InferInput("IN", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[value]], np.float32))
        done = lambda result, error: self._answers.put(error and error.status())
        return self._client.async_infer(model, [tensor], done, timeout=timeout_us)

    def answer(self) -> str | None:
        """Return the status of the next answer, None for a good one."""
        return self._answers.get(timeout=60)

    def notified(self) -> None:
        """Return when the server has read a cancellation: it reads a connection in order."""
        assert self._client.is_server_live()

    def close(self) -> None:
        self._client.close()


def provoke(client: Client, repository: Path) -> dict[tuple[str, str], int]:
    """Send one request for each kind of failure, and for each error that is none."""
    client.infer("plain", -1)  # execute raises
    client.infer("plain", -2)  # the model answers with an error: a success
    client.infer("plain", 0, 0, 0, 0, 0)  # refused before it is a request
    client.infer("around", -1)  # a step raises
    with contextlib.closing(Sender(client.grpc)) as sender:
        for model, timeout_us in (("hurried", 100_000), ("full", None)):
            place = repository / model
            sender.send(model, 9)
            assert until((place / "started").exists)
            waiting = sender.send(model, 0, timeout_us)
            if model == "hurried":
                assert sender.answer() == "StatusCode.UNAVAILABLE"  # it waited for too long
            else:
                pending = 'nv_inference_pending_request_count{model="full"'
                assert until(partial(client.shows, pending, 1.0))
                sender.send(model, 0)
                assert sender.answer() == "StatusCode.UNAVAILABLE"  # the queue is full
                waiting.cancel()
                assert sender.answer() == "StatusCode.CANCELLED"
                sender.notified()
                client.rest()
            (place / "gate").touch()
            assert sender.answer() is None
    assert until(lambda: ("full", "CANCELED") in client.failures())
    client.rest()
    return client.failures()


FAILED = {
    ("plain", "BACKEND"): 2,
    ("around", "OTHER"): 2,
    ("hurried", "REJECTED"): 1,
    ("full", "CANCELED"): 1,
}


@pytest.mark.medium
def test_T8_KS81_each_failure_has_its_reason(repository):
    with ours(repository) as client:
        assert provoke(client, repository) == FAILED


@pytest.mark.reference
@pytest.mark.slow
def test_T8_the_real_server_gives_the_same_reasons(reference, repository):
    with theirs(reference, repository) as client:
        assert provoke(client, repository) == FAILED


def described(client: Client) -> tuple[dict[str, str], set[str]]:
    """Return each family's HELP and TYPE, and all samples with their labels."""
    for model in ("plain", "cached", "cached", "around"):
        assert client.infer(model, 0) == 200
    families = {}
    for line in client.text().splitlines():
        if line.startswith("# "):
            _, kind, name, what = line.split(" ", 3)
            families[f"{kind} {name}"] = what
    return families, set(client.samples())


@pytest.mark.reference
@pytest.mark.slow
def test_KS81_KS82_names_labels_and_texts_are_the_real_servers(reference, repository):
    flags = ("summary_latencies=true", "summary_quantiles=0.5:0.05,0.999:0.001")
    with theirs(reference, repository, *(f"--metrics-config={flag}" for flag in flags)) as client:
        expected = described(client)
    with ours(repository, summaries=True, quantiles=(0.5, 0.999)) as client:
        found = described(client)
    assert found == expected


@pytest.mark.medium
def test_latency_summaries(repository):
    with ours(repository, summaries=True) as client:
        for _ in range(5):
            client.infer("plain", 0)
        client.infer("plain", -1)
        for _ in range(3):
            client.infer("cached", 0)
        client.infer("around", 0)
        samples = client.samples()
    for name in SUMMARIES[:5]:
        labels = '{model="plain",version="1"}'
        assert samples[f"{name}_count{labels}"] == 6  # the step of the ensemble too
        assert samples[f'{name}_count{{model="around",version="1"}}'] == 1
        values = [
            samples[f'{name}{{model="plain",version="1",quantile="{rank:g}"}}']
            for rank in DEFAULT_QUANTILES
        ]
        assert values == sorted(values)
        # None is negative, so the largest is no more than all together.
        assert 0 <= values[0] <= values[-1] <= samples[f"{name}_sum{labels}"] * 1.005 + 0.5
    # Whole requests of a cached model are not summed up, as in Triton.
    assert not [key for key in samples if key.startswith(f'{SUMMARIES[0]}_count{{model="cached"')]
    assert samples['nv_cache_hit_summary_per_model_count{model="cached",version="1"}'] == 2
    assert samples['nv_cache_miss_summary_per_model_count{model="cached",version="1"}'] == 1
    assert samples['nv_inference_queue_summary_us_count{model="cached",version="1"}'] == 3
    assert samples["nv_cache_lookup_duration"] >= 0


@pytest.mark.medium
def test_counter_latencies_can_be_off(repository):
    with ours(repository, counter_latencies=False) as client:
        client.infer("plain", 0)
        samples = client.samples()
    assert not [key for key in samples if "duration_us" in key or "per_model" in key]
    assert samples['nv_inference_request_success{model="plain",version="1"}'] == 1


@pytest.mark.medium
def test_the_pinned_pool_is_empty(repository):
    with ours(repository) as client:
        assert set(client.samples("nv_pinned_memory_pool").values()) == {0.0}


# -- quantiles ---------------------------------------------------------------------------------------

SECOND = 1_000_000_000


@given(
    st.lists(st.integers(0, 10**7), min_size=1, max_size=300), st.sampled_from(DEFAULT_QUANTILES)
)
@pytest.mark.medium
def test_a_quantile_is_one_of_the_values_within_a_percent(values, rank):
    summary = Summary()
    start = time.monotonic_ns()
    for value in values:
        summary.observe(value, start)
    reading = summary.read(start)
    assert (reading.count, reading.total) == (len(values), sum(values))
    exact = sorted(values)[max(1, math.ceil(rank * len(values))) - 1]
    assert abs(reading.quantile(rank) - exact) <= 0.005 * exact + 0.51


def test_summaries_are_of_the_last_minute():
    summary = Summary()
    start = time.monotonic_ns()
    assert math.isnan(summary.read(start).quantile(0.5))
    summary.observe(100, start)
    summary.observe(900, start + 30 * SECOND)
    later = summary.read(start + 40 * SECOND)
    assert (later.quantile(0.1), later.quantile(0.9)) == (
        pytest.approx(100, rel=0.006), pytest.approx(900, rel=0.006),
    )  # fmt: skip
    later = summary.read(start + 70 * SECOND)
    assert later.quantile(0.1) == pytest.approx(900, rel=0.006)
    later = summary.read(start + 1000 * SECOND)
    assert math.isnan(later.quantile(0.5))
    assert (later.count, later.total) == (2, 1000)


@pytest.mark.medium
def test_prometheus_s_own_parser_reads_all_families(repository: Path) -> None:
    with nt.Server(gpus=(), summaries=True, cache_bytes=1 << 20) as server:
        server.load_repository(repository)
        for name in ("plain", "cached", "around"):
            server.infer(name, {"IN": np.ones((2, 1), np.float32)})
        text = Metrics(server, MetricsConfig()).text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    counted = families["nv_inference_count"]
    assert (counted.type, bool(counted.documentation)) == ("counter", True)
    assert {s.labels["model"]: s.value for s in counted.samples}["plain"] == 4
    assert len(families) == text.count("# TYPE ")
    assert {family.type for family in families.values()} == {"counter", "gauge", "summary"}


def test_a_family_appears_with_its_first_sample() -> None:
    config = "max_batch_size: 4 response_cache { enable: true }"
    tensor = 'name: "{}" data_type: TYPE_FP32 dims: 1'
    tensors = f"input {{ {tensor.format('IN')} }} output {{ {tensor.format('OUT')} }}"
    with nt.Server(gpus=(), summaries=True) as server:

        def families() -> set[str]:
            text = Metrics(server, MetricsConfig()).text().decode()
            return set(re.findall(r"^# TYPE (nv_inf\S+|nv_cache\S+) ", text, re.MULTILINE))

        assert families() == set()
        # Triton counts its hits and misses although the server has no cache, but none of whole
        # requests.
        server.load(f"{config} {tensors}", lambda IN: {"OUT": IN}, name="cached")  # noqa: N803
        found = families()
        assert {"nv_cache_hit_summary_per_model", "nv_cache_num_misses_per_model"} <= found
        assert "nv_inference_queue_summary_us" in found
        assert "nv_inference_request_summary_us" not in found
        server.load("max_batch_size: 4 " + tensors, lambda IN: {"OUT": IN}, name="plain")  # noqa: N803
        assert families() == found | {"nv_inference_request_summary_us"}
        for name in ("cached", "plain"):
            server.unload(name)
        assert families() == set()
