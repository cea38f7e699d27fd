"""Calls from a model to other models."""

# ruff: noqa: N803 - tensors have Triton's names

from __future__ import annotations

import asyncio
import re
import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import CancelledError, InternalError, InvalidArgumentError
from tests.backends.fakes import DEFAULT, Request, Server, ones

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402


def add(A, B):
    return {"SUM": A + B, "DIFF": A - B}


def refuse(A, B):
    raise InvalidArgumentError("not today")


def stream(A, B):
    return [{"SUM": A}, {"SUM": B}]


@pytest.fixture
def server():
    return Server({"add": add, "refuse": refuse, "stream": stream}, decoupled=("stream",))


def request(model_name="add", outputs=(), **options):
    inputs = [pb_utils.Tensor("A", ones(1, 5)), pb_utils.Tensor("B", ones(1, 2))]
    return pb_utils.InferenceRequest(
        model_name=model_name, requested_output_names=list(outputs), inputs=inputs, **options
    )


@pytest.fixture
def inside(make, run, server):
    """Call a function inside of execute and return what it returned."""

    def inside(function, server=server):
        seen = []

        class TritonPythonModel:
            def execute(self, requests):
                seen.append(function())
                return [pb_utils.InferenceResponse() for _ in requests]

        run(make(TritonPythonModel, server=server), ones())
        return seen[0]

    return inside


def values(response):
    assert not response.has_error(), response.error().message()
    return {t.name(): float(t.as_numpy()[0, 0]) for t in response.output_tensors()}


def message(response):
    assert response.has_error()
    assert response.error().code() == pb_utils.TritonError.INTERNAL  # PB60, for every cause
    return response.error().message()


def test_PB60_exec_waits_for_the_response(inside):
    response = inside(lambda: request().exec())
    assert values(response) == {"SUM": 7, "DIFF": 3}
    assert pb_utils.get_output_tensor_by_name(response, "SUM").shape() == [1, 4]


def test_names_may_be_bytes_as_the_elements_of_a_BYTES_tensor_are(inside):
    def call():
        inputs = [pb_utils.Tensor(b"A", ones(1, 5)), pb_utils.Tensor("B", ones(1, 2))]
        return pb_utils.InferenceRequest(
            model_name=b"add", requested_output_names=[b"SUM"], inputs=inputs, request_id=b"7"
        ).exec()

    assert values(inside(call)) == {"SUM": 7}
    assert "Model 'n\ufffd' is not ready" in message(inside(lambda: request(b"n\xff").exec()))
    assert inside(lambda: pb_utils.is_model_ready(b"add"))
    assert pb_utils.TritonError(b"no \xe2\x98\x83").message() == "no \N{SNOWMAN}"


@pytest.mark.parametrize("name", [5, None, object()])
def test_other_names_are_refused(name):
    with pytest.raises(TypeError, match="incompatible"):
        pb_utils.InferenceRequest(model_name=name, requested_output_names=[], inputs=[])
    with pytest.raises(TypeError, match="incompatible"):
        pb_utils.TritonError(name)


def test_B4_no_requested_outputs_means_all_of_them(inside):
    assert set(values(inside(lambda: request(outputs=[]).exec()))) == {"SUM", "DIFF"}
    assert set(values(inside(lambda: request(outputs=["SUM"]).exec()))) == {"SUM"}


def test_PB60_the_target_s_own_error_is_passed_on(inside):
    assert message(inside(lambda: request("refuse").exec())) == "not today"


def test_PB61_an_unknown_model_is_not_ready(inside):
    assert message(inside(lambda: request("nope").exec())) == (
        "Model nope - Error when running inference: Failed for execute the inference request. "
        "Model 'nope' is not ready."
    )


def test_PB61_a_refused_request_has_the_frontend_s_prefix(inside, server):
    def submit(*args, **options):
        raise InvalidArgumentError("[request id: <id_unknown>] unexpected shape")

    server.submit = submit
    assert message(inside(lambda: request().exec())) == (
        "Model add - Error when running inference: [request id: <id_unknown>] unexpected shape"
    )


@pytest.mark.parametrize("way", ["exec", "async_exec", "decoupled"])
def test_PB61_what_the_target_s_scheduler_refuses_has_the_prefix(way: str):
    """Seen on the server for each of these, and for a full queue."""
    texts = []

    def call(values):
        given = {"inputs": [pb_utils.Tensor("IN", values)], "requested_output_names": ["OUT"]}
        return pb_utils.InferenceRequest(model_name="sums", correlation_id=5, **given)

    class Caller:
        async def execute(self, requests):
            for one in requests:
                target = call(one.inputs()[0].as_numpy())
                if way == "async_exec":
                    response = await target.async_exec()
                elif way == "decoupled":
                    (response,) = target.exec(decoupled=True)
                else:
                    response = target.exec()
                texts.append(message(response))
            return [pb_utils.InferenceResponse() for _ in requests]

    tensors = (
        'input { name: "IN" data_type: TYPE_FP32 dims: 1 } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    )
    with nt.Server(gpus=()) as server:
        server.load(f"{tensors} sequence_batching {{}}", lambda IN: {"OUT": IN}, name="sums")
        server.load(tensors, Caller, name="caller")
        server.infer("caller", {"IN": np.ones(1, np.float32)})
    (text,) = texts
    assert text == (
        "Model sums - Error when running inference: inference request for sequence 5 to model 'sums' must "
        "specify the START flag on the first request of the sequence"
    )


def test_PB63_a_decoupled_target_needs_decoupled_true(inside):
    assert message(inside(lambda: request("stream").exec())) == (
        "Model stream - Error when running inference: Model stream is using the decoupled. The "
        "current BLS request call doesn't support models using the decoupled transaction policy. "
        "Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
        "models.'"
    )


def test_PB64_an_iterator_ends_with_an_empty_response(inside):
    responses = inside(lambda: list(request("stream").exec(decoupled=True)))
    assert [values(r) for r in responses] == [{"SUM": 5}, {"SUM": 2}, {}]


def test_PB64_an_ordinary_target_gives_one_response(inside):
    (response,) = inside(lambda: list(request("add").exec(decoupled=True)))
    assert values(response) == {"SUM": 7, "DIFF": 3}


@pytest.mark.parametrize(
    ("model", "text"), [("nope", "Model 'nope' is not ready."), ("refuse", "not today")]
)
def test_PB64_a_failure_is_one_error_response(inside, model, text):
    (response,) = inside(lambda: list(request(model).exec(decoupled=True)))
    assert message(response).endswith(text)


def test_PB64_an_iterator_gives_its_responses_again(inside):
    def use():
        responses = request("stream").exec(decoupled=True)
        seen = [[values(next(responses))]]
        for _ in range(3):
            seen.append([values(response) for response in responses])
            with pytest.raises(StopIteration):
                next(responses)
        # A loop that ends early, and one that goes on.
        seen.append([values(response) for response, _ in zip(responses, range(1), strict=False)])
        seen.append([values(response) for response in responses])
        return seen

    every = [{"SUM": 5}, {"SUM": 2}, {}]
    # zip takes one more than it gives.
    assert inside(use) == [every[:1], every[1:], every, every, every[:1], every[2:]]


def test_PB64_an_iterator_that_was_read_to_its_last_response_begins_anew(inside):
    def use():
        responses = request("stream").exec(decoupled=True)
        first = [values(next(responses)) for _ in range(3)]
        return first, [values(response) for response in responses]

    first, again = inside(use)
    assert first == again == [{"SUM": 5}, {"SUM": 2}, {}]


def test_B9_an_iterator_can_be_cancelled(inside):
    def use():
        responses = request("stream").exec(decoupled=True)
        responses.cancel()
        return responses

    assert inside(use)._future.cancelled


def test_PB65_B7_async_calls_run_side_by_side(inside, server):
    barrier = threading.Barrier(4)

    def meet(A, B):
        barrier.wait(60)
        return {"SUM": A}

    server.models["meet"] = meet

    def use():
        async def gather():
            one = request("meet")
            return await asyncio.gather(*(one.async_exec() for _ in range(4)))

        return asyncio.run(gather())

    assert [values(r) for r in inside(use)] == [{"SUM": 5}] * 4


def test_PB65_streams_are_awaited_side_by_side(inside, server):
    barrier = threading.Barrier(2)

    def meet(A, B):
        barrier.wait(60)  # an iterator that blocked the loop would keep the second call from coming
        return [{"SUM": A}, {"SUM": B}]

    server.models["meet"] = meet
    server.decoupled = ("meet",)

    async def consume():
        responses = await request("meet").async_exec(decoupled=True)
        return [values(response) for response in responses]

    async def both():
        return await asyncio.gather(consume(), consume())

    assert inside(lambda: asyncio.run(both())) == [[{"SUM": 5}, {"SUM": 2}, {}]] * 2


def test_PB65_async_exec_in_an_async_model(make, run, server):
    class TritonPythonModel:
        async def execute(self, requests):
            good = await request().async_exec()
            bad = await request("nope").async_exec()
            late = await request("refuse").async_exec()
            many = [values(r) for r in await request("stream").async_exec(decoupled=True)]
            assert (bad.has_error(), late.has_error()) == (True, True)
            assert many == [{"SUM": 5}, {"SUM": 2}, {}]
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", np.array([values(good)["SUM"]]))]
                )
            ]

    (found,) = run(make(TritonPythonModel, server=server), ones())
    assert found.outputs["OUT"].tolist() == [7]


def test_PB65_async_exec_needs_a_running_loop(inside):
    def use():
        with pytest.raises(RuntimeError, match="no running event loop"):
            request().async_exec()

    inside(use)


def test_PB66_parameters_are_checked():
    with pytest.raises(pb_utils.TritonModelException) as caught:
        request(parameters={"a": 1.5})
    assert str(caught.value) == (
        "Expect parameters values to have type bool/int/str, found type <class 'float'>"
    )
    with pytest.raises(pb_utils.TritonModelException) as caught:
        request(parameters={1: 1})
    assert str(caught.value) == (
        "Expect parameters keys to have type str, found type <class 'int'>"
    )
    for wrong in ("a", "", [], 0):
        text = re.escape(f"Expect N8pybind114dictE, got {type(wrong)}")
        with pytest.raises(pb_utils.TritonModelException, match=text):
            request(parameters=wrong)
        with pytest.raises(pb_utils.TritonModelException, match=text):
            pb_utils.InferenceResponse(parameters=wrong)


@pytest.mark.parametrize("missing", ["inputs", "requested_output_names", "model_name"])
def test_a_request_needs_inputs_outputs_and_a_model(missing):
    options = {"inputs": [], "requested_output_names": [], "model_name": "add"}
    del options[missing]
    with pytest.raises(TypeError, match=missing):
        pb_utils.InferenceRequest(**options)


def test_B2_no_calls_in_initialize(make, server):
    class TritonPythonModel:
        def initialize(self, args):
            with pytest.raises(pb_utils.TritonModelException) as caught:
                request().exec()
            assert str(caught.value) == "BLS is only supported during the 'execute' function."

    make(TritonPythonModel, server=server)


def test_B2_no_calls_outside_of_models():
    with pytest.raises(pb_utils.TritonModelException, match="BLS is only supported"):
        request().exec()


def test_PB68_everything_reaches_the_target(inside, server):
    inside(
        lambda: request(
            outputs=["SUM"], request_id="7", correlation_id="seq", model_version=3, timeout=250,
            flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            | pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
            parameters={"k": 1},
        ).exec()
    )  # fmt: skip
    ((name, version, options),) = server.calls
    assert (name, version) == ("add", 3)
    assert (set(options.outputs), options.request_id, options.timeout_us) == ({"SUM"}, "7", 250)
    assert (options.correlation_id, options.flags) == ("seq", 3)
    assert options.parameters == {"k": 1}


def test_B3_nothing_is_inherited_from_the_caller(make, run, server):
    class TritonPythonModel:
        def execute(self, requests):
            request().exec()
            return [pb_utils.InferenceResponse()]

    run(
        make(TritonPythonModel, server=server),
        Request({"IN": ones()}, request_id="caller", timeout_us=9, flags=1, correlation_id=5),
    )
    ((_, _, options),) = server.calls
    assert (options.request_id, options.timeout_us) == ("", 0)
    assert (options.correlation_id, options.flags) == (0, 0)


def test_each_server_s_models_call_their_own_server(make, run):
    """Two servers in one process, at the same time, also from threads of asyncio."""
    barrier = threading.Barrier(2)
    found = {}

    def model(name):
        class TritonPythonModel:
            async def execute(self, requests):
                barrier.wait(60)
                by_task = values(request("which", ["SUM"]).exec())
                by_thread = await asyncio.to_thread(
                    lambda: values(request("which", ["SUM"]).exec())
                )
                found[name] = (by_task["SUM"], by_thread["SUM"])
                return [pb_utils.InferenceResponse()]

        return TritonPythonModel

    instances = [
        make(model(name), server=Server({"which": lambda A, B, n=number: {"SUM": ones(1, n)}}))
        for number, name in enumerate("ab")
    ]
    threads = [threading.Thread(target=run, args=(i, ones())) for i in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": (0, 0), "b": (1, 1)}


def test_a_thread_that_a_model_starts_calls_the_only_server(inside):
    def use():
        found = []
        thread = threading.Thread(target=lambda: found.append(request().exec()))
        thread.start()
        thread.join()
        return found[0]

    assert values(inside(use)) == {"SUM": 7, "DIFF": 3}


def test_B8_preferred_memory_is_host_memory_without_a_gpu(inside):
    memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)
    response = inside(lambda: request(preferred_memory=memory).exec())
    assert all(t.is_cpu() for t in response.output_tensors())


def test_a_received_request_cannot_be_sent_on(make, run, server):
    class TritonPythonModel:
        def execute(self, requests):
            with pytest.raises(pb_utils.TritonModelException):
                requests[0].exec()
            return [pb_utils.InferenceResponse()]

    run(make(TritonPythonModel, server=server), ones())


def test_PB70_B10_model_control(inside, server):
    def use():
        assert pb_utils.is_model_ready("add")
        assert pb_utils.is_model_ready(model_name="add", model_version="1")
        assert not pb_utils.is_model_ready("nope")
        pb_utils.load_model("add", config='{"max_batch_size": 1}', files={"file:1/model.py": b"x"})
        pb_utils.unload_model("add")
        with pytest.raises(TypeError):
            pb_utils.load_model("add", files={"file:1/model.py": "text"})
        with pytest.raises(pb_utils.TritonModelException) as caught:
            pb_utils.load_model("nope")
        return str(caught.value)

    assert inside(use) == (
        "Failed to load model: Failed to process the request for model 'm_0_0', message: failed to "
        "load 'nope', failed to poll from model repository"
    )
    assert server.loaded == [
        ("add", '{"max_batch_size": 1}', {"file:1/model.py": b"x"}),
        ("add", None, False),
    ]


@pytest.mark.parametrize(
    ("version", "found"),
    [("", True), (" +1", True), ("1x", True), ("1.5", True), ("-1", ""), ("0", ""),
     ("x", " (details: stol)"), (" ", " (details: stol)")],
)  # fmt: skip
def test_PB70_a_version_is_read_as_stol_reads_it(inside, version: str, found: bool | str):
    if found is True:
        assert inside(lambda: pb_utils.is_model_ready("add", version))
        return

    def ask():
        with pytest.raises(pb_utils.TritonModelException) as caught:
            pb_utils.is_model_ready("add", version)
        return str(caught.value)

    assert inside(ask) == (
        "Failed to check model readiness: Failed to process the request for model 'm_0_0', message: failed "
        f"to get model version from specified version string '{version}'{found}, version should be an "
        "integral value > 0"
    )


def test_a_function_model_may_call_others(make, run, server):
    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, UP037
        response = request().exec()
        return pb_utils.get_output_tensor_by_name(response, "SUM").as_numpy()

    (found,) = run(make(double, DEFAULT, server=server), ones())
    assert found.outputs["OUT"].tolist() == [[7] * 4]


def test_an_error_of_another_kind_is_reported_with_its_type(inside, server):
    def broken(A, B):
        raise InternalError("inside")

    server.models["broken"] = broken
    assert message(inside(lambda: request("broken").exec())) == "inside"


def test_PB60_a_call_that_was_not_cancelled_has_no_error_of_the_code_CANCELLED(make, run):
    def given_up(A, B):
        raise CancelledError("by itself")

    codes = []

    class TritonPythonModel:
        def execute(self, requests):
            (response,) = request("given_up").exec(decoupled=True)
            codes.append(response.error().code())
            return [pb_utils.InferenceResponse() for _ in requests]

    run(make(TritonPythonModel, server=Server({"given_up": given_up})), ones())
    assert codes == [pb_utils.TritonError.INTERNAL]
