"""Periodic concurrency: groups of requests to a decoupled model, each after the responses of the last."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python.api import pb_utils
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.loads import PeriodicConcurrency, parse_periodic
from tests.perf.models import double
from tests.simulate.profiles import profile
from tests.until import PATIENCE_S

N = {"N": np.array([3], np.int32)}


class Words:
    """Answers N times, each request on a thread of its own; ends when all that are wanted have come."""

    barrier = threading.Barrier(1)
    # Requests that had come when each was answered for the first time.
    order: list[int]

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "N", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "W", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            Words.order.append(len(Words.order))
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
        sender = request.get_response_sender()
        for i in range(n):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("W", np.array([i], np.int32))]))
        with contextlib.suppress(threading.BrokenBarrierError):  # the test lets it go
            Words.barrier.wait(PATIENCE_S)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


@pytest.fixture
def server():
    Words.barrier, Words.order = threading.Barrier(1), []
    with nt.Server(gpus=()) as server:
        server.load(None, model=Words, name="words")
        server.load("max_batch_size: 8", double, name="double")
        yield server


@pytest.mark.parametrize("protocol", ["inproc", "grpc"])
def test_the_next_group_comes_with_the_responses_of_the_last_and_not_with_their_end(
    server, protocol
):
    if protocol == "grpc":
        pytest.importorskip("grpc", reason="a client over gRPC needs the extra 'grpc'")
    Words.barrier = threading.Barrier(6)  # none ends before all six have come
    report = nt.perf(
        server, "words", inputs=N, streaming=True, protocol=protocol,
        periodic_concurrency="2:6:2", request_period=3,
    )  # fmt: skip
    (point,) = report.points
    assert (point.mode, point.value) == ("periodic", 6)
    assert (point.request_count, point.error_count) == (6, 0), point.first_error
    assert point.stream.response_count == 18
    assert Words.order == [*range(6)]
    assert list(report.frame["periodic_concurrency"]) == [6]
    assert "periodic concurrency" in report._repr_mimebundle_()["text/plain"]


def test_a_request_with_fewer_responses_counts_when_it_ends(server):
    report = nt.perf(
        server, "words", inputs=N, streaming=True, periodic_concurrency="1:4", request_period=50
    )
    assert report.points[0].request_count == 4


def test_it_is_a_load_of_sweeps_too(server):
    report = nt.perf(
        server, "words", inputs=N, streaming=True, periodic_concurrency="1:3", request_period=2,
        instances=[1, 2],
    )  # fmt: skip
    assert [(p.label, p.request_count) for p in report.points] == [
        ("instances=1", 3), ("instances=2", 3),
    ]  # fmt: skip


def test_an_interrupt_ends_it(server):
    Words.barrier = barrier = threading.Barrier(2)  # of which one never comes

    def stop(progress):
        if Words.order:
            raise KeyboardInterrupt

    report = nt.perf(
        server, "words", inputs=N, streaming=True, periodic_concurrency="1:4", request_period=50,
        observer=stop,
    )  # fmt: skip
    barrier.abort()  # the request is cancelled by then, and no other one is sent
    assert report.interrupted
    assert len(Words.order) == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("10", "Both <start> and <end> values must be provided"),
        ("1:2:3:4", "does not match <start:end:step>"),
        ("a:b", "does not match <start:end:step>"),
        ("0:4", "must be > 0"),
        ("5:4", "<start> must be <= <end>"),
        ("1:4:0", "<step> value must be > 0"),
        ("1:6:2", "factor of the range size"),
    ],
)
def test_a_range_that_cannot_be_is_refused_in_perf_analyzers_words(given, text):
    with pytest.raises(InvalidArgumentError, match=text):
        parse_periodic(given, 10)
    assert parse_periodic("10:100:30", 5) == PeriodicConcurrency(10, 100, 30, 5)


def test_what_it_is_not_for_is_refused(server):
    for options, text in (
        ({"streaming": False}, "requires bi-directional gRPC streaming"),
        ({"request_rate": 5}, "more then one inference load mode"),
        ({"request_count": 5}, "says itself how many"),
        ({"request_period": 0}, "Failed to parse --request-period. The value must be > 0"),
        ({"protocol": "http"}, "Streaming is only allowed"),
    ):
        given = {"streaming": True, "periodic_concurrency": "1:2", **options}
        with pytest.raises(InvalidArgumentError, match=text):
            nt.perf(server, "words", inputs=N, **given)
    with pytest.raises(InvalidArgumentError, match="for decoupled models"):
        nt.perf(server, "double", streaming=True, periodic_concurrency="1:2")
    with pytest.raises(InvalidArgumentError, match="not simulated"):
        nt.whatif(profile(), periodic_concurrency="1:2")
