"""One script of traffic, two servers: the real tritonserver over its ports, and ours in this process.

A `Scenario` has the models and the requests in their order of arrival; `RealSide` and
`OurSide` play it and return an `Outcome` that is plain data, equal if the servers agree.

Order of arrival is made certain, not hoped for. A request that carries a *gate* keeps its
execution busy: the model creates ``<gate>.entered`` and returns once ``<gate>.open`` exists. While
it is busy, each further request is submitted only when the server counts the one before as
waiting; where it matters who came first, all go through one thread of the server (`wire.py`).
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.differential.answers import Answer, Outcome, batches_of, groups_of, without_seen
from tests.differential.rest import Threads
from tests.differential.servers import ISOLATION, kill, noted
from tests.differential.wire import (
    GRPC_STATUS,
    counts_of,
    difference,
    exchange,
    plain,
    protocol_name,
    raw_bytes,
    read_message,
    sum_of,
    words,
)
from tests.until import until

__all__ = [
    "FAILED",
    "UNANSWERED",
    "Answer",
    "Model",
    "OurSide",
    "Outcome",
    "RealSide",
    "Scenario",
    "Send",
    "write",
]

ANSWER_S = 30.0
# Models that are loaded at once, where their instances are actors of Ray.
STARTS = 2
# How long to wait for a sign that a request has arrived; a held back answer gives none.
SETTLE_S = 1.0
# Statuses of our own: no answer came, the client has cancelled, and an error in a stream (it has a text but no code).
UNANSWERED = "UNANSWERED"
CANCELLED = "CANCELLED"
FAILED = "FAILED"


@dataclass(frozen=True)
class Model:
    """One model of the repository: ``source`` is its model.py, None for an ensemble."""

    name: str
    config: str
    source: str | None = None
    versions: tuple[int, ...] = (1,)
    # Other files of the model's directory, by path.
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Send:
    """One request. ``gate`` holds its execution busy until all others are submitted."""

    inputs: Mapping[str, Any]
    model: str = ""
    gate: bool = False
    outputs: tuple[str, ...] = ()
    request_id: str = ""
    version: int = -1
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int = 0
    sequence_start: bool = False
    sequence_end: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Sent after this number of answers to those before (no gates then): an open batch is closed.
    after_answers: int = 0
    # Bounds of the time to its answer, in seconds; wide, as the machine may be busy.
    takes_s: tuple[float, float] = (0.0, ANSWER_S)
    # Ask for any number of responses; needed for decoupled models.
    stream: bool = False
    # How long to wait for the answer, in seconds.
    patience_s: float = ANSWER_S
    # Cancelled by its client before the gates open (over gRPC, so without `Scenario.batches`).
    cancelled: bool = False


@dataclass(frozen=True)
class Scenario:
    """Traffic for the last of its models, and the comparisons besides the answers."""

    id: str
    models: tuple[Model, ...]
    traffic: tuple[Send, ...]
    # Send each request only when the one before is answered.
    one_by_one: bool = False
    statistics: bool = True
    batches: bool = False
    # The model whose queue says that a request has arrived; the target if not given.
    waits_on: str = ""
    # How long gates stay shut after the last request.
    hold_s: float = 0.0
    # How long to wait for the sign that a request has arrived.
    settle_s: float = SETTLE_S
    # Compare the order in which the answers arrive.
    ordered: bool = False
    # Compare all counts since the model was loaded.
    since_load: bool = False
    # A deliberate difference (a name of `deliberate.py`) that the case shows, and what nbtriton
    # does instead: answers by place in the traffic, counts by model (what is not named is equal).
    deliberate: str = ""
    instead: Mapping[int, Answer] = field(default_factory=dict)
    instead_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return self.models[-1].name

    @property
    def by_the_clock(self) -> bool:
        """True if the time between requests matters."""
        return any(re.search(r"delay_micro|timeout", model.config) for model in self.models)


@dataclass(frozen=True)
class Pending:
    """A request in flight: ``answer`` waits for it, ``cancel`` returns when the server knows of it."""

    answer: Callable[[], Answer]
    done: Callable[[], bool]
    cancel: Callable[[], object] | None = None


def write(repository: Path, models: Sequence[Model]) -> None:
    """Write the models as a repository."""
    for model in models:
        for version in model.versions:
            folder = repository / model.name / str(version)
            folder.mkdir(parents=True, exist_ok=True)
            if model.source is not None:
                (folder / "model.py").write_text(model.source)
        (folder.parent / "config.pbtxt").write_text(model.config)
        for name, content in model.files.items():
            (folder.parent / name).parent.mkdir(parents=True, exist_ok=True)
            (folder.parent / name).write_bytes(content)


class _Side:
    """The common part of both sides: gates, the order of arrival, the form of an outcome."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._gates = itertools.count()
        self._before: dict[str, Any] = {}

    # Each side fills these in.
    def send(
        self, send: Send, model: str, parameters: Mapping[str, Any], *, in_order: bool
    ) -> Pending:
        """Send a request; `in_order` if it must arrive behind those before it."""
        raise NotImplementedError

    def waiting(self, model: str) -> int:
        raise NotImplementedError

    def statistics(self, model: str) -> dict[str, Any]:
        raise NotImplementedError

    def rest(self) -> None:
        """Wait until the server has made all decisions about the requests that have arrived."""

    def play(self, scenario: Scenario) -> Outcome:
        names = [model.name for model in scenario.models]
        before: dict[str, Any] = {
            name: {} if scenario.since_load else counts_of(self.statistics(name)) for name in names
        }
        pending: list[Pending] = []
        answers: list[Answer] = []
        gate = ""
        with contextlib.ExitStack() as stack:
            for send in scenario.traffic:
                until(lambda: sum(p.done() for p in pending) >= send.after_answers, ANSWER_S)  # noqa: B023
                parameters = dict(send.parameters)
                if send.gate:
                    gate = str(self._scratch / f"{type(self).__name__}-{next(self._gates)}")
                    stack.callback(Path(gate + ".open").touch)
                    parameters["gate"] = gate
                model = send.model or scenario.target
                request = self.send(send, model, parameters, in_order=scenario.batches)
                pending.append(request)
                if send.gate:
                    entered = Path(gate + ".entered")
                    until(lambda: entered.exists() or request.done(), ANSWER_S)  # noqa: B023
                elif scenario.one_by_one:
                    answers.append(request.answer())
                else:
                    self._arrived(scenario, pending)
                    # A request is counted before the batcher has looked at it, and whether it has
                    # when the next one comes may decide about a batch.
                    if scenario.batches and not scenario.by_the_clock:
                        self.rest()
            for send, request in zip(scenario.traffic, pending, strict=True):
                if send.cancelled:
                    assert request.cancel is not None
                    request.cancel()
            time.sleep(scenario.hold_s)
        answers = answers or [request.answer() for request in pending]
        self._before = before
        after = self._settled(names, before, scenario, answers) if scenario.statistics else {}
        return Outcome(
            answers=[without_seen(a) if scenario.batches else a for a in answers],
            batches=batches_of(answers) if scenario.batches else [],
            statistics=after,
            order=groups_of(answers) if scenario.ordered else [],
        )

    def reread(self, outcome: Outcome) -> Outcome:
        """Return the last outcome with its current statistics."""
        now = {
            n: difference(counts_of(self.statistics(n)), self._before[n])
            for n in outcome.statistics
        }
        return replace(outcome, statistics=now)

    def _arrived(self, scenario: Scenario, pending: Sequence[Pending]) -> None:
        """Wait until each request so far is answered or waits in the queue; gates do neither."""
        sent = [(s, p) for s, p in zip(scenario.traffic, pending, strict=False) if not s.gate]
        asked = {scenario.waits_on or send.model or scenario.target for send, _ in sent}

        def accounted() -> bool:
            left = len(sent) - sum(p.done() for _, p in sent)
            return left <= 0 or sum(map(self.waiting, asked)) >= left

        until(accounted, scenario.settle_s)

    def _settled(
        self,
        names: Sequence[str],
        before: dict[str, Any],
        scenario: Scenario,
        answers: Sequence[Answer],
    ) -> dict[str, Any]:
        """Statistics are written after the answer is sent: read until two readings agree."""
        last: dict[str, Any] = {}
        done = sum(
            answer.status == "OK" and send.model in ("", names[-1])
            for send, answer in zip(scenario.traffic, answers, strict=True)
        )
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            self.rest()
            now = {n: difference(counts_of(self.statistics(n)), before[n]) for n in names}
            counted = now[names[-1]].get("success", 0) + now[names[-1]].get("fail", 0)
            if now == last and counted >= done:
                return now
            last = now
            time.sleep(
                0.03
            )  # a poll of another process, which writes its numbers one after another
        return last


class RealSide(_Side):
    """The real tritonserver: raw gRPC messages, so that a wrong request can be sent as it is.

    Where the order of requests matters they go over HTTP, and the server has one thread for that
    (`RealSide.FLAGS`): over gRPC they may overtake each other.
    """

    # Of the python backend's 32 threads for the calls of each instance four: `rest` looks at each.
    FLAGS = ("--http-thread-count=1", "--backend-config=python,thread-pool-size=4")

    def __init__(self, server: Any, scratch: Path) -> None:
        super().__init__(scratch)
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self._server = server
        self._threads = Threads(server.process.pid)
        self._grpc = grpc
        self._messages = service_pb2
        self._channel = grpc.insecure_channel(server.grpc_url)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._http = http.client.HTTPConnection(server.http_url, timeout=ANSWER_S)
        self._metrics = http.client.HTTPConnection(
            "127.0.0.1", server.metrics_port, timeout=ANSWER_S
        )

    def close(self) -> None:
        """End the server as well."""
        self._channel.close()
        self._http.close()
        self._metrics.close()
        self._threads.close()
        kill(self._server)

    def play(self, scenario: Scenario) -> Outcome:
        with noted("real", self._server):
            outcome = super().play(scenario)
            # What it did not answer then is no difference of its rules.
            assert self._server.process.poll() is None, "tritonserver has ended"
        return outcome

    def rest(self) -> None:
        assert self._threads.come_to_rest(ANSWER_S)

    def send(
        self, send: Send, model: str, parameters: Mapping[str, Any], *, in_order: bool
    ) -> Pending:
        request = self._messages.ModelInferRequest(model_name=model, id=send.request_id)
        if send.version >= 0:
            request.model_version = str(send.version)
        for name, value in send.inputs.items():
            array = np.asarray(value)
            tensor = request.inputs.add(
                name=name, datatype=protocol_name(array.dtype), shape=array.shape
            )
            assert tensor.name == name
            request.raw_input_contents.append(raw_bytes(array))
        for name in send.outputs:
            request.outputs.add(name=name)
        own = {
            "priority": send.priority,
            "timeout": send.timeout_us,
            "sequence_id": send.correlation_id,
            "sequence_start": send.sequence_start,
            "sequence_end": send.sequence_end,
        }
        for key, value in {**{k: v for k, v in own.items() if v}, **parameters}.items():
            parameter = request.parameters[key]
            if isinstance(value, bool):
                parameter.bool_param = value
            elif key == "priority":
                parameter.uint64_param = value
            elif isinstance(value, int):  # Triton's C++ client sends larger ids so
                parameter.int64_param = value - (1 << 64 if value >= 1 << 63 else 0)
            else:
                parameter.string_param = value
        start = time.monotonic()
        took: list[float] = []
        if send.stream:
            return self._stream(request, start)
        if in_order:
            return self._over_http(request, start, send.patience_s)
        future = self._stub.ModelInfer.future(request)
        done = threading.Event()

        def note(_: object) -> None:
            took.append(time.monotonic() - start)
            done.set()

        future.add_done_callback(note)

        def answer() -> Answer:
            try:
                response = future.result(timeout=send.patience_s)
            except self._grpc.FutureTimeoutError:
                future.cancel()
                return Answer(status=UNANSWERED)
            except self._grpc.FutureCancelledError:
                return Answer(status=CANCELLED)
            except self._grpc.RpcError as error:
                done.wait(ANSWER_S)
                status = GRPC_STATUS[error.code().name]
                return Answer(
                    status=status, message=words(error.details()),
                    took_s=took[0], at_s=start + took[0],
                )  # fmt: skip
            done.wait(ANSWER_S)
            return Answer(*read_message(response), took_s=took[0], at_s=start + took[0])

        def cancel() -> None:
            future.cancel()
            # The server reads a connection in order.
            self._stub.ServerLive(self._messages.ServerLiveRequest())

        return Pending(answer, done.is_set, cancel)

    def _over_http(self, request: Any, start: float, patience_s: float) -> Pending:
        """Send a request where one thread takes all of them, in their order."""
        answers: list[Answer] = []
        done = threading.Event()

        def ask() -> None:
            try:
                status, message, outputs, parameters = exchange(
                    self._server.http_url, request, patience_s
                )
            except TimeoutError:
                answers.append(Answer(status=UNANSWERED))
            else:
                now = time.monotonic()
                answers.append(
                    Answer(
                        outputs, parameters, status, words(message),
                        took_s=now - start, at_s=now,
                    )
                )  # fmt: skip
            done.set()

        threading.Thread(target=ask, daemon=True).start()

        def answer() -> Answer:
            assert done.wait(patience_s + ANSWER_S)
            return answers[0]

        return Pending(answer, done.is_set)

    def _stream(self, request: Any, start: float) -> Pending:
        """Send a request in a stream of its own, and collect its responses until its end."""
        # Also responses with only the final flag.
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        responses: list[Answer] = []
        done = threading.Event()

        def collect() -> None:
            for message in self._stub.ModelStreamInfer(iter([request])):
                if message.error_message:
                    responses.append(Answer(status=FAILED, message=words(message.error_message)))
                else:
                    responses.append(Answer(*read_message(message.infer_response)))
            done.set()

        threading.Thread(target=collect, daemon=True).start()

        def answer() -> Answer:
            assert done.wait(ANSWER_S)
            return Answer(responses=responses, took_s=time.monotonic() - start)

        return Pending(answer, done.is_set)

    def waiting(self, model: str) -> int:
        text = self._read(self._metrics, "/metrics").decode()
        match = re.search(
            rf'nv_inference_pending_request_count{{model="{model}",version="1"}} (\d+)', text
        )
        return int(match.group(1)) if match else 0

    def statistics(self, model: str) -> dict[str, Any]:
        return sum_of(self._get(f"models/{model}/stats")["model_stats"])

    def config(self, model: str) -> dict[str, Any]:
        return self._get(f"models/{model}/config")

    def metadata(self, model: str) -> dict[str, Any]:
        return self._get(f"models/{model}")

    def _get(self, path: str) -> dict[str, Any]:
        with noted("real", self._server):
            return json.loads(self._read(self._http, f"/v2/{path}"))

    def _read(self, connection: http.client.HTTPConnection, path: str) -> bytes:
        connection.request("GET", path)
        reply = connection.getresponse()
        content = reply.read()
        assert reply.status == 200, content
        return content


class OurSide(_Side):
    """A `nbtriton.Server` in this process, over the same files."""

    def __init__(
        self,
        repository: Path,
        models: Sequence[Model],
        scratch: Path,
        *,
        cache_bytes: int | None = None,
        rate_limit: str = "off",
    ) -> None:
        super().__init__(scratch)
        import nbtriton

        self.server = nbtriton.Server(
            cache_bytes=cache_bytes, rate_limit=rate_limit, isolation=ISOLATION
        )

        def load(model: Model) -> None:
            # The highest first: every version policy of the cases keeps it.
            for version in sorted(model.versions, reverse=True):
                path = repository / model.name / str(version) / "model.py"
                self.server.load(
                    model.config,
                    path if model.source is not None else None,
                    name=model.name,
                    version=version,
                )

        # An actor takes seconds to start, most of which it waits. Ensembles come behind their members.
        with ThreadPoolExecutor(STARTS if ISOLATION == "ray" else 1) as pool:
            list(pool.map(load, [model for model in models if model.source is not None]))
        for model in models:
            if model.source is None:
                load(model)

    def close(self) -> None:
        self.server.close()

    def send(
        self, send: Send, model: str, parameters: Mapping[str, Any], *, in_order: bool
    ) -> Pending:
        from nbtriton import TritonError
        from nbtriton.common.errors import CancelledError

        start = time.monotonic()
        took: list[float] = []
        done = threading.Event()

        responses: list[Answer] = []

        def failed(error: TritonError) -> Answer:
            if send.stream:
                refusal = Answer(status=FAILED, message=words(error.message))
                return Answer(responses=[refusal])
            took_s = took[0] if took else time.monotonic() - start
            return Answer(
                status=error.status, message=words(error.message),
                took_s=took_s, at_s=start + took_s,
            )  # fmt: skip

        def collect(response: Any, final: bool) -> None:
            if response.error is not None:
                responses.append(Answer(status=FAILED, message=words(response.error.message)))
            else:
                parameters = {**response.parameters, "triton_final_response": final}
                responses.append(Answer(plain(response.outputs), parameters))

        try:
            future = self.server.submit(
                model,
                {name: np.asarray(value) for name, value in send.inputs.items()},
                version=send.version,
                outputs=send.outputs,
                request_id=send.request_id,
                priority=send.priority,
                timeout_us=send.timeout_us,
                sequence_id=send.correlation_id,
                sequence_start=send.sequence_start,
                sequence_end=send.sequence_end,
                parameters=dict(parameters),
                on_response=collect if send.stream else None,
            )
        except TritonError as error:
            refused = failed(error)
            return Pending(lambda: refused, lambda: True)

        def note(_: object) -> None:
            took.append(time.monotonic() - start)
            done.set()

        future.add_done_callback(note)

        def answer() -> Answer:
            if send.stream:
                assert done.wait(ANSWER_S)
                return Answer(responses=responses, took_s=took[0])
            try:
                result = future.result(timeout=send.patience_s)
            except TritonError as error:  # also a `RequestTimeoutError`, which is a TimeoutError
                if send.cancelled and isinstance(error, CancelledError):
                    return Answer(status=CANCELLED)
                done.wait(ANSWER_S)
                return failed(error)
            except TimeoutError:
                future.cancel()
                return Answer(status=UNANSWERED)
            done.wait(ANSWER_S)
            return Answer(
                plain(result), dict(result.parameters), took_s=took[0], at_s=start + took[0]
            )

        return Pending(answer, done.is_set, future.cancel)

    def waiting(self, model: str) -> int:
        # Not the snapshot of the server: it is asked for each request, and has all models.
        entry = self.server.engine.registry.entries.get(model)
        slots = () if entry is None else entry.slots.values()
        return sum(slot.runtime.snapshot(slot.state, slot.reason).queued for slot in slots)

    def statistics(self, model: str) -> dict[str, Any]:
        return sum_of(self.server.statistics(model)["model_stats"])

    def config(self, model: str) -> dict[str, Any]:
        from nbtriton.model.config import to_reported_dict

        return to_reported_dict(self.server.config(model))

    def metadata(self, model: str) -> dict[str, Any]:
        return self.server.metadata(model)


@contextlib.contextmanager
def both_sides(
    reference: Any, folder: Path, models: Sequence[Model], *flags: str, **options: Any
) -> Iterator[tuple[RealSide, OurSide]]:
    """Serve models by both servers: by the real one with the flags, by ours with the options of `OurSide`."""
    repository = folder / "models"
    write(repository, models)
    for name in ("real", "ours"):
        (folder / name).mkdir()
    flags = (*RealSide.FLAGS, *flags)
    with (
        reference.server(repository, *flags, log=folder / "log", timeout_s=180) as server,
        contextlib.closing(RealSide(server, folder / "real")) as real,
        contextlib.closing(OurSide(repository, models, folder / "ours", **options)) as ours,
    ):
        yield real, ours
