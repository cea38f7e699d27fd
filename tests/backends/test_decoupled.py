"""Decoupled models: any number of responses, from any thread (Y4, PB30, PB32 to PB34, PB36, PB37)."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading

import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import InternalError, ModelError
from tests.backends.fakes import DEFAULT, Request, Timer, ones

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

DECOUPLED = DEFAULT + "model_transaction_policy { decoupled: true }"
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def respond(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ones(1, value))])


def sent(request):
    return [
        (
            None if r is None else r.error.message if r.error else float(r.outputs["OUT"][0, 0]),
            final,
        )
        for r, final in request.sent
    ]


def model(execute):
    return type("TritonPythonModel", (), {"execute": lambda self, requests: execute(requests)})


def test_PB30_any_number_of_responses_and_a_bare_final(make, run):
    def execute(requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in range(3):
                sender.send(respond(value))
            sender.send(flags=FINAL)

    requests = [Request({"IN": ones()}) for _ in range(2)]
    assert run(make(model(execute), DECOUPLED), *requests) is None
    assert [sent(r) for r in requests] == [[(0, False), (1, False), (2, False), (None, True)]] * 2


def test_PB30_a_returned_list_is_an_error_before_the_final_flag(make, run):
    with pytest.raises(ModelError) as caught:
        run(make(model(lambda r: [respond(1)]), DECOUPLED), ones())
    assert caught.value.message == (
        "Failed to process the request(s) for model 'm_0_0', message: Python model 'm_0_0' is "
        "using the decoupled mode and the execute function must return None."
    )


def test_PB30_a_returned_list_is_ignored_after_it(make, run):
    def execute(requests):
        requests[0].get_response_sender().send(respond(1), FINAL)
        return [respond(2)]

    request = Request({"IN": ones()})
    run(make(model(execute), DECOUPLED), request)
    assert sent(request) == [(1, True)]


def test_Y4_nothing_may_follow_the_final_flag(make, run):
    def execute(requests):
        sender = requests[0].get_response_sender()
        sender.send(flags=FINAL)
        with pytest.raises(
            pb_utils.TritonModelException,
            match=r"Unable to send response\. Response sender has been closed\.",
        ):
            sender.send(respond(1))

    run(make(model(execute), DECOUPLED), ones())


def test_PB32_another_thread_answers_after_execute_returned(make, run):
    go = threading.Event()
    threads = []

    def execute(requests):
        def later(request):
            assert go.wait(60)
            # As vLLM's backend does: the sender is fetched when the answer is ready.
            sender = request.get_response_sender()
            sender.send(respond(1))
            sender.send(respond(2), FINAL)

        thread = threading.Thread(target=later, args=(requests[0],))
        threads.append(thread)
        thread.start()

    request = Request({"IN": ones()})
    run(make(model(execute), DECOUPLED), request)
    assert request.sent == []
    go.set()
    threads[0].join()
    assert sent(request) == [(1, False), (2, True)]


def test_PB33_an_exception_ends_requests_without_a_final_flag(make, run):
    def execute(requests):
        requests[0].get_response_sender().send(respond(1), FINAL)
        raise ValueError("kaboom")

    # The engine fails the unanswered requests of a batch that raises.
    with pytest.raises(ModelError, match="ValueError: kaboom"):
        run(make(model(execute), DECOUPLED), Request({"IN": ones()}), Request({"IN": ones()}))


def test_PB33_after_the_last_final_flag_it_is_only_logged(make, run, caplog):
    def execute(requests):
        requests[0].get_response_sender().send(respond(1), FINAL)
        raise ValueError("kaboom")

    request = Request({"IN": ones()})
    run(make(model(execute), DECOUPLED), request)
    assert sent(request) == [(1, True)]
    assert "ValueError: kaboom" in caplog.text


def test_PB34_an_error_response_does_not_end_the_request(make, run):
    def execute(requests):
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("one")))
        sender.send(respond(2))
        sender.send(flags=FINAL)

    request = Request({"IN": ones()})
    run(make(model(execute), DECOUPLED), request)
    assert sent(request) == [("one", False), (2, False), (None, True)]


def test_PB32_threads_that_ask_at_the_same_moment_get_one_sender(make, run):
    # Of two, the one that is released would answer the request with an error.
    count = 8
    interval = sys.getswitchinterval()

    def execute(requests):
        for request in requests:
            ready = threading.Barrier(count)
            found = []

            def ask(request=request, ready=ready, found=found):
                ready.wait(60)
                found.append(request.get_response_sender())

            threads = [threading.Thread(target=ask) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(set(found)) == 1
            found[0].send(respond(1), FINAL)

    sys.setswitchinterval(1e-6)
    try:
        requests = [Request({"IN": ones()}) for _ in range(50)]
        run(make(model(execute), DECOUPLED), *requests)
    finally:
        sys.setswitchinterval(interval)
    assert [sent(request) for request in requests] == [[(1, True)]] * len(requests)


def test_PB36_coroutines_of_one_instance_interleave(make):
    class TritonPythonModel:
        async def execute(self, requests):
            sender = requests[0].get_response_sender()
            if requests[0].request_id() == "first":
                self.event = asyncio.Event()
                await self.event.wait()
                sender.send(respond(1), FINAL)
            else:
                sender.send(respond(2), FINAL)
                self.event.set()

    instance = make(TritonPythonModel, DECOUPLED)
    first, second = Request({"IN": ones()}, request_id="first"), Request({"IN": ones()})
    assert instance.execute([first], Timer()) is None
    assert instance.execute([second], Timer()) is None
    assert first.answered.wait(60)
    assert sent(second) == [(2, True)]
    assert sent(first) == [(1, True)]


def test_PB36_a_coroutine_that_raises_answers_its_open_requests(make, run):
    class TritonPythonModel:
        async def execute(self, requests):
            requests[0].get_response_sender().send(respond(1), FINAL)
            await asyncio.sleep(0)
            raise ValueError("kaboom")

    done, open_ = Request({"IN": ones()}), Request({"IN": ones()})
    run(make(TritonPythonModel, DECOUPLED), done, open_)
    assert open_.answered.wait(60)
    assert sent(done) == [(1, True)]
    ((answer, _),) = open_.sent
    assert isinstance(answer.error, ModelError)
    assert "ValueError: kaboom" in answer.error.message


def test_unloading_answers_requests_that_a_coroutine_holds(make, run):
    started = threading.Event()

    class TritonPythonModel:
        async def execute(self, requests):
            started.set()
            await asyncio.Event().wait()

    instance = make(TritonPythonModel, DECOUPLED)
    request = Request({"IN": ones()})
    run(instance, request)
    assert started.wait(60)
    instance.finalize()
    assert request.answered.wait(60)


def test_PB37_a_sender_sees_the_cancellation(make, run):
    seen = []

    def execute(requests):
        sender = requests[0].get_response_sender()
        seen.append(sender.is_cancelled())
        requests[0]._backend_request.cancelled = True
        seen.append((sender.is_cancelled(), requests[0].is_cancelled()))
        sender.send(flags=FINAL)

    run(make(model(execute), DECOUPLED), ones())
    assert seen == [False, (True, True)]


@pytest.mark.medium
@pytest.mark.parametrize("take_sender", [True, False])
def test_an_abandoned_request_is_answered_with_an_error(make, run, take_sender):
    def execute(requests):
        if take_sender:
            requests[0].get_response_sender().send(respond(1))

    request = Request({"IN": ones()})
    run(make(model(execute), DECOUPLED), request)
    gc.collect()
    assert request.answered.wait(60)
    assert isinstance(request.sent[-1][0].error, InternalError)
    assert request.sent[-1][1]
