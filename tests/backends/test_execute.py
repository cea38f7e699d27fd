"""The contract of ``execute`` in default mode (Y2)."""

from __future__ import annotations

import asyncio
import gc
import re
import threading

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import InternalError, ModelError, UnavailableError
from tests.backends.fakes import DEFAULT, Request, Timer, ones

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

PREFIX = "Failed to process the request(s) for model 'm_0_0', message: "


def respond(array, name="OUT"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])


def returning(make_result):
    """A model whose execute returns ``make_result(requests)``."""

    class TritonPythonModel:
        def execute(self, requests):
            return make_result(requests)

    return TritonPythonModel


def outputs(responses):
    return [{k: v.tolist() for k, v in r.outputs.items()} for r in responses]


def test_Y2_one_response_a_request_in_order(make, run):
    class TritonPythonModel:
        def execute(self, requests):
            return [
                respond(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * 2) for r in requests
            ]

    found = run(make(TritonPythonModel), ones(1, 1), ones(2, 3))
    assert outputs(found) == [{"OUT": [[2] * 4]}, {"OUT": [[6] * 4] * 2}]


def test_the_first_output_of_a_name_counts(make, run):
    def execute(requests):
        two = [pb_utils.Tensor("OUT", np.full((1, 4), value, np.float32)) for value in (1, 2)]
        return [pb_utils.InferenceResponse(two) for _ in requests]

    assert outputs(run(make(returning(execute)), ones(1, 1))) == [{"OUT": [[1] * 4]}]


def test_the_timer_is_marked_just_around_execute(make):
    timer = Timer()

    def execute(requests):
        timer.marks.append("execute")
        return [respond(ones())]

    make(returning(execute)).execute([Request({"IN": ones()})], timer)
    assert timer.marks == ["inputs_ready", "execute", "infer_done"]


def test_Y2_Y3_an_exception_is_reported_as_triton_does_and_points_at_the_line(make, run):
    def execute(requests):
        raise ValueError("kaboom")

    with pytest.raises(ModelError) as caught:
        run(make(returning(execute)), ones())
    line = execute.__code__.co_firstlineno
    assert caught.value.message == (
        f"{PREFIX}ValueError: kaboom\n\nAt:\n"
        f"  {__file__}({line + 1}): execute\n"
        f"  {__file__}({returning.__code__.co_firstlineno + 5}): execute\n"
    )
    shown = caught.value.user_traceback
    assert 'raise ValueError("kaboom")' in shown
    assert "nbtriton" not in shown.replace(__file__, "")
    assert caught.value.status == "INTERNAL"


def test_Y2_an_exception_inside_of_pb_utils_has_no_frames_of_ours(make, run):
    """In compiled code, too, whose frames name their files otherwise."""

    def execute(requests):
        return [pb_utils.InferenceResponse(error="text") for _ in requests]

    with pytest.raises(ModelError) as caught:
        run(make(returning(execute)), ones())
    for text in (caught.value.message, caught.value.user_traceback):
        assert "values.py" not in text
        assert __file__ in text


def test_a_cell_of_a_notebook_shows_its_own_line(make, run):
    import linecache

    name = "/tmp/ipykernel_1/123.py"
    text = "class TritonPythonModel:\n    def execute(self, requests):\n        return 1 / 0\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    cell = {}
    exec(compile(text, name, "exec"), cell)
    with pytest.raises(ModelError) as caught:
        run(make(cell["TritonPythonModel"]), ones())
    assert caught.value.message.endswith(
        f"ZeroDivisionError: division by zero\n\nAt:\n  {name}(3): execute\n"
    )
    assert "return 1 / 0" in caught.value.user_traceback


def test_PB45_TritonModelException_is_reported_by_its_name(make, run):
    def execute(requests):
        raise pb_utils.TritonModelException("tmx")

    with pytest.raises(ModelError, match=re.escape(PREFIX + "TritonModelException: tmx\n\nAt:")):
        run(make(returning(execute)), ones())


def test_PB8_sys_exit_is_an_error_and_the_model_stays(make, run):
    class TritonPythonModel:
        def execute(self, requests):
            if requests[0].request_id() == "exit":
                raise SystemExit(3)
            return [respond(ones())]

    instance = make(TritonPythonModel)
    with pytest.raises(ModelError, match=re.escape(PREFIX + "SystemExit: 3")):
        run(instance, Request({"IN": ones()}, request_id="exit"))
    assert outputs(run(instance, ones())) == [{"OUT": [[1] * 4]}]


def test_an_interrupt_passes_untouched(make, run):
    def execute(requests):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make(returning(execute)), ones())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            lambda r: [respond(ones())] * 2,
            (
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                "objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n"
            ),
        ),
        (
            lambda r: [],
            (
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                "objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
            ),
        ),
        (
            lambda r: (respond(ones()),),
            "Expected a list in the execute return, found type '<class 'tuple'>'.",
        ),
        (lambda r: 3, "Expected a list in the execute return, found type '<class 'int'>'."),
        (
            lambda r: ["x"],
            (
                "Expected an 'InferenceResponse' object in the execute function return list, found "
                "type '<class 'str'>'."
            ),
        ),
    ],
)
def test_Y2_a_wrong_return_value_fails_the_batch(make, run, result, message):
    with pytest.raises(ModelError) as caught:
        run(make(returning(result)), ones())
    assert caught.value.message == PREFIX + message


def test_PB5_a_missing_execute_is_a_run_time_error(make, run, model_file):
    path = model_file("class TritonPythonModel:\n    pass\n")
    with pytest.raises(ModelError) as caught:
        run(make(path), ones())
    assert caught.value.message == (
        f"{PREFIX}Python model {path} does not implement `execute` method."
    )


def test_Y2_a_TritonError_fails_its_request_alone_and_drops_its_tensors(make, run):
    def execute(requests):
        error = pb_utils.TritonError("busy", pb_utils.TritonError.UNAVAILABLE)
        return [
            respond(ones()),
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ones())], error),
            pb_utils.InferenceResponse(error=pb_utils.TritonError("plain")),
        ]

    good, busy, plain = run(make(returning(execute)), ones(), ones(), ones())
    assert good.error is None
    assert type(busy.error) is UnavailableError
    assert busy.error.message == "busy"
    assert busy.outputs == {}
    assert type(plain.error) is InternalError


def test_Y2_only_requested_outputs_are_answered(make, run):
    def execute(requests):
        tensors = [pb_utils.Tensor(n, ones()) for n in ("OUT", "OTHER", "EXTRA")]
        return [pb_utils.InferenceResponse(tensors) for _ in requests]

    found = run(
        make(returning(execute)),
        Request({"IN": ones()}, frozenset({"OUT", "OTHER"})),
        Request({"IN": ones()}, frozenset({"OTHER"})),
    )
    assert [set(r.outputs) for r in found] == [{"OUT", "OTHER"}, {"OTHER"}]


@pytest.mark.parametrize(
    "array",
    [np.zeros((1, 4)), np.zeros(7, np.float32), np.zeros((2, 2), np.int8), np.float32([[1, 2]]).T],
)
def test_Y2_dtype_and_shape_pass_unchecked(make, run, array):
    (found,) = run(make(returning(lambda r: [respond(array)])), ones())
    assert found.outputs["OUT"].dtype == array.dtype
    assert found.outputs["OUT"].tolist() == array.tolist()


def test_Y2_missing_outputs_pass(make, run):
    (found,) = run(make(returning(lambda r: [pb_utils.InferenceResponse()])), ones())
    assert found.outputs == {}
    assert found.error is None


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(["a", 3, b"x"], dtype=object), [b"a", b"3", b"x"]),
        (np.array([b"abc", b"d"]), [b"abc", b"d"]),
    ],
)
def test_text_leaves_as_bytes(make, run, array, expected):
    (found,) = run(make(returning(lambda r: [respond(array)])), ones())
    assert found.outputs["OUT"].dtype == object
    assert found.outputs["OUT"].tolist() == expected


def test_response_parameters_reach_the_client(make, run):
    def execute(requests):
        return [pb_utils.InferenceResponse([], parameters={"a": 1, "b": "x", "c": True})]

    (found,) = run(make(returning(execute)), ones())
    assert found.parameters == {"a": 1, "b": "x", "c": True}


def test_a_buffer_that_the_model_keeps_is_copied(make, run):
    class TritonPythonModel:
        def initialize(self, args):
            self.buffer = np.zeros((8, 4), np.float32)

        def execute(self, requests):
            self.buffer += 1
            return [respond(self.buffer[:1]), respond(self.buffer)]

    instance = make(TritonPythonModel)
    first = run(instance, ones(), ones())
    run(instance, ones(), ones())
    assert [float(r.outputs["OUT"][0, 0]) for r in first] == [1, 1]


def test_an_input_that_is_returned_is_copied(make, run):
    def execute(requests):
        return [respond(requests[0].inputs()[0].as_numpy())]

    given = ones()
    (found,) = run(make(returning(execute)), given)
    given[:] = 5
    assert found.outputs["OUT"].tolist() == [[1] * 4]


def test_a_read_only_input_is_a_writable_copy_in_the_model(make, run):
    def execute(requests):
        array = requests[0].inputs()[0].as_numpy()
        array += 1
        return [respond(array.copy())]

    given = ones()
    given.flags.writeable = False
    (found,) = run(make(returning(execute)), given)
    assert found.outputs["OUT"].tolist() == [[2] * 4]
    assert given.tolist() == [[1] * 4]


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("function", [True, False])
def test_an_input_that_only_the_request_has_is_not_copied(make, run, owned, function):
    seen = []

    def execute(requests):
        seen.append(requests[0].inputs()[0].as_numpy())
        return [respond(seen[0])]

    def same(IN):  # noqa: N803 - it names its tensor
        seen.append(IN)
        return IN

    request = Request({"IN": ones()}, owned_inputs=frozenset({"IN"} if owned else ()))
    run(make(same if function else returning(execute)), request)
    assert np.shares_memory(seen[0], request.inputs["IN"]) is owned


def test_PB43_Y9_a_received_request_has_the_values_of_the_client(make, run):
    seen = []

    def execute(requests):
        (r,) = requests
        seen.append(
            (
                r.request_id(),
                r.correlation_id(),
                r.flags(),
                r.timeout(),
                r.parameters(),
                r.requested_output_names(),
                r.is_cancelled(),
                [t.name() for t in r.inputs()],
                r.trace().get_context(),
                isinstance(r, pb_utils.InferenceRequest),
            )
        )
        r.set_flags(3)
        seen.append(r.flags())
        return [respond(ones())]

    run(
        make(returning(execute)),
        Request(
            {"IN": ones()},
            request_id="7",
            correlation_id="seq",
            flags=1,
            timeout_us=250,
            parameters={"k": "v", "n": 1, "b": True},
            cancelled=True,
        ),
    )
    assert seen == [
        ("7", "seq", 1, 250, '{"k":"v","n":1,"b":true}', {"OUT"}, True, ["IN"], None, True),
        3,
    ]


def test_a_coroutine_is_awaited(make, run):
    class TritonPythonModel:
        async def execute(self, requests):
            async def one(request):
                await asyncio.sleep(0)
                return respond(request.inputs()[0].as_numpy() + 1)

            return list(await asyncio.gather(*map(one, requests)))

    instance = make(TritonPythonModel)
    for _ in range(2):
        assert outputs(run(instance, ones(), ones(1, 2))) == [
            {"OUT": [[2] * 4]},
            {"OUT": [[3] * 4]},
        ]


@pytest.mark.parametrize("error", [ValueError("kaboom"), SystemExit(3)])
def test_a_coroutine_that_raises_fails_its_batch_alone(make, run, error):
    class TritonPythonModel:
        async def execute(self, requests):
            await asyncio.sleep(0)
            if requests[0].request_id():
                raise error
            return [respond(ones())]

    instance = make(TritonPythonModel)
    with pytest.raises(ModelError) as caught:
        run(instance, Request({"IN": ones()}, request_id="x"))
    assert caught.value.message.startswith(f"{PREFIX}{type(error).__name__}: {error}\n\nAt:\n  ")
    assert caught.value.message.endswith(": execute\n")
    assert "asyncio" not in caught.value.user_traceback
    run(instance, ones())


def test_a_task_that_exits_fails_its_batch_alone(make, run):
    class TritonPythonModel:
        async def execute(self, requests):
            async def leave():
                if requests[0].request_id():
                    raise SystemExit(3)

            await asyncio.gather(leave())
            return [respond(ones())]

    instance = make(TritonPythonModel)
    with pytest.raises(ModelError, match=r"message: SystemExit: 3\n"):
        run(instance, Request({"IN": ones()}, request_id="x"))
    run(instance, ones())


def test_a_model_may_run_an_event_loop_although_the_kernel_runs_one(make, run):
    def execute(requests):
        async def answer():
            return respond(ones())

        return [asyncio.run(answer())]

    instance = make(returning(execute))

    async def kernel():
        found = run(instance, ones())
        await asyncio.sleep(0)  # the kernel's own loop goes on
        return found

    assert outputs(asyncio.run(kernel())) == [{"OUT": [[1] * 4]}]


# -- response senders in default mode ---------------------------------------------------------------


def test_a_sender_answers_and_the_returned_list_is_ignored(make, run):
    def execute(requests):
        sender = requests[0].get_response_sender()
        sender.send(respond(ones(1, 5)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return "ignored"

    request = Request({"IN": ones()})
    assert run(make(returning(execute)), request) == [None]
    (answer, final), last = request.sent
    assert answer.outputs["OUT"].tolist() == [[5] * 4]
    assert (final, last) == (False, (None, True))


def test_a_sender_may_answer_after_execute_returned(make, run):
    senders = []

    def execute(requests):
        senders.extend(r.get_response_sender() for r in requests)

    request = Request({"IN": ones()})
    assert run(make(returning(execute)), request) == [None]
    assert not request.is_answered()
    senders.pop().send(respond(ones()), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    ((answer, final),) = request.sent
    assert final
    assert answer.error is None


@pytest.mark.medium
def test_a_response_without_a_final_flag_is_the_whole_answer(make, run):
    def execute(requests):
        requests[0].get_response_sender().send(respond(ones()))

    request = Request({"IN": ones()})
    run(make(returning(execute)), request)
    gc.collect()
    assert request.answered.wait(60)
    assert request.sent[0][0].error is None
    assert request.sent[1:] == [(None, True)]


@pytest.mark.medium
@pytest.mark.parametrize("result", [None, [None]])
def test_a_request_without_any_sender_gets_an_error(make, run, result):
    # Triton's client waits forever; here every request is answered.
    request = Request({"IN": ones()})
    assert run(make(returning(lambda r: result)), request) == [None]
    gc.collect()
    assert request.answered.wait(60)
    ((answer, _),) = request.sent
    assert type(answer.error) is InternalError
    assert "without sending a final response" in answer.error.message
    assert (
        "Triton 2.51 would never answer (docs/differences.md: unanswered-requests)"
        in answer.error.hint
    )


def test_a_response_and_another_one_returned_are_too_many(make, run):
    def execute(requests):
        requests[0].get_response_sender().send(respond(ones()))
        return [respond(ones())]

    with pytest.raises(ModelError, match="cannot send more than one response"):
        run(make(returning(execute)), ones())


def test_a_return_value_after_the_final_flag_is_ignored(make, run):
    def execute(requests):
        for request in requests[1:]:
            request.get_response_sender().send(
                respond(ones()), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
        return [respond(ones() * 5) for _ in requests]

    first, second = Request({"IN": ones()}), Request({"IN": ones()})
    returned, sent = run(make(returning(execute)), first, second)
    assert returned.outputs["OUT"].tolist() == [[5] * 4]
    assert sent is None
    ((answer, final),) = second.sent
    assert (answer.outputs["OUT"].tolist(), final) == ([[1] * 4], True)


@pytest.mark.medium
def test_a_sender_that_was_not_used_does_not_disturb_the_returned_response(make, run):
    def execute(requests):
        requests[0].get_response_sender()
        return [respond(ones())]

    request = Request({"IN": ones()})
    (found,) = run(make(returning(execute)), request)
    assert found.outputs["OUT"].shape == (1, 4)
    gc.collect()
    # The thread that answers abandoned requests works in order: after this one, nothing is left.
    other = Request({"IN": ones()})
    run(make(returning(lambda r: None)), other)
    assert other.answered.wait(60)
    assert request.sent == []


@pytest.mark.parametrize(
    ("sends", "message"),
    [
        (
            [(True, 0), (True, 0)],
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        (
            [(False, 1)],
            (
                "Unable to send response. Non-decoupled model cannot send complete final before "
                "sending a response."
            ),
        ),
        ([(True, 2)], "Unable to send response. Unsupported flag provided."),
        (
            [(False, 0)],
            "Inference Response object must be provided when the response flags is set to zero.",
        ),
        (
            [(True, 1), (False, 1)],
            "Unable to send response. Response sender has been closed.",
        ),
    ],
)
def test_Y4_a_sender_refuses_as_triton_does(make, run, sends, message):
    seen = []

    def execute(requests):
        sender = requests[0].get_response_sender()
        *before, (with_response, flags) = sends
        for has, flag in before:
            sender.send(respond(ones()) if has else None, flag)
        with pytest.raises(pb_utils.TritonModelException) as caught:
            sender.send(respond(ones()) if with_response else None, flags)
        seen.append(str(caught.value))

    run(make(returning(execute)), ones())
    assert seen == [message]


def test_instances_in_threads_know_themselves(make, run):
    """Each execution sees its own instance, while others execute at the same time."""
    barrier = threading.Barrier(4)
    found = {}

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]

        def execute(self, requests):
            barrier.wait(60)
            with pytest.raises(pb_utils.TritonModelException) as caught:
                pb_utils.load_model("nope")
            found[self.name] = str(caught.value)
            barrier.wait(60)
            return [respond(ones())]

    from tests.backends.fakes import Server

    instances = {
        name: make(TritonPythonModel, DEFAULT, server=Server({}), instance=name)
        for name in ("m_0_0", "m_0_1", "m_0_2", "m_0_3")
    }
    threads = [threading.Thread(target=run, args=(i, ones())) for i in instances.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {
        name: f"Failed to load model: Failed to process the request for model '{name}', message: "
        "failed to load 'nope', failed to poll from model repository"
        for name in instances
    }


class SpeechlessError(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AssertionError(), "AssertionError: <EMPTY MESSAGE>"),
        (KeyError(), "KeyError: <EMPTY MESSAGE>"),
        (SpeechlessError(), "SpeechlessError: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"),
    ],
)
def test_an_exception_without_words_is_called_as_pybind11_calls_it(make, run, error, text):
    def execute(requests):
        raise error

    with pytest.raises(ModelError) as caught:
        run(make(returning(execute)), ones(1, 1))
    assert caught.value.message.startswith(f"{PREFIX}{text}\n\nAt:\n")
