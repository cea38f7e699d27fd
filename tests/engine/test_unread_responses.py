"""MAX_UNREAD_RESPONSES: a decoupled model waits for a reader that is behind."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.backends.unread import UnreadResponses
from nbtriton.common.errors import ConfigError
from tests.until import until

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

COUNT = 20
CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] } ]
parameters { key: "MAX_UNREAD_RESPONSES" value { string_value: "%s" } }
"""


class Counting:
    """Sends numbers from a thread of its own."""

    sent: list[int]
    ended: threading.Event

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            threading.Thread(target=self._run, args=(sender,), daemon=True).start()

    def _run(self, sender):
        for number in range(COUNT):
            if sender.is_cancelled():
                break
            type(self).sent.append(number)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        type(self).ended.set()


@pytest.fixture
def counting():
    return type(
        "TritonPythonModel",
        (),
        {**vars(Counting), "sent": [], "ended": threading.Event()},
    )


@pytest.fixture
def server(counting):
    with nt.Server() as server:
        server.load(CONFIG % 3, counting, name="count")
        yield server


def test_a_model_is_at_most_so_many_responses_ahead_of_its_reader(server, counting):
    stream = server.stream("count", {"IN": [0]})
    for read, result in enumerate(stream):
        assert result["OUT"][0] == read
        # What is being sent is one more; the reader holds one.
        assert len(counting.sent) <= read + 1 + 3 + 1
    assert read == COUNT - 1
    assert counting.ended.wait(60)


def test_a_reader_may_be_faster_than_the_count_of_what_it_reads():
    unread = UnreadResponses(lambda: 1)
    unread.read()  # what its sender has not counted yet
    assert unread.is_limited
    for _ in range(2):
        unread.sent(final=False)  # the second one is unread, which is no reason to wait


def test_a_model_that_is_being_unloaded_waits_for_no_reader(server, counting, caplog):
    inside, go = threading.Event(), threading.Event()

    def later(self, sender, begin=Counting._run):
        inside.set()
        go.wait(60)
        begin(self, sender)

    server.load(CONFIG % 3, type("TritonPythonModel", (counting,), {"_run": later}), name="later")
    stream = server.stream("later", {"IN": [0]})
    found: list[int] = []
    read = threading.Thread(target=lambda: found.extend(int(one["OUT"][0]) for one in stream))
    read.start()
    assert inside.wait(60)
    ends = threading.Thread(target=server.unload, args=("later",), kwargs={"timeout_s": 60})
    ends.start()
    until(lambda: not server.is_ready("later"))
    go.set()
    read.join(60)
    ends.join(60)
    assert found == list(range(COUNT))
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_so_it_is_for_async_readers(server, counting):
    async def read():
        seen = []
        async for result in server.stream("count", {"IN": [0]}):
            assert len(counting.sent) <= len(seen) + 5
            seen.append(int(result["OUT"][0]))
        return seen

    assert asyncio.run(read()) == list(range(COUNT))


def test_without_it_no_model_waits(server, counting):
    server.load(CONFIG % 0, counting, name="free")
    stream = server.stream("free", {"IN": [0]})
    next(stream)
    assert counting.ended.wait(60)
    assert len(list(stream)) == COUNT - 1


def test_a_closed_stream_lets_the_model_end(server, counting):
    stream = server.stream("count", {"IN": [0]})
    next(stream)
    stream.close()
    assert counting.ended.wait(60)
    assert len(counting.sent) <= 5


def test_the_end_of_the_server_lets_go_of_a_model_that_waits(server, counting):
    def run(self, sender, begin=Counting._run):
        try:
            begin(self, sender)
        except pb_utils.TritonModelException:  # the server has answered
            counting.ended.set()

    server.load(CONFIG % 3, type("TritonPythonModel", (counting,), {"_run": run}), name="left")
    stream = server.stream("left", {"IN": [0]})
    next(stream)
    assert until(lambda: len(counting.sent) == 5)  # as far as it gets
    server.close(timeout_s=0.1)
    assert counting.ended.wait(60)


CALLER = """
backend: "python" max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""


def caller(read):
    def execute(self, requests):
        found = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="count",
                requested_output_names=["OUT"],
                inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
            )
            seen = np.array(read(call), np.int64)
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", seen)]))
        return found

    return type("TritonPythonModel", (), {"execute": execute})


def numbers(responses):
    found = [pb_utils.get_output_tensor_by_name(r, "OUT") for r in responses]
    return [int(tensor.as_numpy()[0]) for tensor in found if tensor is not None]


def test_a_model_that_calls_reads_all_once(server, counting):
    def read(call):
        responses = call.exec(decoupled=True)
        first = numbers([next(iter(responses))])
        assert len(counting.sent) <= 5
        return [*first, *numbers(responses), *numbers(responses)]

    server.load(CALLER, caller(read), name="caller")
    assert server.infer("caller", {"IN": [0]})["OUT"].tolist() == list(range(COUNT))


def test_a_call_whose_responses_are_dropped_lets_the_model_end(server, counting):
    def read(call):
        return numbers([next(iter(call.exec(decoupled=True)))])

    server.load(CALLER, caller(read), name="caller")
    assert server.infer("caller", {"IN": [0]})["OUT"].tolist() == [0]
    assert counting.ended.wait(60)
    assert len(counting.sent) == COUNT


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_refused(server, counting, text):
    with pytest.raises(ConfigError, match="MAX_UNREAD_RESPONSES") as caught:
        server.load(CONFIG % text, counting, name="bad")
    assert "whole number" in caught.value.hint


IN_A_WORKER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(20):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["process", "ray"])
def test_an_unread_stream_of_a_worker_holds_no_other(tmp_path, place):
    if place == "ray":
        pytest.importorskip("ray", reason="needs Ray: pip install 'nbtriton[ray]'")
    (tmp_path / "model.py").write_text(IN_A_WORKER)
    isolated = f'parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "{place}" }} }}'
    with nt.Server(ray="local:2") as server:
        server.load(CONFIG % 3 + isolated, tmp_path / "model.py", name="count")
        unread = server.stream("count", {"IN": np.array([0])})
        next(unread)
        assert len(list(server.stream("count", {"IN": np.array([0])}))) == COUNT
        assert len(list(unread)) == COUNT - 1
