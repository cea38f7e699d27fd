"""`Triton().bind(…)`: programs as PyTriton's examples are, over real endpoints."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python.api import pb_utils
from nbtriton.common.errors import ConfigWarning, TritonError
from nbtriton.pytriton import (
    AsyncioModelClient,
    DecoupledModelClient,
    DynamicBatcher,
    FuturesModelClient,
    ModelClient,
    ModelConfig,
    ModelWarmup,
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonUnrecoverableError,
    PyTritonValidationError,
    QueuePolicy,
    Tensor,
    TimeoutAction,
    Triton,
    TritonConfig,
    TritonSecurityConfig,
    WarmupInput,
    batch,
    first_value,
    sample,
)
from nbtriton.pytriton.client import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from tests.until import until

FREE = {"http_port": 0, "grpc_port": 0, "allow_metrics": False}
ROW = Tensor(name="data", dtype=np.float32, shape=(-1,))
RESULT = Tensor(name="result", dtype=np.float32, shape=(-1,))


@batch
def negated(data):
    return [-data]


@pytest.fixture
def triton():
    with Triton(config=TritonConfig(**FREE)) as found:
        yield found


def ask(triton, model, **inputs):
    return triton.server.infer(model, inputs)


def test_a_linear_model_bound_before_it_runs():
    weights = np.float32([[-1]])

    @batch
    def infer_fn(data):
        return [data * weights]

    triton = Triton(config=TritonConfig(**FREE))
    triton.bind("Linear", infer_fn, [ROW], [RESULT])
    # A notebook asks without a port.
    assert ask(triton, "Linear", data=np.float32([[3]]))["result"].tolist() == [[-3]]
    assert not triton.is_alive()
    triton.run()
    triton.run()  # a cell that runs again
    with ModelClient(triton.url, "Linear") as client:
        assert client.infer_sample(data=np.float32([1, 2]))["result"].tolist() == [-1, -2]
        assert client.infer_batch(np.float32([[1], [2]]))["result"].tolist() == [[-1], [-2]]
        assert client.is_batching_supported
        assert client.model_config.dynamic_batching.max_queue_delay_microseconds == 0
    assert triton.stop()
    assert not triton.stop()
    with pytest.raises(PyTritonInvalidOperationError, match="does not run"):
        _ = triton.url


def test_add_sub_by_position_and_by_name(triton):
    @batch
    def add_sub(a, b):
        return {"add": a + b, "sub": a - b}

    tensors = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("a", "b")]
    outputs = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("add", "sub")]
    triton.bind("AddSub", add_sub, tensors, outputs, config=ModelConfig(max_batch_size=128))
    a, b = np.float32([[5, 6]]), np.float32([[1, 2]])
    with ModelClient(triton.url, "AddSub") as client:
        for found in (client.infer_batch(a, b), client.infer_batch(a=a, b=b)):
            assert found["add"].tolist() == [[6, 8]]
            assert found["sub"].tolist() == [[4, 4]]
        with pytest.raises(PyTritonClientValueError, match="by position or by name, not both"):
            client.infer_batch(a, b=b)
        with pytest.raises(PyTritonClientValueError, match="has 2 inputs, 1 were given"):
            client.infer_batch(a)


def test_identity_of_text_and_numbers_over_grpc(triton):
    class Identity:
        @batch
        def __call__(self, INPUT_1, INPUT_2):  # noqa: N803 - PyTriton's names
            return [INPUT_1, np.char.upper(INPUT_2.astype("S"))]

    tensors = [Tensor(dtype=np.float64, shape=(2,)), Tensor(dtype=np.bytes_, shape=(1,))]
    triton.bind("Identity", Identity(), tensors, tensors)
    with ModelClient(f"grpc://localhost:{triton.endpoints.grpc_port}", "Identity", 1) as client:
        found = client.infer_sample(np.float64([1, 2]), np.array([b"ab"], object))
    assert found["OUTPUT_1"].tolist() == [1, 2]
    assert found["OUTPUT_2"].tolist() == [b"AB"]


def test_without_batching_a_function_gets_one_request(triton):
    @sample
    def total(data):
        return [data.sum(keepdims=True)]

    triton.bind("total", total, [ROW], [RESULT], config=ModelConfig(batching=False))
    with ModelClient(triton.url, "total") as client:
        assert client.infer_sample(np.float32([1, 2, 3]))["result"].tolist() == [6]
        with pytest.raises(PyTritonClientModelDoesntSupportBatchingError):
            client.infer_batch(np.float32([[1]]))


def test_a_list_of_functions_is_one_instance_each(triton):
    both_run = threading.Barrier(2, timeout=60)

    def instance(number):
        @batch
        def infer(data):
            both_run.wait()
            return [np.full_like(data, number)]

        return infer

    functions = [instance(1), instance(2)]
    triton.bind("two", functions, [ROW], [RESULT], config=ModelConfig(batcher=None))
    with FuturesModelClient(triton.url, "two") as client:
        found = [client.infer_sample(np.float32([0])) for _ in range(2)]
        assert sorted(one.result(60)["result"][0] for one in found) == [1, 2]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_of_a_client_that_is_closed_at_once_fail_or_are_cancelled(triton, protocol):
    began, go_on = threading.Event(), threading.Event()

    @batch
    def infer(data):
        began.set()
        assert go_on.wait(60)
        return [data]

    triton.bind("slow", infer, [ROW], [RESULT])
    port = getattr(triton.endpoints, f"{protocol}_port")
    client = FuturesModelClient(f"{protocol}://localhost:{port}", "slow", max_workers=1)
    try:
        in_flight, queued = (client.infer_sample(np.float32([0])) for _ in range(2))
        assert began.wait(60)
        client.close(wait=False)
        assert queued.cancelled()
        with pytest.raises(PyTritonClientInferenceServerError):
            in_flight.result(0)
    finally:
        go_on.set()


def test_a_function_gets_requests_with_their_parameters(triton):
    seen = []

    def infer(requests):
        seen.extend((one.parameters, one.requested_output_names) for one in requests)
        return [{"result": one["data"] + len(one)} for one in requests]

    triton.bind("plain", infer, [ROW], [RESULT, Tensor((1,), np.int8, "other")])
    found = triton.server.infer(
        "plain", {"data": np.float32([[1]])}, outputs=["result"], parameters={"top_k": 3}
    )
    assert found["result"].tolist() == [[2]]
    assert seen == [({"top_k": 3}, ["result"])]


def test_decoupled_generators_stream_to_each_request(triton):
    @batch
    @first_value("count")
    def counted(count, data):
        for number in range(count):
            yield [data + number]

    async def awaited(requests):
        for number in range(2):
            await asyncio.sleep(0)
            yield [{"result": one["data"] * number} for one in requests]

    decoupled = ModelConfig(decoupled=True)
    count = Tensor(name="count", dtype=np.int32, shape=(1,))
    triton.bind("counted", counted, [count, ROW], [RESULT], config=decoupled)
    triton.bind("awaited", awaited, [ROW], [RESULT], config=decoupled)
    triton.bind("one", negated, [ROW], [RESULT], config=decoupled)
    url = f"grpc://localhost:{triton.endpoints.grpc_port}"
    with DecoupledModelClient(url, "counted") as client:
        found = client.infer_sample(np.int32([3]), np.float32([1]))
        assert [one["result"].tolist() for one in found] == [[1], [2], [3]]
        none = client.infer_batch(np.int32([[0]]), np.float32([[1]]))
        assert list(none) == []
    for name, expected in (("awaited", [0, 5]), ("one", [-5])):
        responses = triton.server.stream(name, {"data": np.float32([[5]])})
        assert [one["result"][0, 0] for one in responses] == expected
    with (
        DecoupledModelClient(triton.url, "one") as client,
        pytest.raises(PyTritonClientValueError, match="over gRPC"),
    ):
        client.infer_sample(np.float32([1]))


class Versions:
    """Answers with its version, in a stream of one response."""

    def initialize(self, args):
        self.version = np.float32([[args["model_version"]]])

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("result", self.version)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def test_a_client_of_streams_asks_its_version(triton):
    for version in (1, 2):
        triton.server.load(
            """name: "versions" max_batch_size: 8 version_policy { all { } }
            model_transaction_policy { decoupled: true }
            input { name: "data" data_type: TYPE_FP32 dims: 1 }
            output { name: "result" data_type: TYPE_FP32 dims: 1 }""",
            Versions,
            version=version,
        )
    for version in (1, 2):
        url = f"grpc://localhost:{triton.endpoints.grpc_port}"
        with DecoupledModelClient(url, "versions", version, init_timeout_s=0) as client:
            (found,) = client.infer_sample(np.float32([0]))
            assert found["result"].tolist() == [version]


def test_an_error_within_a_stream_ends_it(triton):
    def broken(requests):
        yield [{"result": one["data"]} for one in requests]
        raise ValueError("no more")

    triton.bind("broken", broken, [ROW], [RESULT], config=ModelConfig(decoupled=True))
    responses = iter(triton.server.stream("broken", {"data": np.float32([[5]])}))
    assert next(responses)["result"].tolist() == [[5]]
    with pytest.raises(TritonError, match="no more"):
        next(responses)


def test_coroutines_and_generators_of_one_item_answer_as_functions_do(triton):
    async def coroutine(requests):
        await asyncio.sleep(0)
        return [{"result": -one["data"]} for one in requests]

    def generator(requests):
        yield [{"result": -one["data"]} for one in requests]

    def twice(requests):
        yield [{"result": one["data"]} for one in requests]
        yield [{"result": one["data"]} for one in requests]

    @batch
    async def batched(data):
        await asyncio.sleep(0)
        return [-data]

    for function in (coroutine, generator, twice, batched):
        triton.bind(function.__name__, function, [ROW], [RESULT])
    for name in ("coroutine", "generator", "batched"):
        assert ask(triton, name, data=np.float32([[2]]))["result"].tolist() == [[-2]]
    with pytest.raises(TritonError, match="a generator gave 2 items"):
        ask(triton, "twice", data=np.float32([[2]]))


def test_an_error_reaches_the_client_and_the_model_serves_on(triton):
    @batch
    def picky(data):
        if data[0, 0] < 0:
            raise ValueError("below zero")
        return [data]

    triton.bind("picky", picky, [ROW], [RESULT])
    with ModelClient(triton.url, "picky") as client:
        with pytest.raises(PyTritonClientInferenceServerError, match="ValueError: below zero"):
            client.infer_sample(np.float32([-1]))
        assert client.infer_sample(np.float32([1]))["result"].tolist() == [1]


@pytest.mark.parametrize("decoupled", [False, True])
def test_an_unrecoverable_error_is_answered_and_stops_triton(decoupled):
    triton = Triton(config=TritonConfig(**FREE))

    def broken(requests):
        raise PyTritonUnrecoverableError("the device is gone")
        yield requests

    triton.bind("broken", broken, [ROW], [RESULT], config=ModelConfig(decoupled=decoupled))
    served = threading.Thread(target=triton.serve)
    served.start()
    assert until(triton.is_alive)
    url = f"grpc://localhost:{triton.endpoints.grpc_port}"
    with (
        (DecoupledModelClient if decoupled else ModelClient)(url, "broken") as client,
        pytest.raises(PyTritonClientInferenceServerError, match="the device is gone"),
    ):
        list(client.infer_sample(np.float32([1])))
    served.join(60)
    assert not served.is_alive()
    assert not triton.is_alive()


def test_ctrl_c_ends_serve(monkeypatch):
    triton = Triton(config=TritonConfig(**FREE))
    triton.bind("negated", negated, [ROW], [RESULT])
    opened = []

    def interrupted(self):
        opened.append(self.endpoints.http_port)
        raise KeyboardInterrupt

    monkeypatch.setattr(Triton, "is_alive", interrupted)
    triton.serve()
    monkeypatch.undo()
    assert opened
    assert not triton.is_alive()


def test_strict_compares_outputs_with_their_declaration(triton):
    @batch
    def wide(data):
        return {"result": np.zeros((len(data), 3), np.float64), "extra": data}

    triton.bind("loose", wide, [ROW], [RESULT])
    found = ask(triton, "loose", data=np.float32([[1]]))
    # As the declaration has it; what is not declared is dropped.
    assert list(found) == ["result"]
    assert found["result"].dtype == np.float32
    triton.bind("strict", wide, [ROW], [RESULT], strict=True)
    with pytest.raises(TritonError, match="'result' has the dtype float64; it is declared as FP32"):
        ask(triton, "strict", data=np.float32([[1]]))

    @batch
    def shaped(data):
        return [np.zeros((len(data), 3), np.float32)]

    triton.bind("shaped", shaped, [ROW], [Tensor((2,), np.float32, "result")], strict=True)
    with pytest.raises(TritonError, match=r"has the shape \(3,\); it is declared as \(2,\)"):
        ask(triton, "shaped", data=np.float32([[1]]))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({}, "the function returned dict"),
        ([], "returned 0 responses to 1 requests"),
        ([[1]], "a response is list instead of a dict"),
        ([{"result": [1]}], "'result' is list, no NumPy array"),
        ([{"result": np.array([["a"]], object)}], "objects of the type str"),
        ([{"result": np.zeros((1, 1), complex)}], "dtype complex128, which Triton lacks"),
        ([{1: np.zeros(1)}], "a name that is no text"),
    ],
)
def test_a_result_of_another_form_is_an_error(triton, result, text):
    triton.bind("odd", lambda _: result, [ROW], [RESULT])
    with pytest.raises(TritonError, match=text):
        ask(triton, "odd", data=np.float32([[1]]))


def test_a_batch_of_another_form_is_an_error(triton):
    triton.bind("odd", batch(lambda data: {"result": data.tolist()}), [ROW], [RESULT])
    with pytest.raises(TritonError, match="output 'result' is list, no NumPy array"):
        ask(triton, "odd", data=np.float32([[1]]))


def test_what_cannot_be_bound_is_refused_and_harms_nothing(triton):
    triton.bind("kept", negated, [ROW], [RESULT])
    for arguments, text in (
        (("kept", negated, [ROW], [RESULT]), "'kept' is bound already"),
        (("a b", negated, [ROW], [RESULT]), "the name 'a b' is not possible"),
        (("", negated, [ROW], [RESULT]), "the name '' is not possible"),
        ((3, negated, [ROW], [RESULT]), "the name '3' is not possible"),
        (("m", 3, [ROW], [RESULT]), "infer_func is 3"),
        (("m", negated, 3, [RESULT]), "'m': inputs is 3"),
        (("m", negated, [{}], [RESULT]), "'m': input 1 is {}"),
        (("m", negated, [ROW], [Tensor(3, np.float32)]), "'m': output 1 has the shape 3"),
        (("m", negated, [Tensor((1.5,), np.float32)], [RESULT]), r"input 1 has the shape \(1.5,\)"),
        (
            ("m", negated, [Tensor((1,), np.float32, 3)], [RESULT]),
            "has the name 3, which is no text",
        ),
        (("m", negated, [ROW], [RESULT], "x"), "model_version is 'x'"),
        (("m", negated, [ROW], [RESULT], 0), "model_version is 0"),
        (("m", negated, [ROW], [RESULT], 1, {}), "config is {}"),
        (("m", [], [ROW], [RESULT]), r"infer_func is \[\]"),
        (("m", negated, [ROW, ROW], [RESULT]), "two tensors have the name 'data'"),
        (
            ("m", negated, [ROW], [Tensor((1,), np.float32, optional=True)]),
            "an output cannot be optional",
        ),
    ):
        with pytest.raises((PyTritonValidationError, PyTritonInvalidOperationError), match=text):
            triton.bind(*arguments)
    for config, text in (
        (ModelConfig(max_batch_size=0), "max_batch_size is 0"),
        (ModelConfig(max_batch_size="4"), "max_batch_size is 4"),
        (
            ModelConfig(batcher=DynamicBatcher(priority_levels=2, default_priority_level=3)),
            "priority 3",
        ),
    ):
        with pytest.raises(PyTritonBadParameterError, match=text):
            triton.bind("m", negated, [ROW], [RESULT], config=config)
    with pytest.raises(PyTritonBadParameterError, match="no datatype"):
        triton.bind("m", negated, [Tensor((1,), np.complex64, "data")], [RESULT])
    assert [model.name for model in triton.server.models()] == ["kept"]
    assert ask(triton, "kept", data=np.float32([[1]]))["result"].tolist() == [[-1]]


def test_the_configuration_says_what_model_config_says():
    batcher = DynamicBatcher(
        max_queue_delay_microseconds=5000,
        preferred_batch_size=[4, 8],
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 9, max_queue_size=5),
        priority_queue_policy={1: QueuePolicy(default_timeout_microseconds=7)},
    )
    triton = Triton(config=TritonConfig(cache_config=["local,size=1000000"], **FREE))
    with pytest.warns(ConfigWarning, match="cache-key"):
        triton.bind(
            "m",
            negated,
            [ROW, Tensor(name="key", dtype=np.bytes_, shape=(1,), optional=True)],
            [RESULT],
            config=ModelConfig(max_batch_size=8, batcher=batcher, response_cache=True),
        )
    config = triton.server.config("m")
    triton.stop()
    found = config.dynamic_batching
    assert list(found.preferred_batch_size) == [4, 8]
    assert found.max_queue_delay_microseconds == 5000
    assert DynamicBatcher(preserve_ordering=True).to_dict() == {"preserve_ordering": True}
    assert (found.priority_levels, found.default_priority_level) == (2, 2)
    assert found.default_queue_policy.max_queue_size == 5
    assert found.default_queue_policy.timeout_action == 1
    assert found.priority_queue_policy[1].default_timeout_microseconds == 7
    assert config.max_batch_size == 8
    assert config.response_cache.enable
    assert [one.optional for one in config.input] == [False, True]


def test_one_function_may_be_bound_twice_with_outputs_of_its_own(triton):
    triton.bind("first", negated, [ROW], [Tensor((-1,), np.float32, "x")])
    triton.bind("second", negated, [ROW], [Tensor((-1,), np.float32, "y")])
    assert list(ask(triton, "first", data=np.float32([[1]]))) == ["x"]
    assert list(ask(triton, "second", data=np.float32([[1]]))) == ["y"]


def test_a_function_may_change_its_inputs(triton):
    given = np.float32([[1, 2]])

    @batch
    def doubled(data):
        data *= 2
        return [data]

    triton.bind("doubled", doubled, [ROW], [RESULT])
    assert ask(triton, "doubled", data=given)["result"].tolist() == [[2, 4]]
    assert given.tolist() == [[1, 2]]


def test_a_given_server_keeps_its_own_models_and_stays_open():
    with nt.Server() as server:
        server.load("max_batch_size: 8", own_model, name="own")
        with Triton(config=TritonConfig(**FREE), server=server) as triton:
            triton.bind("bound", negated, [ROW], [RESULT])
            assert triton.server is server
            with ModelClient(triton.url, "own") as client:
                assert client.infer_sample(np.float32([1]))["OUT"].tolist() == [1]
        assert [model.name for model in server.models()] == ["own"]
        assert server.infer("own", {"IN": np.float32([[1]])})["OUT"].tolist() == [[1]]


def own_model(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN}


def test_warmup_calls_each_function_before_it_serves(triton, tmp_path):
    np.save(tmp_path / "row.npy", np.float32([7, 8]))
    seen = []

    @batch
    def infer(data, text, row):
        seen.append((data.tolist(), text.dtype.kind, row.tolist()))
        return [data]

    inputs = {
        "data": WarmupInput(np.float32, (1,), zero_data=True),
        "text": WarmupInput(np.bytes_, (1,), random_data=True),
        "row": WarmupInput(np.float32, (2,), input_data_file=str(tmp_path / "row.npy")),
    }
    warmup = [ModelWarmup("w", 2, inputs, count=2)]
    tensors = [ROW, Tensor((1,), np.bytes_, "text"), Tensor((2,), np.float32, "row")]
    triton.bind("warm", infer, tensors, [RESULT], config=ModelConfig(model_warmup=warmup))
    assert seen == 2 * [([[0], [0]], "O", [[7, 8], [7, 8]])]
    missing = [ModelWarmup("w", 1, {"data": inputs["data"]}, count=1)]
    with pytest.warns(UserWarning, match="warmup 'w': TypeError"):
        triton.bind("cold", infer, tensors, [RESULT], config=ModelConfig(model_warmup=missing))
    assert triton.server.is_ready("cold")


def test_settings_come_from_the_environment_unless_they_are_given(monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTTP_PORT", "4711")
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_ALLOW_METRICS", "false")
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_CACHE_CONFIG_1", "local,b=2")
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_CACHE_CONFIG_0", "local,a=1")
    found = TritonConfig.from_env().merged(TritonConfig(http_port=5))
    assert found.http_port == 5
    assert found.allow_metrics is False
    assert found.cache_config == ["local,a=1", "local,b=2"]
    assert "--allow-metrics=false" in found.to_flags()
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTP_PORT", "1")
    with pytest.warns(UserWarning, match="no field 'htp_port'; did you mean 'http_port'"):
        TritonConfig.from_env()
    with pytest.raises(PyTritonValidationError, match="neither HTTP nor gRPC"):
        TritonConfig(allow_http=False, allow_grpc=False)


def test_every_field_of_the_configuration_is_a_flag():
    from dataclasses import fields

    from nbtriton.serving.frontends.serve.flags import FLAGS

    names = {field.name.replace("_", "-") for field in fields(TritonConfig)}
    assert names <= set(FLAGS)
    with (
        pytest.warns(UserWarning, match="http_thread_count has no effect here"),
        Triton(config=TritonConfig(http_thread_count=2, **FREE)) as triton,
    ):
        assert triton.is_connected()


def test_a_token_guards_what_is_not_for_inference():
    security = TritonSecurityConfig()
    with Triton(config=TritonConfig(**FREE), security_config=security) as triton:
        triton.bind("negated", negated, [ROW], [RESULT])
        with ModelClient(triton.url, "negated") as client:
            assert client.infer_sample(np.float32([1]))["result"].tolist() == [-1]
            with pytest.raises(TritonError):
                client._connected.statistics("negated")
        assert len(triton.get_access_token()) > 20


def test_a_client_says_what_is_wrong_with_its_address_and_model(triton):
    for url in ("localhost", "localhost:", "[::1]", "http://[::1]:8000/"):
        ModelClient(url, "m").close()
    for url in ("ftp://x", "localhost:70000", "localhost:x", "::1", None):
        with pytest.raises(PyTritonClientInvalidUrlError, match=f"'{url}' is no address"):
            ModelClient(url, "m")
    for options, text in (
        ({"model_name": 3}, "model_name must be a name; found 3"),
        ({"model_version": "x"}, "model_version must be a whole number; found 'x'"),
        ({"init_timeout_s": "x"}, "init_timeout_s must be a number of seconds"),
        ({"inference_timeout_s": -1}, "inference_timeout_s must be a number of seconds"),
    ):
        with pytest.raises(PyTritonClientValueError, match=text):
            ModelClient(triton.url, **{"model_name": "m", **options})
    with (
        ModelClient(triton.url, "missing") as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="'missing'"),
    ):
        client.infer_sample(np.float32([1]))
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample(np.float32([1]))
    url = triton.url
    triton.stop()
    with pytest.raises(PyTritonClientTimeoutError, match="was not ready within 0 s"):
        ModelClient(url, "m", lazy_init=False, init_timeout_s=0)


def test_an_asyncio_client(triton):
    triton.bind("negated", negated, [ROW], [RESULT])

    async def ask_both():
        async with AsyncioModelClient(triton.url, "negated") as client:
            await client.wait_for_model(60)
            assert (await client.model_config).name == "negated"
            return await asyncio.gather(
                client.infer_sample(np.float32([1])), client.infer_batch(np.float32([[2]]))
            )

    first, second = asyncio.run(ask_both())
    assert (first["result"].tolist(), second["result"].tolist()) == ([-1], [[-2]])


def test_the_page_of_the_documentation_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "pytriton.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(program, "pytriton.md", "exec"), {})
    assert "'add': array([6., 8.]" in capsys.readouterr().out
