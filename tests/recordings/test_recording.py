"""Recordings: what a tap keeps of live traffic, and the file."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import json
import os
import random
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, NotFoundError
from nbtriton.extensions.recordings import Recording
from nbtriton.extensions.recordings import tap as tap_module
from nbtriton.extensions.recordings.tap import TrafficTap
from nbtriton.lab.perf.recording import RecordedRequest, RecordedTensor, RecordingWriter

ONES = np.ones((2, 4), np.float32)
SUMS = """
name: "sums" backend: "python" max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
sequence_batching { max_sequence_idle_microseconds: 60000000 }
"""


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]", "MORE": "FP32[4]"}:
    return {"OUT": IN * 2, "MORE": IN}


def same(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:
    return {"OUT": IN}


@pytest.fixture
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        yield server


def test_it_keeps_what_a_request_has(server, tmp_path):
    path = tmp_path / "traffic.jsonl"
    with nt.record(server, path) as tap:
        server.infer("double", {"IN": ONES})
        server.infer(
            "double", {"IN": ONES[:1]}, version=1, request_id="r1", priority=2, timeout_us=500,
            parameters={"user": "me"}, outputs=["OUT"],
        )  # fmt: skip
        server.submit("double", {"IN": ONES}).result()
    assert tap.requests == 3
    recording = Recording.load(path)
    first, second, third = recording.requests
    assert (first.model, first.rows, first.options) == ("double", 2, {})
    assert second.options == {
        "version": 1, "request_id": "r1", "priority": 2, "timeout_us": 500,
        "parameters": {"user": "me"}, "outputs": ["OUT"],
    }  # fmt: skip
    assert 0 <= first.at_ns <= second.at_ns <= third.at_ns <= recording.duration_ns
    # Shapes only, each different set once.
    assert recording.inputs == (
        {"IN": RecordedTensor("FP32", (2, 4))},
        {"IN": RecordedTensor("FP32", (1, 4))},
    )
    assert first.inputs == third.inputs == 0
    assert 'name: "double"' in recording.models["double"]
    assert recording.complete
    assert not recording.has_data
    assert list(recording.frame["model"]) == ["double"] * 3


def test_inputs_are_kept_as_they_were_sent(server, tmp_path):
    def overwrite(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        IN[:] = -1
        return {"OUT": IN}

    server.load("max_batch_size: 8", overwrite, name="overwrite")
    sent = np.arange(4, dtype=np.float32).reshape(1, 4)
    with nt.record(server, tmp_path / "t.jsonl", inputs=True) as tap:
        for _ in range(2):
            server.submit("overwrite", {"IN": sent}).result()
        sent[:] = 7
        server.infer("overwrite", {"IN": sent})
    recording = tap.stop()
    kept = [np.frombuffer(each["IN"].data, np.float32).tolist() for each in recording.inputs]
    assert kept == [[0, 1, 2, 3], [7, 7, 7, 7]]
    assert [request.inputs for request in recording.requests] == [0, 0, 1]
    assert recording.has_data


def test_calls_of_models_and_steps_are_not_clients(server, tmp_path):
    import triton_python_backend_utils as pb_utils

    class Caller:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
            config.set_max_batch_size(0)
            return config

        def execute(self, requests):
            value = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[None]
            inner = pb_utils.InferenceRequest(
                model_name="double",
                inputs=[pb_utils.Tensor("IN", value)],
                requested_output_names=["OUT"],
            ).exec()
            found = pb_utils.get_output_tensor_by_name(inner, "OUT").as_numpy()[0]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)])]

    server.load(model=Caller, name="caller")
    with nt.record(server, tmp_path / "t.jsonl") as tap:
        server.infer("caller", {"IN": ONES[0]})
    assert tap.stop().counts == {"caller": 1}


def test_clients_over_http_are_recorded(server, tmp_path):
    from nbtriton.serving.clients.http import HttpClient

    with (
        server.serve(http_port=0, grpc_port=None, metrics_port=None) as served,
        HttpClient(f"127.0.0.1:{served.http_port}") as client,
        nt.record(server, tmp_path / "t.jsonl") as tap,
    ):
        client.infer("double", {"IN": ONES}, parameters={"priority": 1})
    (request,) = tap.stop().requests
    assert (request.rows, request.options["priority"]) == (2, 1)


def test_requests_for_other_models_and_refused_ones_are_not_in_it(server, tmp_path):
    server.load("max_batch_size: 8", same, name="same")
    with nt.record(server, tmp_path / "t.jsonl", models="same") as tap:
        server.infer("double", {"IN": ONES})
        server.infer("same", {"IN": np.ones((1, 1), np.float32)})
        with pytest.raises(InvalidArgumentError):
            server.infer("same", {"IN": ONES})
    assert tap.stop().counts == {"same": 1}


def test_a_sequence_that_had_begun_is_left_out(server, tmp_path):
    server.load(SUMS, same)
    value = {"IN": np.ones((1, 1), np.float32)}
    server.infer("sums", value, sequence_id=7, sequence_start=True)
    with nt.record(server, tmp_path / "t.jsonl") as tap:
        server.infer("sums", value, sequence_id=7, sequence_end=True)
        server.infer("sums", value, sequence_id=8, sequence_start=True)
        server.infer("sums", value, sequence_id=8, sequence_end=True)
    assert tap.left_out == 1
    assert "1 of sequences" in repr(tap)
    assert [request.options for request in tap.stop().requests] == [
        {"sequence_id": 8, "sequence_start": True},
        {"sequence_id": 8, "sequence_end": True},
    ]


def test_it_ends_by_itself_after_a_count(server, tmp_path):
    stop = threading.Event()

    def traffic():
        while not stop.is_set():
            server.infer("double", {"IN": ONES})

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        tap = nt.record(server, tmp_path / "t.jsonl.gz", request_count=300)
    finally:
        stop.set()
        thread.join()
    assert len(tap.stop().requests) == tap.requests == 300
    assert (tmp_path / "t.jsonl.gz").read_bytes().startswith(b"\x1f\x8b")


def test_a_request_that_comes_while_others_are_written_is_the_last_one(
    server, tmp_path, monkeypatch
):
    add, coming = RecordingWriter.add, [{"IN": ONES}]

    def add_while_one_comes(writer, request):
        if coming:
            server.infer("double", coming.pop())
        add(writer, request)

    monkeypatch.setattr(RecordingWriter, "add", add_while_one_comes)
    monkeypatch.setattr(tap_module, "_CHUNK", 1)
    tap = TrafficTap(server, tmp_path / "t.jsonl", limit=2)
    server.engine.dispatcher.listen(tap)
    server.infer("double", {"IN": ONES})
    assert tap.ended.is_set()
    assert len(tap.stop().requests) == 2


def test_many_senders_lose_nothing(server, tmp_path):
    def send():
        for _ in range(300):
            server.infer("double", {"IN": ONES})

    with nt.record(server, tmp_path / "t.jsonl") as tap:
        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    times = [request.at_ns for request in tap.stop().requests]
    assert len(times) == 1200
    assert times == sorted(times)


def test_the_end_of_the_server_ends_it(tmp_path):
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        tap = nt.record(server, tmp_path / "t.jsonl")
        server.infer("double", {"IN": ONES})
    assert tap.ended.is_set()
    assert Recording.load(tmp_path / "t.jsonl").complete


def test_a_file_that_was_cut_off_is_read_up_to_there(server, tmp_path):
    path = tmp_path / "t.jsonl"
    with nt.record(server, path):
        for _ in range(3):
            server.infer("double", {"IN": ONES})
    path.write_bytes(path.read_bytes()[:-40])
    recording = Recording.load(path)
    assert not recording.complete
    assert len(recording.requests) == 2
    assert "its end is missing" in repr(recording)


def test_a_compressed_file_that_was_damaged_is_read_up_to_there_or_refused(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    chance = random.Random(1)
    made = [RecordedRequest(at, "m", -1, 1, {"request_id": chance.randbytes(40).hex()}) for at in range(9000)]  # fmt: skip
    Recording(tuple(made), (), {}, "", 9000).save(path)
    content = bytearray(path.read_bytes())
    content[1000:1100] = b"\xff" * 100
    path.write_bytes(content)
    found = None
    with suppress(InvalidArgumentError):
        found = Recording.load(path)
    assert found is None or (not found.complete and len(found.requests) < 9000)


def test_a_recording_saved_again_is_the_same_file(tmp_path):
    inputs = (
        {"IN": RecordedTensor("FP32", (1,), b"\0\0\0\0")},
        {"IN": RecordedTensor("BYTES", (2,))},
    )
    recording = Recording(
        (RecordedRequest(5, "m", 0, 1, {"priority": 1}), RecordedRequest(9, "m", 1, 2, {})),
        inputs, {"m": 'name: "m"'}, "2026-01-01T00:00:00Z", 12,
    )  # fmt: skip
    for name in ("a.jsonl", "a.jsonl.gz"):
        recording.save(tmp_path / name)
        again = Recording.load(tmp_path / name)
        assert again == recording
        again.save(tmp_path / f"b{name}")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"b{name}").read_bytes()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is no recording"),
        ("{}\n", "is no recording"),
        ("no JSON\n", "is no recording"),
        (json.dumps({"format": "nbtriton-recording", "version": 2}) + "\n", "has version 2"),
        *(
            (
                json.dumps(
                    {"format": "nbtriton-recording", "version": 1, "began": "", "models": {}}
                )
                + f"\n{line}\n",
                "line 2 of",
            )
            for line in (
                '{"at_ns": "x", "model": "m"}',
                '{"at_ns": -1, "model": "m"}',
                '{"at_ns": 0, "model": "m", "rows": -1}',
            )
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, content, text):
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidArgumentError, match=text):
        Recording.load(path)


def test_bad_arguments_are_refused_and_leave_files_alone(server, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("mine")
    for options, text in (
        ({"models": ["doubel"]}, "is not loaded"),
        ({"duration_s": 0}, "duration_s must be"),
        ({"request_count": 0}, "request_count must be"),
    ):
        with pytest.raises((InvalidArgumentError, NotFoundError), match=text):
            nt.record(server, path, **options)
    assert path.read_text() == "mine"
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        nt.record(server, tmp_path / "no" / "t.jsonl")
    with pytest.raises(NotFoundError, match="no recording"):
        Recording.load(tmp_path / "missing.jsonl")


def test_ids_that_are_no_utf_8_are_kept(server, tmp_path):
    """Clients over HTTP may send any bytes; they come as lone surrogates."""
    path = tmp_path / "t.jsonl.gz"
    with nt.record(server, path) as tap:
        server.infer("double", {"IN": ONES}, request_id="\udcff", parameters={"\udcfe": "\ud800"})
    assert tap.stop().requests[0].options == {
        "request_id": "\udcff",
        "parameters": {"\udcfe": "\ud800"},
    }


def test_a_file_has_one_recording_at_a_time(server, tmp_path):
    path = tmp_path / "t.jsonl"
    with nt.record(server, path) as tap:
        server.infer("double", {"IN": ONES})
        with pytest.raises(InvalidArgumentError, match="is being made"):
            nt.record(server, tmp_path / ".." / tmp_path.name / "t.jsonl")
    assert tap.stop().counts == {"double": 1}


def test_a_recording_that_fails_leaves_what_was_written_and_no_file_open(server, tmp_path):
    tap = nt.record(server, tmp_path / "t.jsonl")
    file = tap._writer._file
    file.flush()
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file.fileno())
    server.infer("double", {"IN": ONES})
    with pytest.raises(OSError, match="No space left on device"):
        tap.stop()
    assert file.closed
    assert not Recording.load(tmp_path / "t.jsonl").complete
