"""A decoupled call that its caller cancels: the called model decides."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from tests.engine.support import WAIT_S

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

STREAM = """
input { name: "HONOURS" data_type: TYPE_BOOL dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_transaction_policy { decoupled: true }
"""
CALLER = """
input { name: "HONOURS" data_type: TYPE_BOOL dims: 1 }
output { name: "SEEN" data_type: TYPE_STRING dims: -1 }
"""
cancelled = threading.Event()
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Stream:
    """Sends numbers until it is cancelled, if it honours that, ten at most."""

    def execute(self, requests):
        for request in requests:
            honours = pb_utils.get_input_tensor_by_name(request, "HONOURS").as_numpy()[0]
            sender = request.get_response_sender()
            for number in range(10):
                if honours and request.is_cancelled():
                    error = pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)
                    sender.send(pb_utils.InferenceResponse(error=error))
                    break
                tensor = pb_utils.Tensor("OUT", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
                self.sent(number)
            sender.send(flags=FINAL)

    def sent(self, number):
        """Wait after the third until the caller has cancelled."""
        if number == 2:
            assert cancelled.wait(WAIT_S)


class Caller:
    """Cancels after three responses, and reports what it saw."""

    def consume(self, responses):
        seen = []
        for response in responses:
            if response.has_error():
                seen.append(f"{response.error().code().name}: {response.error().message()}")
            elif response.output_tensors():
                seen.append(str(response.output_tensors()[0].as_numpy()[0]))
            if len(seen) == 3:
                responses.cancel()
                cancelled.set()
        tensor = pb_utils.Tensor("SEEN", np.array([s.encode() for s in seen], np.object_))
        return pb_utils.InferenceResponse([tensor])

    def call(self, request):
        inputs = [pb_utils.get_input_tensor_by_name(request, "HONOURS")]
        return pb_utils.InferenceRequest(
            model_name="stream", inputs=inputs, requested_output_names=["OUT"]
        )

    def execute(self, requests):
        return [self.consume(self.call(request).exec(decoupled=True)) for request in requests]


class AsyncCaller(Caller):
    async def execute(self, requests):
        return [
            self.consume(await self.call(request).async_exec(decoupled=True))
            for request in requests
        ]


@pytest.mark.parametrize("caller", [Caller, AsyncCaller])
@pytest.mark.parametrize(
    ("honours", "expected"),
    [
        (True, ["0", "1", "2", "CANCELLED: stopped"]),
        (False, [str(number) for number in range(10)]),
    ],
)
def test_a_called_model_decides_about_cancellation(server: Server, caller, honours, expected):
    cancelled.clear()
    server.load(STREAM, Stream, name="stream")
    server.load(CALLER, caller, name="caller")
    with pytest.warns(UserWarning, match="2.51 refuses it .*: bls-cancel") as said:
        seen = server.infer("caller", {"HONOURS": np.array([honours])})["SEEN"]
    assert [item.decode() for item in seen] == expected
    assert {one.filename for one in said} == {__file__}
