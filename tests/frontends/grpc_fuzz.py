"""Mutated messages over gRPC: a response each, and never an internal error of ours.

    python -m tests.frontends.grpc_fuzz                       a million inputs
    python -m tests.frontends.grpc_fuzz --inputs 20000 --seed 7

Valid messages are changed field by field and byte by byte. Most go to what reads and answers them
without a socket between; one in twenty goes to the endpoint itself, on calls and on streams.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from nbtriton.common.errors import TritonError
from nbtriton.extensions.grpc.endpoint import grpc_methods
from nbtriton.extensions.grpc.inference import GrpcInference, InferStream
from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import Limits, serve
from nbtriton.serving.frontends.service import NoControl, Service
from tests.frontends.fuzzing import Tally, main, scratched
from tests.frontends.grpc_cases import CASES
from tests.frontends.grpc_support import SERVICE, infer, tensor

__all__ = ["Collected", "fuzz_endpoint", "fuzz_handlers", "mutated"]

TIMEOUT_S = 60
TOGETHER = 500
_INFER, _STREAM = "ModelInfer", "ModelStreamInfer"
# What Triton, gRPC or a model calls INTERNAL; anything else would be ours.
THEIR_INTERNAL = (
    "Unable to parse request",
    "the request is no ",
    "not today",
    "Failed to process the request(s) for model 'all_bf16_0'",  # which NumPy does not have
    "Unable to open shared memory region: ",
    "failed to register shared memory region: ",
    "the call carries no message, or one too large",
)
_TEXTS = (
    "", "x", "IN", "OUT", "one", "INPUT0", "FP32", "BYTES", "BF16", "FP16", "INT8", "1", "-1", "0",
    "99999999999999999999", "é\0", "a" * 300, "shared_memory_region", "classification",
    "triton_enable_empty_final_response", "triton_x", "sequence_id", "sequence_start", "priority",
    "timeout",
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 4, 127, 255, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63))
_FLOATS = (0.0, -0.0, 1.5, float("nan"), float("inf"), 1e308, -1e-320)
_CPP = FieldDescriptor
_BITS = {_CPP.CPPTYPE_INT32: 31, _CPP.CPPTYPE_UINT32: 32, _CPP.CPPTYPE_INT64: 63, _CPP.CPPTYPE_UINT64: 64}  # fmt: skip


# -- what is sent ------------------------------------------------------------------------------------


def seeds() -> list[tuple[str, Message]]:
    """Return methods and messages to start from: every case of the error table, and good ones."""
    good = [(case.method, case.request) for case in CASES if case.code == "OK"]
    good += [
        (_INFER, infer("stream", [tensor(datatype="INT32", shape=[1])], [bytes([n, 0, 0, 0])]))
        for n in range(4)
    ]
    good.append((_INFER, infer("one", request_id="7", outputs={"OUT": {}})))
    bad = [
        (case.method, case.request)
        for case in CASES
        if case.code != "OK" and isinstance(case.request, Message)
    ]
    return bad + good * (2 * len(bad) // len(good))


def mutated(message: Message, dice: random.Random) -> bytes:
    """Return a message somewhat like a valid one."""
    made = type(message)()
    made.CopyFrom(message)
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        _change(made, dice)
    data = made.SerializeToString()
    kind = dice.random()
    if kind < 0.2:
        data = scratched(data, dice, dice.randint(1, 4), 3)
    elif kind < 0.22:
        data = data[: dice.randint(0, len(data))]
    elif kind < 0.24:
        data += message.SerializeToString()
    elif kind < 0.25:
        data = dice.randbytes(dice.randint(0, 60))
    return data


def _change(message: Message, dice: random.Random) -> None:
    """Change one place of a message."""
    if not message.DESCRIPTOR.fields:
        return
    described = dice.choice(message.DESCRIPTOR.fields)
    name = described.name
    value = getattr(message, name)
    if described.cpp_type == _CPP.CPPTYPE_MESSAGE:
        if described.message_type.GetOptions().map_entry:
            key = dice.choice([*value, dice.choice(_TEXTS)])
            if described.message_type.fields_by_name["value"].cpp_type == _CPP.CPPTYPE_MESSAGE:
                _change(value[key], dice)
        elif not described.is_repeated:
            _change(value, dice)
        elif not value or dice.random() < 0.1:
            _change(value.add(), dice)
        elif dice.random() < 0.2:
            del value[dice.randrange(len(value))]
        elif dice.random() < 0.2:
            value.add().CopyFrom(dice.choice(value))
        else:
            _change(dice.choice(value), dice)
    elif not described.is_repeated:
        setattr(message, name, _odd(described.cpp_type, described.type, dice))
    elif value and dice.random() < 0.3:
        del value[dice.randrange(len(value))]
    elif value and dice.random() < 0.5:
        value[dice.randrange(len(value))] = _odd(described.cpp_type, described.type, dice)
    else:
        odd = _odd(described.cpp_type, described.type, dice)
        value.extend([odd] * dice.choice((1, 1, 2, 70)))


def _odd(cpp_type: int, kind: int, dice: random.Random) -> Any:
    if cpp_type in _BITS:
        signed = cpp_type in (_CPP.CPPTYPE_INT32, _CPP.CPPTYPE_INT64)
        top = 1 << _BITS[cpp_type]
        number = dice.choice(_NUMBERS)
        return (number + top) % (2 * top) - top if signed else number % top
    if cpp_type == _CPP.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if cpp_type in (_CPP.CPPTYPE_FLOAT, _CPP.CPPTYPE_DOUBLE):
        return dice.choice(_FLOATS)
    if kind == _CPP.TYPE_BYTES:
        return dice.randbytes(dice.choice((0, 1, 3, 4, 8, 16, 16, 17, 64)))
    return dice.choice(_TEXTS)


# -- the handlers ------------------------------------------------------------------------------------


class Collected:
    """A call whose answers are kept, where a client would be."""

    metadata: Sequence[tuple[str, Any]] = ()
    is_cancelled = False
    since_ns = 0

    def __init__(self, method: str, data: bytes) -> None:
        self.method = method
        self.data = data
        self.on_cancel: Callable[[], object] | None = None
        self.answers: list[TritonError | None] = []
        self.answered = threading.Event()

    def reply(self, message: bytes) -> None:
        self.answers.append(None)
        self.answered.set()

    def fail(self, error: TritonError) -> None:
        self.answers.append(error)
        self.answered.set()

    def code(self) -> str:
        """Wait for the answer, and return its code; an error of ours is a failure."""
        assert self.answered.wait(TIMEOUT_S), ("no answer", self.method, self.data)
        assert len(self.answers) == 1, ("several answers", self.method, self.data)
        (error,) = self.answers
        if error is None:
            return "OK"
        ours = error.status == "INTERNAL" and not error.message.startswith(THEIR_INTERNAL)
        assert not ours, (error.message, self.method, self.data)
        return error.status


class CollectedStream:
    """A stream whose messages are counted."""

    metadata: Sequence[tuple[str, Any]] = ()
    is_cancelled = False

    def __init__(self) -> None:
        self.sent = self.done_count = 0
        self.ends: list[Any] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def send(self, message: bytes, on_sent: Any = None) -> None:
        with self._lock:
            self.sent += 1

    def message_done(self) -> None:
        with self._lock:
            self.done_count += 1

    def finish(self, *how: Any) -> None:
        self.ends.append(how)
        self.ended.set()


def fuzz_handlers(server: Server, count: int, dice: random.Random, tally: Tally) -> None:
    """Send inputs to what reads and answers them."""
    service = Service(server, NoControl(server), limits=Limits(body_bytes=1 << 20))
    inference = GrpcInference(service)
    methods = {name.decode().rpartition("/")[2]: m for name, m in grpc_methods(service).items()}
    start = seeds()
    requests = [message for method, message in start if method == _INFER]
    try:
        while count > 0:
            batch = min(TOGETHER, count)
            count -= batch
            calls, codes = [], []
            for _ in range(batch - batch // 5):
                method, message = dice.choice(start)
                call = Collected(method, mutated(message, dice))
                if method == _INFER:
                    inference.infer(call.data, call)  # type: ignore[arg-type]
                else:
                    _call(methods[method].answer, call)
                calls.append(call)
            stream = CollectedStream()
            taker = InferStream(inference, stream)  # type: ignore[arg-type]
            streamed = [mutated(dice.choice(requests), dice) for _ in range(batch // 5)]
            for data in streamed:
                taker.on_message(data)
            taker.on_half_close()
            inference.submit()
            codes = [call.code() for call in calls]
            assert stream.ended.wait(TIMEOUT_S), ("a stream does not end", streamed)
            assert stream.ends == [()], ("a stream ended otherwise", streamed)
            assert stream.done_count == len(streamed), ("requests of a stream are left", streamed)
            tally.count([*codes, *["streamed"] * len(streamed)])
    finally:
        service.shared_memory.close()
        service.log.close()  # a changed log setting outlives the test else


def _call(method: Callable[[bytes], bytes], call: Collected) -> None:
    try:
        call.reply(method(call.data))
    except TritonError as error:
        call.fail(error)


# -- the endpoint ------------------------------------------------------------------------------------


def fuzz_endpoint(server: Server, count: int, dice: random.Random, tally: Tally) -> None:
    """Send inputs to the port, with gRPC's own client."""
    start = seeds()
    requests = [message for method, message in start if method == _INFER]
    with (
        serve(server, http_port=None, metrics_port=None, grpc_port=0) as endpoints,
        grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel,
    ):
        while count > 0:
            batch = min(TOGETHER, count)
            count -= batch
            calls = []
            for _ in range(batch // 2):
                method, message = dice.choice(start)
                data = mutated(message, dice)
                call = channel.unary_unary(SERVICE + method)
                calls.append((method, data, call.future(data, timeout=TIMEOUT_S)))
            streamed = [mutated(dice.choice(requests), dice) for _ in range(batch - batch // 2)]
            answers = channel.stream_stream(SERVICE + _STREAM)(iter(streamed), timeout=TIMEOUT_S)
            sum(1 for _ in answers)
            tally.count([_code_of(*call) for call in calls] + ["streamed"] * len(streamed))
        live = channel.unary_unary(SERVICE + "ServerLive")
        assert live(b"", timeout=TIMEOUT_S) == b"\x08\x01"


def _code_of(method: str, data: bytes, future: Any) -> str:
    error = future.exception(TIMEOUT_S)
    if error is None:
        return "OK"
    code = error.code().name
    ours = code in ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED")
    assert not ours or error.details().startswith(THEIR_INTERNAL), (error.details(), method, data)
    return str(code)


if __name__ == "__main__":
    sys.exit(main((__doc__ or "").splitlines()[0], fuzz_handlers, fuzz_endpoint))
