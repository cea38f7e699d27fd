"""Sequences on live threads: control tensors, padding, implicit state, and their statistics."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nbtriton.common.errors import (
    EngineStoppedError,
    InvalidArgumentError,
    ModelError,
    TritonError,
    UnavailableError,
)
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.sequence_tensors import SequenceTensors
from tests.engine.sequence_models import accumulator, config, control, looking
from tests.engine.support import WAIT_S, Gate, ensemble_text, fields

START, END = 1, 2

FLAG_TYPES = {
    "int32_false_true: [ 0, 1 ]": (np.int32, 0, 1),
    "int32_false_true: [ -7, 3 ]": (np.int32, -7, 3),
    "fp32_false_true: [ 0, 1 ]": (np.float32, 0, 1),
    "bool_false_true: [ false, true ]": (np.bool_, False, True),
    "bool_false_true: [ true, false ]": (np.bool_, True, False),
}


def one(value: float = 0.0) -> dict[str, np.ndarray]:
    return {"IN": np.full((1, 1), value, np.float32)}


class User:
    """One client of a sequence; START goes with its first request."""

    def __init__(self, server: Server, sequence_id: int | str, model: str = "m") -> None:
        self.server = server
        self.id = sequence_id
        self.model = model
        self.started = False

    def options(self, end: bool) -> dict[str, object]:
        start, self.started = not self.started, True
        return {"sequence_id": self.id, "sequence_start": start, "sequence_end": end}

    def say(self, value: float = 0.0, *, end: bool = False) -> float:
        result = self.server.infer(self.model, one(value), **self.options(end))
        return float(result["OUT"].flat[0])

    def send(self, value: float = 0.0, *, end: bool = False, name: str = "", **more: object):
        return self.server.submit(
            self.model, one(value), request_id=name, **self.options(end), **more
        )


# -- control tensors -----------------------------------------------------------------------------


@pytest.mark.parametrize("values", FLAG_TYPES)
@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_C1_C2_controls_are_inputs_of_the_type_that_the_configuration_says(
    server, values, max_batch_size
):
    dtype, false, true = FLAG_TYPES[values]
    batching = " ".join(control(kind, kind, values) for kind in ("START", "END", "READY"))
    batching += control("ID", "CORRID", "data_type: TYPE_UINT64")
    seen = []
    server.load(
        config(batching, max_batch_size=max_batch_size),
        looking(Gate(is_open=True), seen),
        name="m",
    )
    value = one()["IN"] if max_batch_size else one()["IN"][0]
    for start, end in ((True, False), (False, False), (False, True), (True, True)):
        server.infer("m", {"IN": value}, sequence_id=9, sequence_start=start, sequence_end=end)
    shape = (1, 1) if max_batch_size else (1,)
    flags = [(START, true, false), (0, false, false), (END, false, true), (3, true, true)]
    for (row,), (own, start, end) in zip(seen, flags, strict=True):
        for name, expected in (("START", start), ("END", end), ("READY", true)):
            assert row[name].dtype == dtype
            assert row[name].shape == shape
            assert row[name].flat[0] == expected
        assert row["ID"].shape == shape
        assert (row["flags"], row["id"], row["ID"].item()) == (own, 9, 9)  # C6


@pytest.mark.parametrize(
    ("datatype", "sequence_id", "expected"),
    [
        ("UINT64", 2**63 + 5, np.uint64(2**63 + 5)),
        ("INT64", 2**63 + 5, np.int64(-(2**63) + 5)),
        ("UINT32", 2**33 + 5, np.uint32(5)),
        ("INT32", 2**33 + 5, np.int32(5)),
        ("INT32", 2**31 + 5, np.int32(-(2**31) + 5)),
        ("STRING", "née Ωmega", "née Ωmega".encode()),
        ("STRING", "x" * 128, b"x" * 128),
        ("STRING", "\udcff", b"\xff"),  # no UTF-8, over HTTP
        ("STRING", "\ud800", b"\xed\xa0\x80"),
    ],
)
def test_C3_C4_the_correlation_id_in_every_type(server, datatype, sequence_id, expected):
    seen = []
    server.load(
        config(control("ID", "CORRID", f"data_type: TYPE_{datatype}")),
        looking(Gate(is_open=True), seen),
        name="m",
    )
    User(server, sequence_id).say(end=True)
    ((row,),) = seen
    assert row["ID"].shape == (1, 1)
    assert row["ID"].item() == expected
    assert type(row["ID"].flat[0]) is type(expected)
    assert row["id"] == sequence_id


def test_A18_a_number_where_the_control_is_text_is_refused(server):
    seen = []
    server.load(
        config(control("ID", "CORRID", "data_type: TYPE_STRING")),
        looking(Gate(is_open=True), seen),
        name="m",
    )
    with pytest.raises(InvalidArgumentError) as caught:
        User(server, 7).say()
    assert caught.value.message == (
        "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'UINT64', but "
        "model 'm' expects 'BYTES'"
    )
    assert not seen


@pytest.mark.parametrize("datatype", ["UINT64", "INT64", "UINT32", "INT32"])
def test_text_where_the_control_is_a_number_is_the_number_it_says_or_a_hash(
    server, datatype, caplog
):
    seen = []
    server.load(
        config(control("ID", "CORRID", f"data_type: TYPE_{datatype}")),
        looking(Gate(is_open=True), seen),
        name="m",
    )
    names = ["9", "09", "abc", "sequence-1", "sequence-2", "x" * 128, str(1 << 64), "\u0663", "abc"]
    for name in names:
        User(server, name).say(end=True)
    given = [row["ID"].item() for (row,) in seen]
    assert given[0] == 9
    assert given[2] == given[-1]
    assert len(set(given[:-1])) == len(names) - 1
    assert 0 not in given
    assert [row["id"] for (row,) in seen] == names
    warnings = [each.getMessage() for each in caplog.records if "correlation ids" in each.msg]
    assert len(warnings) == 1
    assert "such as '9' are text" in warnings[0]


def test_C5_without_a_control_ids_of_both_types_are_sequences_of_their_own(server):
    server.load(config(""), looking(Gate(is_open=True), []), name="m")
    number, string = User(server, 7), User(server, "7")
    number.say()
    string.say()
    number.say(end=True)
    string.say(end=True)


# -- rows and padding ----------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "UINT8", "STRING"])
def test_DI2_DI3_DI4_rows_keep_their_slots_and_padding_is_zeros(server, gate, datatype):
    batching = (
        control("READY", "READY", "int32_false_true: [ 0, 1 ]")
        + control("START", "START", "fp32_false_true: [ 0, 1 ]")
        + control("ID", "CORRID", "data_type: TYPE_INT32")
    )
    seen = []
    server.load(config(batching, datatype=datatype), looking(gate, seen), name="m")
    dtype = {"FP32": np.float32, "BOOL": np.bool_, "UINT8": np.uint8, "STRING": object}[datatype]
    value = np.full((1, 1), b"full" if dtype is object else 1, dtype)

    def send(sequence_id: int, name: str, *, start: bool = False):
        return server.submit(
            "m", {"IN": value}, sequence_id=sequence_id, sequence_start=start, request_id=name
        )

    futures = [send(11, "a1", start=True)]
    gate.wait_entered()
    futures += [send(12, "b1", start=True), send(13, "c1", start=True)]
    gate.let()
    gate.wait_entered()
    futures += [send(13, "c2"), send(13, "c3")]
    gate.let()
    gate.wait_entered()
    futures.append(send(11, "a2"))
    gate.open()
    results = [future.result(timeout=WAIT_S) for future in futures]
    assert gate.batches == [["a1"], ["", "b1", "c1"], ["", "", "c2"], ["a2", "", "c3"]]
    assert all(result["OUT"].tolist() == value.tolist() for result in results)
    padding = [
        row
        for batch, names in zip(seen, gate.batches, strict=True)
        for row, name in zip(batch, names, strict=True)
        if not name
    ]
    assert len(padding) == 4
    for row in padding:
        assert row["IN"].dtype == value.dtype
        assert row["IN"].tolist() == ([[b""]] if dtype is object else [[0]])
        assert (row["READY"].item(), row["START"].item(), row["ID"].item()) == (0, 0, 0)
        assert (row["id"], row["flags"]) == (0, 0)
    # DI4: padding counts in the size of an execution, and nowhere else.
    counts = fields(server.statistics("m"), "m")
    assert counts["success"] == counts["inference_count"] == counts["queue"] == 6
    assert counts["execution_count"] == 4
    assert counts["batches"] == {1: 1, 3: 3}


def test_DI4_T7_a_model_may_leave_padding_unanswered(server, gate):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([request.request_id() for request in requests])
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((1, 1), np.float32))])
                if request.request_id()
                else None
                for request in requests
            ]

    server.load(config(""), TritonPythonModel, name="m")
    ann, bob = User(server, 1), User(server, 2)
    futures = [ann.send(name="a1")]
    gate.wait_entered()
    futures.append(bob.send(name="b1"))
    gate.open()
    for future in futures:
        assert future.result(timeout=WAIT_S)["OUT"].item() == 1
    assert gate.batches == [["a1"], ["", "b1"]]
    server.unload("m")  # which waits until nothing is under way


def test_DI4_padding_of_a_decoupled_model_may_be_answered_or_not(server, gate):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([request.request_id() for request in requests])
            for request in requests:
                sender = request.get_response_sender()
                tensor = pb_utils.Tensor("OUT", np.ones((1, 1), np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    text = config("", rest="model_transaction_policy { decoupled: true }")
    server.load(text, TritonPythonModel, name="m")
    users = [User(server, number) for number in (1, 2, 3)]
    arrived = []
    futures = [users[0].send(name="a1", on_response=lambda r, last: arrived.append("a1"))]
    gate.wait_entered()
    for user, name in zip(users[1:], ("b1", "c1"), strict=True):
        futures.append(
            user.send(name=name, on_response=lambda r, last, name=name: arrived.append(name))
        )
    gate.open()
    for future in futures:
        future.result(timeout=WAIT_S)
    assert gate.batches == [["a1"], ["", "b1", "c1"]]
    assert set(arrived) == {"a1", "b1", "c1"}
    server.unload("m")  # which waits until nothing is under way


# -- oldest --------------------------------------------------------------------------------------


def test_OL1_OL2_requests_of_several_sequences_share_batches_without_padding(server, gate):
    seen = []
    batching = "oldest { } " + control("READY", "READY", "int32_false_true: [ 0, 1 ]")
    server.load(config(batching), looking(gate, seen), name="m")
    users = [User(server, number) for number in (1, 2, 3)]
    futures = [users[0].send(name="a1")]
    gate.wait_entered()
    for number in (1, 2):
        futures += [user.send(name=f"{'abc'[user.id - 1]}{number}") for user in users[1:]]
    futures.append(users[0].send(name="a2"))
    gate.open()
    for future in futures:
        future.result(timeout=WAIT_S)
    assert gate.batches == [["a1"], ["b1", "c1", "a2"], ["b2", "c2"]]
    assert all(row["READY"].item() == 1 for batch in seen for row in batch)
    assert fields(server.statistics("m"), "m")["batches"] == {1: 1, 2: 1, 3: 1}


def test_OL3_more_sequences_than_candidates_wait_for_an_end(server, gate):
    server.load(config("oldest { max_candidate_sequences: 2 }"), looking(gate, []), name="m")
    users = [User(server, number) for number in (1, 2, 3)]
    futures = [user.send(name="abc"[index] + "1") for index, user in enumerate(users)]
    gate.wait_entered()
    gate.let()
    gate.wait_entered()
    gate.let()
    futures[1].result(timeout=WAIT_S)
    assert not futures[2].done()
    futures.append(users[0].send(name="a2", end=True))
    gate.open()
    for future in futures:
        future.result(timeout=WAIT_S)
    assert gate.batches == [["a1"], ["b1"], ["a2"], ["c1"]]


def test_OL6_the_order_of_responses_is_that_of_an_instance(server):
    """A slow instance delays its own sequences, no others."""
    slow = Gate()

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            if any(request.correlation_id() == 1 for request in requests):
                slow.stand([])
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                for r in requests
            ]

    strategy = "oldest { max_candidate_sequences: 2 preserve_ordering: true }"
    rest = "instance_group { count: 2 kind: KIND_CPU }"
    server.load(config(strategy, rest=rest), TritonPythonModel, name="m")
    behind = User(server, 1).send()
    slow.wait_entered()
    # Slots in turn: sequence 2 is with the other instance, 3 waits behind 1.
    beside, waits = User(server, 2).send(), User(server, 3).send()
    beside.result(timeout=WAIT_S)
    assert not behind.done()
    assert not waits.done()
    slow.open()
    waits.result(timeout=WAIT_S)
    behind.result(timeout=WAIT_S)


# -- life of a sequence --------------------------------------------------------------------------


def test_SQ1_SQ2_SQ3_wrong_requests_are_refused_and_never_count(server):
    server.load(config(""), looking(Gate(is_open=True), []), name="m")
    for options in (
        {"sequence_id": 5},
        {"sequence_id": 0, "sequence_start": True},
        {"sequence_id": "", "sequence_start": True},
    ):
        with pytest.raises(InvalidArgumentError):
            server.infer("m", one(), **options)
    with pytest.raises(InvalidArgumentError, match="must specify batch-size 1"):
        server.infer("m", {"IN": np.zeros((2, 1), np.float32)}, sequence_id=5, sequence_start=True)
    counts = fields(server.statistics("m"), "m")
    assert (counts["success"], counts["fail"], counts["execution_count"]) == (0, 0, 0)


def test_SQ9_an_idle_sequence_frees_its_slot(server):
    server.load(
        config("max_sequence_idle_microseconds: 60000", max_batch_size=1),
        looking(Gate(is_open=True), []),
        name="m",
    )
    first, second = User(server, 1), User(server, 2)
    first.say()
    # No slot is free: this is answered only because the first one is silent.
    second.send().result(timeout=WAIT_S)
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        first.say()


def test_SQ11_a_backlog_that_times_out_fails_as_a_whole(server, gate):
    server.load(config("", max_batch_size=1), looking(gate, []), name="m")
    ann, bob = User(server, 1), User(server, 2)
    held = ann.send()
    gate.wait_entered()
    # The one that times out comes last: on a busy machine another one could come after its time.
    late = [bob.send(timeout_us=0), bob.send(timeout_us=3_600_000_000), bob.send(timeout_us=1000)]
    for future in late:
        with pytest.raises(UnavailableError) as caught:
            future.result(timeout=WAIT_S)
        assert caught.value.message == "timeout of the corresponding sequence has been expired"
    gate.open()
    held.result(timeout=WAIT_S)
    ann.say(end=True)
    assert fields(server.statistics("m"), "m")["fail"] == 3


def test_X5_a_cancelled_request_takes_those_behind_it_along(server, gate):
    server.load(config(""), looking(gate, []), name="m")
    ann = User(server, 1)
    futures = [ann.send(name="a1")]
    gate.wait_entered()
    futures += [ann.send(name=f"a{number}") for number in (2, 3, 4)]
    futures[2].cancel()
    for future in futures[2:]:
        with pytest.raises(TritonError) as caught:
            future.result(timeout=WAIT_S)
        assert caught.value.status == "CANCELLED"
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        ann.say()
    gate.open()
    for future in futures[:2]:
        future.result(timeout=WAIT_S)
    assert gate.batches == [["a1"], ["a2"]]


def test_SQ12_closing_the_server_answers_every_waiting_request(gate):
    with Server(gpus=()) as server:
        server.load(config("", max_batch_size=1), looking(gate, []), name="m")
        ann, bob = User(server, 1), User(server, 2)
        running = ann.send()
        gate.wait_entered()
        waiting = [ann.send(), bob.send(), bob.send()]
        closing = threading.Thread(target=server.close, kwargs={"timeout_s": WAIT_S})
        closing.start()
        for future in waiting:
            with pytest.raises(EngineStoppedError):
                future.result(timeout=WAIT_S)
        gate.open()
        running.result(timeout=WAIT_S)
        closing.join(WAIT_S)
        assert not closing.is_alive()
        with pytest.raises(TritonError):
            User(server, 3).say()


def test_unloading_waits_for_sequences_in_the_backlog(server, gate):
    server.load(
        config("max_sequence_idle_microseconds: 50000", max_batch_size=1),
        looking(gate, []),
        name="m",
    )
    ann, bob = User(server, 1), User(server, 2)
    futures = [ann.send()]
    gate.wait_entered()
    futures += [bob.send(), bob.send()]
    server.unload("m")
    gate.open()
    for future in futures:  # bob's turn comes when ann's sequence, never ended, is idle
        future.result(timeout=WAIT_S)


# -- implicit state ------------------------------------------------------------------------------

STATE = 'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: %s %s }'


def test_I1_I5_the_state_goes_from_one_request_of_a_sequence_to_the_next(server):
    server.load(config(STATE % ("1", "")), accumulator(), name="m")
    ann, bob = User(server, 1), User(server, "bob")
    said = []
    for number in range(1, 5):  # interleaved
        said.append((ann.say(number), bob.say(10 * number)))
    assert said == [(1, 10), (3, 30), (6, 60), (10, 100)]
    result = server.infer("m", one(5), **ann.options(end=True))
    assert set(result) == {"OUT"}  # the state is not requested


@pytest.mark.parametrize("strategy", ["", "oldest { }"])
def test_I2_start_begins_with_a_fresh_state(server, strategy):
    server.load(config(STATE % ("1", "") + strategy), accumulator(), name="m")
    ann = User(server, 1)
    assert [ann.say(5), ann.say(5)] == [5, 10]
    ann.started = False  # SQ7: the same id once more, without an end
    assert [ann.say(5), ann.say(5, end=True)] == [5, 10]
    ann.started = False
    assert ann.say(5, end=True) == 5


def test_I6_a_request_that_fails_or_writes_no_state_keeps_the_state(server):
    server.load(config(STATE % ("1", "")), accumulator(), name="m")
    ann = User(server, 1)
    assert ann.say(5) == 5
    with pytest.raises(ModelError, match="kaboom"):
        ann.say(-1)
    with pytest.raises(TritonError, match="not today"):
        ann.say(-2)
    assert ann.say(-3) == 99
    assert ann.say(1) == 6


def test_I1_a_client_may_ask_for_a_state_that_is_declared_as_an_output(server):
    text = config(STATE % ("1", ""), rest='output { name: "SUM_OUT" data_type: TYPE_FP32 dims: 1 }')
    server.load(text, accumulator(), name="m")
    ann = User(server, 1)
    both = server.infer("m", one(5), **ann.options(end=False))
    assert {name: value.item() for name, value in both.items()} == {"OUT": 5, "SUM_OUT": 5}
    both["OUT"][...] = both["SUM_OUT"][...] = 1000  # the client's copies, not the state
    only = server.infer("m", one(5), outputs=["OUT"], **ann.options(end=False))
    assert {name: value.item() for name, value in only.items()} == {"OUT": 10}
    assert ann.say(5) == 15


def initial(dims: str, data: str) -> str:
    return f'initial_state {{ name: "first" data_type: TYPE_FP32 dims: {dims} {data} }}'


def test_I4_zero_data(server):
    text = config(STATE % ("1", initial("1", "zero_data: true")))
    server.load(text, accumulator(), name="m")
    assert User(server, 1).say(4) == 4


def tensors_of_all_models() -> list[SequenceTensors]:
    return [thing for thing in gc.get_objects() if type(thing) is SequenceTensors]


@pytest.mark.medium
def test_I5_the_state_of_an_ended_sequence_is_freed(server):
    before = tensors_of_all_models()
    server.load(config(STATE % ("1", "")), accumulator(), name="m")
    for sequence_id in range(1, 6):
        user = User(server, sequence_id)
        user.say(1)
        user.say(2, end=True)
    with pytest.raises(ModelError):
        server.infer("m", one(-1), sequence_id=9, sequence_start=True, sequence_end=True)
    (tensors,) = (found for found in tensors_of_all_models() if found not in before)
    assert not any(state.values for state in tensors._states.values())
    assert not tensors._under_way


@pytest.mark.parametrize("decoupled", [False, True])
def test_I1_a_state_may_be_written_through_a_response_sender(server, decoupled):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            (request,) = requests
            state = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy()
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            tensors = [
                pb_utils.Tensor("OUT", state + value),
                pb_utils.Tensor("SUM_OUT", state + value),
            ]
            request.get_response_sender().send(
                pb_utils.InferenceResponse(tensors, parameters={"extra": True}),
                pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )

    policy = f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}"
    server.load(config(STATE % ("1", ""), rest=policy), TritonPythonModel, name="m")
    ann = User(server, 1)
    for value, expected in ((5, 5), (6, 11)):
        (result,) = server.stream("m", one(value), **ann.options(end=False))
        assert {name: array.item() for name, array in result.items()} == {"OUT": expected}
        assert result.parameters == {"extra": True}


def test_I1_each_requested_state_is_returned(server):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            tensors = [
                pb_utils.Tensor(name, np.full((1, 1), number, np.float32))
                for number, name in enumerate(("OUT", "SUM_OUT", "SECRET_OUT"))
            ]
            return [pb_utils.InferenceResponse(tensors) for _ in requests]

    secret = (STATE % ("1", "")).replace("SUM", "SECRET")
    text = config(
        STATE % ("1", "") + secret, rest='output { name: "SUM_OUT" data_type: TYPE_FP32 dims: 1 }'
    )
    server.load(text, TritonPythonModel, name="m")
    result = server.infer("m", one(), **User(server, 1).options(end=False))
    assert {name: array.item() for name, array in result.items()} == {"OUT": 0, "SUM_OUT": 1}


@pytest.mark.parametrize("values", [[40.0], [40.0, 50.0, 60.0]], ids=["exact", "longer"])
def test_I4_a_file_has_the_first_state_and_what_is_too_long_is_cut(server, tmp_path, values):
    folder = saved_accumulator(tmp_path)
    (folder / "initial_state" / "first").write_bytes(np.array(values, np.float32).tobytes())
    text = config(STATE % ("1", initial("1", 'data_file: "first"')))
    server.load(text, folder / "1" / "model.py", name="m")
    for sequence_id in (1, 2):
        user = User(server, sequence_id)
        assert [user.say(2), user.say(2)] == [42, 44]


def test_I3_a_variable_state_begins_with_one_element_and_takes_any_shape(server):
    seen = []
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            (request,) = requests
            state = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy()
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            seen.append(state.tolist())
            return [
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("OUT", value),
                        pb_utils.Tensor("SUM_OUT", np.concatenate([state, value], axis=1)),
                    ]
                )
            ]

    text = config(STATE % ("-1", initial("2", "zero_data: true")))
    server.load(text, TritonPythonModel, name="m")
    ann = User(server, 1)
    for value in (1, 2, 3):
        ann.say(value)
    assert seen == [[[0]], [[0, 1]], [[0, 1, 2]]]


def test_I4_V82_too_short_a_file_refuses_the_model(server, tmp_path):
    folder = saved_accumulator(tmp_path)
    (folder / "initial_state" / "first").write_bytes(b"\0" * 7)
    text = config(STATE % ("2", initial("2", 'data_file: "first"')))
    with pytest.raises(InvalidArgumentError) as caught:
        server.load(text, folder / "1" / "model.py", name="m")
    assert "initial_state setting expects 8 bytes, but the data provided from firstonly has 7" in (
        caught.value.message
    )


@pytest.mark.parametrize("rest", [b"", b"\x02\0\0\0xx"], ids=["exact", "longer"])
def test_I4_strings_have_states_too(server, tmp_path, rest):
    folder = saved_accumulator(tmp_path)
    (folder / "initial_state" / "first").write_bytes(b"\x05\0\0\0hello" + rest)
    state = (STATE % ("1", initial("1", 'data_file: "first"'))).replace("FP32", "STRING")
    text = config(state, datatype="STRING")
    server.load(text, folder / "1" / "model.py", name="m")
    options = {"sequence_id": 1, "sequence_start": True}
    for word, expected in ((b" you", b"hello you"), (b" all", b"hello you all")):
        result = server.infer("m", {"IN": np.array([[word]], object)}, **options)
        options["sequence_start"] = False
        assert result["OUT"].tolist() == [[expected]]


def saved_accumulator(folder):
    """A repository's model: adds (or joins) IN to SUM, first state in a file."""
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "initial_state").mkdir()
    (folder / "m" / "1" / "model.py").write_text(
        """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value, total = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("IN", "SUM_IN")
            )
            total = total + value
            answers.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", total), pb_utils.Tensor("SUM_OUT", total)]
                )
            )
        return answers
"""
    )
    return folder / "m"


def test_I7_padding_does_not_touch_the_state_of_its_row(server, gate):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([request.request_id() for request in requests])
            answers = []
            for request in requests:
                total = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy() + 1
                answers.append(
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", total), pb_utils.Tensor("SUM_OUT", total)]
                    )
                )
            return answers

    server.load(config(STATE % ("1", "")), TritonPythonModel, name="m")
    ann, bob = User(server, 1), User(server, 2)
    futures = [ann.send(name="a1")]
    gate.wait_entered()
    futures += [bob.send(name="b1"), bob.send(name="b2"), bob.send(name="b3")]
    gate.open()
    said = [future.result(timeout=WAIT_S)["OUT"].item() for future in futures]
    assert gate.batches == [["a1"], ["", "b1"], ["", "b2"], ["", "b3"]]
    assert said == [1, 1, 2, 3]
    assert ann.say() == 2


# -- together ------------------------------------------------------------------------------------


def test_E5_an_ensemble_hands_sequences_on_to_its_steps(server):
    server.load(config(STATE % ("1", "")), accumulator(), name="adds")
    server.load(
        ensemble_text(
            ("adds", {"IN": "X"}, {"OUT": "Y"}),
            inputs={"X": "FP32[1]"},
            outputs={"Y": "FP32[1]"},
            max_batch_size=4,
        ),
        name="whole",
    )
    totals = {}
    for number in range(3):
        for sequence_id in (4, 5):
            result = server.infer(
                "whole", {"X": np.full((1, 1), sequence_id, np.float32)},
                sequence_id=sequence_id, sequence_start=number == 0, sequence_end=number == 2,
            )  # fmt: skip
            totals.setdefault(sequence_id, []).append(result["Y"].item())
            assert result.parameters == {
                "sequence_id": sequence_id,
                "sequence_start": number == 0,
                "sequence_end": number == 2,
            }
    assert totals == {4: [4, 8, 12], 5: [5, 10, 15]}
    with pytest.raises(InvalidArgumentError, match=r"in ensemble 'whole'.*START flag"):
        server.infer("whole", {"X": np.zeros((1, 1), np.float32)}, sequence_id=4)


@pytest.mark.parametrize("strategy", ["", "oldest { max_candidate_sequences: 3 }"])
@pytest.mark.parametrize("rate_limit", ["off", "execution_count"])
def test_many_users_at_once_each_get_their_own_sums(strategy, rate_limit):
    with Server(gpus=(), rate_limit=rate_limit) as server:
        group = (
            "instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: "
            '"R" count: 1 } } }'
        )
        server.load(config(STATE % ("1", "") + strategy, rest=group), accumulator(), name="m")

        def life(sequence_id: int) -> None:
            for _ in range(4):
                user = User(server, sequence_id)
                total = 0.0
                for number in range(8):
                    total += sequence_id
                    assert user.say(sequence_id, end=number == 7) == total

        def burst(sequence_id: int) -> None:
            user = User(server, sequence_id)
            futures = [user.send(1, end=number == 19) for number in range(20)]
            said = [future.result(timeout=WAIT_S)["OUT"].item() for future in futures]
            assert said == list(range(1, 21))

        with ThreadPoolExecutor(24) as pool:
            for done in [
                *[pool.submit(life, number) for number in range(1, 13)],
                *[pool.submit(burst, number) for number in range(101, 113)],
            ]:
                done.result(timeout=WAIT_S)
        counts = fields(server.statistics("m"), "m")
        assert counts["success"] == counts["inference_count"] == 12 * 32 + 12 * 20
        assert counts["fail"] == 0
        assert sum(count for count in counts["batches"].values()) == counts["execution_count"]
