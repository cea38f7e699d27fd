"""The gRPC endpoint with unmodified clients: calls, streams, cancellation, limits, and its end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="tritonclient's gRPC is not installed")
pytest.importorskip("tritonclient.grpc", reason="Triton's client needs grpcio")

import grpc
import numpy as np
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from nbtriton.common.errors import UnavailableError
from nbtriton.extensions.grpc.inference import GrpcInference
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Endpoints, Limits, serve
from nbtriton.serving.frontends.service import NoControl, Service
from tests.frontends.grpc_fuzz import Collected
from tests.frontends.grpc_support import (
    SERVICE,
    ask,
    infer,
    open_call,
    open_stream,
    stream,
    tensor,
)
from tests.until import until

SERVED = ("one", "flexible", "sequence", "failing", "stream", "parameters")

TIMEOUT_S = 60


class Waiting:
    """A model that reports when it runs, and ends when `leave` is set or its request is cancelled."""

    running = threading.Event()
    leave = threading.Event()
    cancelled = threading.Event()

    def execute(self, requests: Any) -> Any:
        import triton_python_backend_utils as pb_utils

        Waiting.running.set()
        for request in requests:
            while not Waiting.leave.wait(0.005):
                if request.is_cancelled():
                    Waiting.cancelled.set()
                    break
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32))])
            for _ in requests
        ]


class Together:
    """A model that answers eight requests at once."""

    def execute(self, requests: Any) -> Any:
        import triton_python_backend_utils as pb_utils

        zeros = np.zeros((1, 4), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", zeros)]) for _ in requests]


TOGETHER = """
name: "together" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 10000000 }
"""
WAITING = """
name: "waiting" max_batch_size: 1
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""


@pytest.fixture
def endpoints(server: Server) -> Iterator[Endpoints]:
    before = set(threading.enumerate())
    with serve(server, http_port=None, metrics_port=None, grpc_port=0) as opened:
        yield opened
    assert until(
        lambda: not any("endpoints" in t.name for t in set(threading.enumerate()) - before)
    )


@pytest.fixture
def url(endpoints: Endpoints) -> str:
    return f"127.0.0.1:{endpoints.grpc_port}"


@pytest.fixture
def channel(url: str) -> Iterator[Any]:
    with grpc.insecure_channel(url) as opened:
        yield opened


@pytest.fixture
def waiting(server: Server) -> Iterator[type[Waiting]]:
    for event in (Waiting.running, Waiting.leave, Waiting.cancelled):
        event.clear()
    server.load(WAITING, Waiting)
    yield Waiting
    Waiting.leave.set()
    server.unload("waiting", timeout_s=60)


def _input(values: Any = (1, 2, 3, 4)) -> Any:
    array = np.array([values], np.float32)
    made = client.InferInput("IN", array.shape, "FP32")
    made.set_data_from_numpy(array)
    return made


# -- Triton's own clients ----------------------------------------------------------------------------


def test_the_asyncio_client(url: str) -> None:
    aio = pytest.importorskip("tritonclient.grpc.aio")

    async def run() -> list[int]:
        async with aio.InferenceServerClient(url) as c:
            assert await c.is_model_ready("one")
            answers = await asyncio.gather(*(c.infer("one", [_input([n] * 4)]) for n in range(20)))

            async def questions() -> Any:
                for n in (3, 2):
                    made = client.InferInput("IN", [1], "INT32")
                    made.set_data_from_numpy(np.array([n], np.int32))
                    yield {"model_name": "stream", "inputs": [made], "request_id": str(n)}

            streamed = [
                (result.get_response().id, int(result.as_numpy("OUT")[0]))
                async for result, error in c.stream_infer(questions())
                if error is None
            ]
            assert [value for name, value in streamed if name == "3"] == [0, 1, 2]
            assert [value for name, value in streamed if name == "2"] == [0, 1]
            return [int(answer.as_numpy("OUT")[0, 0]) for answer in answers]

    assert asyncio.run(run()) == list(range(20))


@pytest.mark.parametrize("identifier", [42, "a-string"])
def test_CL4_sequences_over_one_stream(url: str, identifier: int | str) -> None:
    found: list[Any] = []
    arrived = threading.Semaphore(0)

    def handle_result(result: Any, error: Any) -> None:
        found.append(error or result.get_response().id)
        arrived.release()

    with client.InferenceServerClient(url) as c:
        c.start_stream(handle_result)
        for n in range(3):
            c.async_stream_infer(
                "sequence", [_input()], request_id=f"r{n}", sequence_id=identifier,
                sequence_start=n == 0, sequence_end=n == 2,
            )  # fmt: skip
        for _ in range(3):
            assert arrived.acquire(timeout=TIMEOUT_S)
        c.stop_stream()
    assert found == ["r0", "r1", "r2"]


def test_shared_memory(url: str) -> None:
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    name = f"nbtriton_test_{threading.get_ident()}"
    handle = shm.create_shared_memory_region(name, f"/{name}", 32)
    try:
        shm.set_shared_memory_region(handle, [np.array([1, 2, 3, 4], np.float32)])
        with client.InferenceServerClient(url) as c:
            c.unregister_system_shared_memory()
            c.unregister_cuda_shared_memory()
            c.register_system_shared_memory(name, f"/{name}", 32)
            regions = c.get_system_shared_memory_status().regions
            assert (regions[name].key, regions[name].byte_size) == (f"/{name}", 32)
            with pytest.raises(InferenceServerException, match="already in manager"):
                c.register_system_shared_memory(name, f"/{name}", 32)
            question = client.InferInput("IN", [1, 4], "FP32")
            question.set_shared_memory(name, 16)
            output = client.InferRequestedOutput("OUT")
            output.set_shared_memory(name, 16, offset=16)
            result = c.infer("one", [question], outputs=[output])
            response = result.get_response()
            assert list(response.raw_output_contents) == [b""]
            assert list(response.outputs[0].shape) == [1, 4]
            written = shm.get_contents_as_numpy(handle, np.float32, [4], 16)
            np.testing.assert_array_equal(written, [1, 2, 3, 4])
            output.set_shared_memory(name, 8, offset=16)
            with pytest.raises(InferenceServerException, match="should be at least 16 bytes"):
                c.infer("one", [question], outputs=[output])
            c.unregister_system_shared_memory(name)
            assert not c.get_system_shared_memory_status().regions
            with pytest.raises(InferenceServerException, match="failed to register shared memory"):
                c.register_cuda_shared_memory("cuda", b"x" * 88, 0, 16)
    finally:
        shm.destroy_shared_memory_region(handle)


def test_log_and_trace_settings(url: str) -> None:
    with client.InferenceServerClient(url) as c:
        changed = c.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
        assert changed.settings["log_verbose_level"].uint32_param == 1
        assert c.get_log_settings().settings["log_format"].string_param == "ISO8601"
        assert list(c.get_trace_settings().settings["trace_rate"].value) == ["1000"]
        assert list(
            c.update_trace_settings(settings={"trace_rate": "5"}).settings["trace_rate"].value
        ) == ["5"]
        assert list(
            c.update_trace_settings(settings={"trace_rate": None}).settings["trace_rate"].value
        ) == ["1000"]


# -- streams -----------------------------------------------------------------------------------------


def _streamed(count: int, **rest: Any) -> Any:
    raw = [np.array([count], np.int32).tobytes()]
    return infer("stream", [tensor(datatype="INT32", shape=[1])], raw, **rest)


def _final(answer: Any) -> bool:
    return answer.infer_response.parameters["triton_final_response"].bool_param


def test_GS1_errors_of_requests_do_not_end_the_stream(channel: Any) -> None:
    answers = stream(
        channel, [infer("nope", request_id="a"), infer("one", raw=[b"\0"], request_id="b"),
                  infer("one", request_id="c")],
    )  # fmt: skip
    assert [answer.infer_response.id for answer in answers] == ["a", "b", "c"]
    assert [bool(answer.error_message) for answer in answers] == [True, True, False]


def test_GS3_a_model_that_is_not_decoupled_answers_once(channel: Any) -> None:
    (answer,) = stream(channel, [infer("one")])
    assert _final(answer)
    assert answer.infer_response.raw_output_contents


class Twice:
    """A model that sends two responses, though it is not decoupled."""

    def execute(self, requests: Any) -> Any:
        import triton_python_backend_utils as pb_utils

        for request in requests:
            sender = request.get_response_sender()
            for number in range(2):
                values = np.full((1, 4), number, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))


def test_GS3_what_a_model_sends_after_its_answer_is_dropped(channel: Any, server: Server) -> None:
    server.load(WAITING.replace("waiting", "twice"), Twice)
    try:
        (answer,) = stream(channel, [infer("twice")])
        assert not answer.error_message
        assert answer.infer_response.raw_output_contents[0] == bytes(16)
        assert _final(answer)
        seen = ask(channel, "ModelInfer", infer("twice"))
        assert seen.code == "INTERNAL"
        assert "cannot send more than one response" in seen.details
        (statistics,) = server.statistics("twice")["model_stats"]
        assert statistics["inference_stats"]["fail"]["count"] == 2
    finally:
        server.unload("twice", timeout_s=60)


def test_GS4_the_bare_flag_comes_on_request_only(channel: Any) -> None:
    assert stream(channel, [_streamed(0)]) == []
    wanted = {"triton_enable_empty_final_response": True}
    answers = stream(channel, [_streamed(2, request_id="i", parameters=wanted)])
    assert [_final(answer) for answer in answers] == [False, False, True]
    last = answers[-1].infer_response
    assert (last.id, last.model_name, len(last.outputs)) == ("i", "stream", 0)


def test_a_call_of_a_decoupled_model_is_refused_after_a_stream_too(channel: Any) -> None:
    """What was read on streams is remembered, and read again the same way."""
    for _ in range(2):
        assert len(stream(channel, [_streamed(3)])) == 3
        seen = ask(channel, "ModelInfer", _streamed(3))
        assert seen.code == "UNIMPLEMENTED"
        assert "decoupled transaction policy" in seen.details


def test_GS6_errors_of_models(channel: Any) -> None:
    (failed,) = stream(channel, [infer("failing", request_id="a")])
    assert (failed.error_message, failed.infer_response.id, _final(failed)) == (
        "not today",
        "a",
        True,
    )
    (bad,) = stream(channel, [_streamed(-1, request_id="b")])
    assert (bad.error_message, bad.infer_response.model_name, _final(bad)) == (
        "bad count",
        "stream",
        False,
    )


@pytest.mark.parametrize("kind", ["decoupled", "once"])
def test_a_stream_ends_with_the_status_of_a_model_s_error_if_its_client_wants_so(
    channel: Any, waiting: Any, kind: str
) -> None:
    def requests() -> Iterator[Any]:
        yield infer("waiting")
        assert waiting.running.wait(TIMEOUT_S)
        yield infer("nope")  # an error without a request, as always
        yield _streamed(-1) if kind == "decoupled" else infer("failing")
        assert waiting.cancelled.wait(TIMEOUT_S)

    metadata = (("triton_grpc_error", "true"),)
    answers = open_stream(channel)(requests(), timeout=TIMEOUT_S, metadata=metadata)
    assert "unknown model" in next(answers).error_message
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    said = {"decoupled": "bad count", "once": "not today"}
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, said[kind])
    assert waiting.cancelled.wait(TIMEOUT_S)
    # Another value of the header means nothing.
    other = stream(channel, [infer("failing")], metadata=(("triton_grpc_error", "True"),))
    assert [answer.error_message for answer in other] == ["not today"]


def test_responses_that_are_ready_together_all_arrive(server: Server) -> None:
    """What is held back for the message behind it must not hold back what it needs itself."""
    server.load(TOGETHER, Together)
    # Without these pings, or they would carry along what is held back.
    quiet = (("grpc.http2.bdp_probe", 0),)
    all_here = threading.Event()

    def requests() -> Iterator[Any]:
        yield from (infer("together", request_id=str(n)) for n in range(8))
        all_here.wait(TIMEOUT_S)

    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0, grpc_options=quiet) as opened,
        grpc.insecure_channel(f"127.0.0.1:{opened.grpc_port}") as channel,
    ):
        answers = open_stream(channel)(requests(), timeout=TIMEOUT_S)
        found = [next(answers).infer_response.id for _ in range(8)]
        all_here.set()
        assert found == [*"01234567"]
        assert list(answers) == []
    server.unload("together", timeout_s=60)


def test_GS7_responses_of_one_request_keep_their_order(channel: Any) -> None:
    requests = [_streamed(50, request_id=str(n)) for n in range(8)]
    answers = stream(channel, requests)
    for n in range(8):
        found = [
            int.from_bytes(answer.infer_response.raw_output_contents[0], "little")
            for answer in answers
            if answer.infer_response.id == str(n)
        ]
        assert found == list(range(50))


def test_GS8_a_cancelled_stream_cancels_its_requests(channel: Any, waiting: Any) -> None:
    call = open_stream(channel)
    keep_open = threading.Event()

    def requests() -> Iterator[Any]:
        yield infer("waiting")
        keep_open.wait(TIMEOUT_S)

    answers = call(requests())
    assert waiting.running.wait(TIMEOUT_S)
    answers.cancel()
    keep_open.set()
    assert waiting.cancelled.wait(TIMEOUT_S)


# -- giving up ---------------------------------------------------------------------------------------


def test_GS9_a_cancelled_call_cancels_its_request(channel: Any, waiting: Any) -> None:
    call = open_call(channel)
    future = call.future(infer("waiting"))
    assert waiting.running.wait(TIMEOUT_S)
    future.cancel()
    assert waiting.cancelled.wait(TIMEOUT_S)


def test_a_call_that_is_cancelled_while_it_is_read_is_not_executed(
    server: Server, waiting: Any
) -> None:
    call = Collected("ModelInfer", infer("waiting").SerializeToString())
    call.is_cancelled = True
    inference = GrpcInference(Service(server, NoControl(server)))
    inference.infer(call.data, call)  # type: ignore[arg-type]
    inference.submit()
    assert call.code() == "CANCELLED"


def test_X1_a_deadline_cancels_the_request(channel: Any, waiting: Any) -> None:
    for timeout_s in (0.2, 2, 20):
        seen = ask(channel, "ModelInfer", infer("waiting"), timeout_s=timeout_s)
        assert seen.code == "DEADLINE_EXCEEDED"
        if waiting.running.is_set():
            assert waiting.cancelled.wait(TIMEOUT_S)
            break
    else:  # a busy machine needs more than the short times
        pytest.fail("the model never ran")


def test_a_client_that_goes_away_cancels_its_request(url: str, waiting: Any) -> None:
    with grpc.insecure_channel(url) as leaving:
        call = open_call(leaving)
        future = call.future(infer("waiting"))
        assert waiting.running.wait(TIMEOUT_S)
    assert until(future.done)  # a moment after the channel is closed
    assert waiting.cancelled.wait(TIMEOUT_S)


# -- limits and what clients may not do --------------------------------------------------------------


def test_a_message_that_is_too_large_costs_its_call_only(server: Server) -> None:
    limits = Limits(body_bytes=1 << 16)
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0, limits=limits) as endpoints,
        grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel,
    ):
        assert (
            ask(channel, "ModelInfer", infer("one", raw=[b"\0" * (1 << 17)])).code
            == "RESOURCE_EXHAUSTED"
        )
        assert ask(channel, "ModelInfer", infer("one")).code == "OK"


def test_a_client_that_does_not_read_is_disconnected(server: Server, waiting: Any) -> None:
    limits = Limits(unread_bytes=1 << 20)
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0, limits=limits) as endpoints,
        grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel,
    ):
        call = open_stream(channel)
        large = infer("flexible", [tensor(datatype="INT32", shape=[1 << 18])], [b"\0" * (1 << 20)])

        def requests() -> Iterator[Any]:
            yield infer("waiting")
            assert waiting.running.wait(TIMEOUT_S)  # one that waits is given up without being run
            yield from [large] * 40

        answers = call(requests())
        # Without a single answer read: what still runs for it is given up.
        assert waiting.cancelled.wait(TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as raised:
            list(answers)
        assert raised.value.code() is grpc.StatusCode.CANCELLED
        assert ask(channel, "ModelInfer", infer("one")).code == "OK"


def test_bytes_that_are_no_request(channel: Any) -> None:
    for method in ("ModelInfer", "ModelConfig", "TraceSetting"):
        call = channel.unary_unary(SERVICE + method)
        with pytest.raises(grpc.RpcError) as raised:
            call(b"\xff\xff\xff", timeout=TIMEOUT_S)
        assert raised.value.code() is grpc.StatusCode.INTERNAL
    call = channel.stream_stream(SERVICE + "ModelStreamInfer")
    (answer,) = call(iter([b"\xff\xff\xff"]), timeout=TIMEOUT_S)
    assert pb.ModelStreamInferResponse.FromString(answer).error_message


def test_GS10_unknown_methods(channel: Any) -> None:
    for method in ("/inference.GRPCInferenceService/Nope", "/x.Y/Z"):
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(method)(b"", timeout=TIMEOUT_S)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_GS10_the_health_service(channel: Any, server: Server) -> None:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=TIMEOUT_S) == b"\x08\x01"  # SERVING
    with pytest.raises(grpc.RpcError) as raised:
        check(b"\xff", timeout=TIMEOUT_S)
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert raised.value.details() == "Unable to parse request"


def test_a_restricted_protocol(server: Server) -> None:
    with serve(
        server, http_port=None, metrics_port=None, grpc_port=0,
        grpc_restricted={"inference": ("Key", "secret")},
    ) as endpoints, grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel:  # fmt: skip
        refused = ask(channel, "ModelInfer", infer("one"))
        assert (refused.code, refused.details) == (
            "UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'",
        )  # fmt: skip
        key = [("triton-grpc-protocol-key", "secret")]
        assert ask(channel, "ModelInfer", infer("one"), metadata=key).code == "OK"
        assert ask(channel, "ServerLive", pb.ServerLiveRequest()).code == "OK"
        with pytest.raises(grpc.RpcError) as raised:
            stream(channel, [infer("one")])
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        over = threading.Event()
        silent = open_stream(channel)(iter(over.wait, True), timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as raised:
            next(silent)
        over.set()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE, "before the first message"


def test_headers_become_parameters(server: Server) -> None:
    with (
        serve(
            server,
            http_port=0,
            metrics_port=None,
            grpc_port=0,
            header_forward_pattern="other",
            grpc_header_forward_pattern="my-.*",
        ) as endpoints,
        grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel,
    ):
        request = infer("parameters", [tensor(shape=[1])], [b"\0\0\0\0"])
        fields = [("my-key", "v"), ("other", "w"), ("my-bin", b"x")]
        seen = ask(channel, "ModelInfer", request, metadata=fields)
        assert json.loads(seen.response.raw_output_contents[0][4:]) == {
            "my-key": "v",
            "my-bin": "x",
        }


# -- the end -----------------------------------------------------------------------------------------


def test_a_taken_port_is_an_error_and_leaves_nothing(server: Server) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        before = set(threading.enumerate())
        with pytest.raises(UnavailableError, match="failed to listen"):
            serve(server, http_port=None, metrics_port=None, grpc_port=taken.getsockname()[1])
        assert not set(threading.enumerate()) - before


def test_closing_waits_for_requests_in_flight(server: Server, waiting: Any) -> None:
    endpoints = serve(server, http_port=None, metrics_port=None, grpc_port=0)
    with grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel:
        call = open_call(channel)
        future = call.future(infer("waiting"))
        assert waiting.running.wait(TIMEOUT_S)
        closer = threading.Thread(target=endpoints.close, kwargs={"drain_s": TIMEOUT_S})
        closer.start()
        waiting.leave.set()
        assert future.result(TIMEOUT_S).model_name == "waiting"
        closer.join(TIMEOUT_S)
        assert not closer.is_alive()
    endpoints.close()  # harmless when repeated


def test_closing_ends_streams_after_their_last_response(server: Server, waiting: Any) -> None:
    endpoints = serve(server, http_port=None, metrics_port=None, grpc_port=0)
    never = threading.Event()

    def requests(*messages: Any) -> Iterator[Any]:
        yield from messages
        never.wait(TIMEOUT_S)

    with grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel:
        idle = open_stream(channel)(requests(infer("one")), timeout=TIMEOUT_S)
        assert not next(idle).error_message
        busy = open_stream(channel)(requests(infer("waiting")), timeout=TIMEOUT_S)
        assert waiting.running.wait(TIMEOUT_S)
        closer = threading.Thread(target=endpoints.close, kwargs={"drain_s": 10 * TIMEOUT_S})
        closer.start()
        with pytest.raises(grpc.RpcError) as ended:
            next(idle)
        assert (ended.value.code().name, ended.value.details()) == ("UNAVAILABLE", "Server exiting")
        waiting.leave.set()
        assert next(busy).infer_response.model_name == "waiting"
        with pytest.raises(grpc.RpcError, match="Server exiting"):
            next(busy)
        closer.join(TIMEOUT_S)
        assert not closer.is_alive()
        never.set()


@pytest.mark.medium
def test_closing_without_drain_aborts_requests_in_flight(server: Server, waiting: Any) -> None:
    endpoints = serve(server, http_port=None, metrics_port=None, grpc_port=0)
    with grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel:
        call = open_call(channel)
        future = call.future(infer("waiting"))
        assert waiting.running.wait(TIMEOUT_S)
        endpoints.close()
        with pytest.raises(grpc.RpcError):
            future.result(TIMEOUT_S)
        assert waiting.cancelled.wait(TIMEOUT_S)


@pytest.mark.medium
def test_many_clients_at_once(url: str) -> None:
    failures: list[Any] = []

    def run(n: int) -> None:
        with grpc.insecure_channel(url, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            for k in range(40):
                value = np.full((1, 4), n * 1000 + k, np.float32)
                seen = ask(
                    channel,
                    "ModelInfer",
                    infer("one", raw=[value.tobytes()], request_id=f"{n}-{k}"),
                )
                if seen.code != "OK" or seen.response.raw_output_contents[0] != value.tobytes():
                    failures.append(seen)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
