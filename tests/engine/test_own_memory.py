"""A model owns its inputs: no other reader sees its writes, and it sees no writes of others."""

# ruff: noqa: N803, N806 - a model function names its tensors
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from tests.engine.sequence_models import PATIENT
from tests.engine.support import Gate, echo, ensemble_text, ones, row

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

torch = pytest.importorskip("torch")


def values(array: Any) -> Any:
    return np.asarray(array).tolist()


def answer(made: Any, name: str = "OUT") -> Any:
    if isinstance(made, np.ndarray):
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, made)])
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(name, made)])


def model(change: Callable[[Any], Any]) -> type:
    """A model.py that answers each request with ``change(tensor)`` of its input."""

    class TritonPythonModel:
        def execute(self, requests):
            return [answer(change(request.inputs()[0])) for request in requests]

    return TritonPythonModel


def module(change: Callable[[Any], Any]) -> torch.nn.Module:
    class Net(torch.nn.Module):
        def forward(self, IN):
            return change(IN)

    return Net()


def load(server: Server, name: str, source: Any, extra: str = "") -> None:
    backend = "pytorch" if isinstance(source, torch.nn.Module) else "python"
    server.load(echo(extra, backend=backend), source, name=name)


def chain(server: Server, *sources: Any) -> None:
    """Load models m0, m1, … and the ensemble `e` that takes IN through all of them to OUT."""
    tensors = ["IN", *(f"T{at}" for at in range(1, len(sources))), "OUT"]
    steps = []
    for at, source in enumerate(sources):
        load(server, f"m{at}", source)
        steps.append((f"m{at}", {"IN": tensors[at]}, {"OUT": tensors[at + 1]}))
    text = ensemble_text(*steps, inputs={"IN": "FP32[4]"}, outputs={"OUT": "FP32[4]"})
    server.load(text, name="e")


# -- writers: OUT is IN - 100, in the memory that they got -------------------------------------------


def numpy_in_place(tensor):
    x = tensor.as_numpy()
    x -= 100
    return x


def capsule_in_place(tensor):
    return torch.utils.dlpack.from_dlpack(tensor.to_dlpack()).sub_(100)


def protocol_in_place(tensor):
    return torch.from_dlpack(tensor).sub_(100)


def numpy_and_torch_in_place(tensor):
    x = tensor.as_numpy()
    torch.from_dlpack(tensor).sub_(60)
    x -= 40  # both look at the same memory
    return x


def function_in_place(IN):
    IN -= 100
    return IN


def torch_function_in_place(IN: torch.Tensor):
    return IN.sub_(100)


WRITERS = {
    "as_numpy": model(numpy_in_place),
    "to_dlpack": model(capsule_in_place),
    "from_dlpack": model(protocol_in_place),
    "both": model(numpy_and_torch_in_place),
    "function": function_in_place,
    "torch function": torch_function_in_place,
    "add_": module(lambda IN: IN.add_(-100)),
    # ReLU(inplace=True) of another threshold.
    "inplace=True": torch.nn.Sequential(torch.nn.Threshold(5, -99, inplace=True)),
}
READERS = {
    "model": model(lambda tensor: tensor.as_numpy() * 1),
    "function": lambda IN: IN * 1,
    "module": module(lambda IN: IN * 1),
}
FIVE = "dynamic_batching { preferred_batch_size: 5 max_queue_delay_microseconds: 60000000 }"
CALLERS = {"numpy": ones, "torch": lambda: torch.ones(1, 4)}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("before", [None, "function", "module"])
@pytest.mark.parametrize("writer", WRITERS)
def test_neither_a_sibling_step_nor_the_caller_sees_a_write(
    server: Server, writer: str, before: str | None, caller: str
):
    load(server, "writer", WRITERS[writer])
    steps = [("writer", {"IN": "IN" if before is None else "T"}, {"OUT": "A"})]
    outputs = {"A": "FP32[4]"}
    if before is not None:
        load(server, "before", READERS[before])
        steps.insert(0, ("before", {"IN": "IN"}, {"OUT": "T"}))
        outputs["T"] = "FP32[4]"
    for name, reader in READERS.items():
        load(server, name, reader)
        steps.append((name, steps[-1][1], {"OUT": f"B_{name}"}))
        outputs[f"B_{name}"] = "FP32[4]"
    server.load(ensemble_text(*steps, inputs={"IN": "FP32[4]"}, outputs=outputs), name="fan")
    mine = CALLERS[caller]()
    for ask in (server.infer, lambda *call: server.submit(*call).result()):
        found = ask("fan", {"IN": mine})
        for name in outputs:
            assert values(found[name]) == [[-99 if name == "A" else 1] * 4], name
            found[name][:] = 55  # it is the caller's, and so are the others, each for itself
        assert values(mine) == [[1] * 4]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_requests_in_one_batch_see_no_writes_of_each_other(
    server: Server, writer: str, caller: str
):
    load(server, "m", WRITERS[writer], FIVE)
    mine = CALLERS[caller]()
    futures = [server.submit("m", {"IN": mine}) for _ in range(5)]
    for future in futures:
        out = future.result()["OUT"]
        assert values(out) == [[-99] * 4]
        out[:] = 55
    assert values(mine) == [[1] * 4]


# -- what a model keeps ------------------------------------------------------------------------------


class Keeping:
    """Answers with its own table, and shows that of the model behind it."""

    def initialize(self, args):
        self.table = np.ones((1, 4), np.float32)
        self.tensor = pb_utils.Tensor("OUT", self.table)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.tensor]) for _ in requests]


class KeepingTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 4))
        self.last = None

    def forward(self, IN):
        if self.last is None:
            self.last = IN * 0 + self.weight
            return self.weight
        return self.last


KEPT = np.ones((1, 4), np.float32)
KEEPERS = {"model": Keeping, "module": KeepingTorch, "function": lambda IN: KEPT}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("writer", [None, *WRITERS])
@pytest.mark.parametrize("keeper", KEEPERS)
def test_an_array_that_a_model_keeps_and_sends_again_is_unchanged(
    server: Server, keeper: str, writer: str | None, caller: str
):
    source = KEEPERS[keeper]
    chain(
        server, source() if keeper == "module" else source, *([WRITERS[writer]] if writer else [])
    )
    for _ in range(3):
        out = server.infer("e", {"IN": CALLERS[caller]()})["OUT"]
        assert values(out) == [[-99 if writer else 1] * 4]
        out[:] = 55
    assert values(KEPT) == [[1] * 4]


@pytest.mark.parametrize("ask", ["infer", "submit"])
@pytest.mark.parametrize("caller", CALLERS)
def test_inputs_that_a_model_keeps_are_its_own(server: Server, caller: str, ask: str):
    class Remembering:
        def initialize(self, args):
            self.kept = None

        def execute(self, requests):
            last = self.kept
            tensor = requests[0].inputs()[0]
            self.kept = slice(tensor.as_numpy(), tensor)
            if last is None:
                return [answer(tensor.as_numpy())]
            return [answer(np.where(last.start == last.stop.as_numpy(), last.start, -1))]

    load(server, "m", Remembering)
    mine = CALLERS[caller]()
    mine[:] = 3
    out = server.infer("m", {"IN": mine})["OUT"]
    out[:] = 8
    mine[:] = 9
    found = server.infer("m", {"IN": mine}) if ask == "infer" else server.submit("m", {"IN": mine})
    found = found if ask == "infer" else found.result()
    assert values(found["OUT"]) == [[3] * 4]


def test_a_method_that_sorts_in_place_works(server: Server):
    def partition(tensor):
        x = tensor.as_numpy()
        x.partition(1, axis=1)
        return x

    load(server, "m", model(partition))
    mine = np.array([[4, 3, 2, 1]], np.float32)
    assert server.infer("m", {"IN": mine})["OUT"][0, :2].tolist() == [1, 2]
    assert mine.tolist() == [[4, 3, 2, 1]]


@pytest.mark.parametrize("name", ["OUT", "IN"])
def test_one_array_as_two_outputs_is_two_arrays(server: Server, name: str):
    class Twice:
        def execute(self, requests):
            found = []
            for request in requests:
                tensor = request.inputs()[0]
                same = pb_utils.Tensor("B", tensor.as_numpy())
                found.append(
                    pb_utils.InferenceResponse([pb_utils.Tensor("A", tensor.as_numpy()), same])
                )
            return found

    config = """
    backend: "python" max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: 4 }
    output [ { name: "A" data_type: TYPE_FP32 dims: 4 }, { name: "B" data_type: TYPE_FP32 dims: 4 } ]
    """
    sources = {"OUT": Twice, "IN": lambda IN: (IN, IN)}
    server.load(config, sources[name], name="m")
    found = server.infer("m", {"IN": ones()})
    found["A"][:] = 7
    assert found["B"].tolist() == [[1] * 4]


def test_one_response_for_two_requests_is_two(server: Server):
    class Same:
        def execute(self, requests):
            return [answer(np.ones((1, 4), np.float32))] * len(requests)

    load(server, "m", Same, FIVE)
    first, second, *_ = [server.submit("m", {"IN": ones()}) for _ in range(5)]
    first.result()["OUT"][:] = 7
    assert second.result()["OUT"].tolist() == [[1] * 4]


# -- callers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["model", "ensemble"])
@pytest.mark.parametrize("caller", CALLERS)
def test_a_buffer_may_be_filled_again_as_soon_as_submit_returned(
    server: Server, gate: Gate, caller: str, through: str
):
    chain(server, lambda IN: [gate.stand([""]), IN + 1][1])
    name = {"model": "m0", "ensemble": "e"}[through]
    mine = CALLERS[caller]()
    futures = []
    for at in range(4):
        mine[:] = at
        futures.append(server.submit(name, {"IN": mine}))
    gate.open()
    assert [values(future.result()["OUT"]) for future in futures] == [
        [[at + 1] * 4] for at in range(4)
    ]


def test_a_constant_array_comes_back_writable(server: Server):
    load(server, "m", model(numpy_in_place))
    mine = ones()
    mine.flags.writeable = False
    out = server.infer("m", {"IN": mine})["OUT"]
    out[:] = 8
    assert mine.tolist() == [[1] * 4]


def test_strings_are_the_models_own(server: Server):
    class Shouting:
        def execute(self, requests):
            found = []
            for request in requests:
                text = request.inputs()[0].as_numpy()
                text[:] = [[item.upper() for item in line] for line in text]
                found.append(answer(text))
            return found

    strings = echo().replace("TYPE_FP32", "TYPE_STRING")
    server.load(strings, Shouting, name="m")
    server.load(strings, lambda IN: IN, name="r")
    steps = (("m", {"IN": "IN"}, {"OUT": "A"}), ("r", {"IN": "IN"}, {"OUT": "B"}))
    outputs = {"A": "STRING[4]", "B": "STRING[4]"}
    server.load(ensemble_text(*steps, inputs={"IN": "STRING[4]"}, outputs=outputs), name="e")
    mine = np.array([[b"a", b"b", b"c", b"d"]], dtype=object)
    found = server.infer("e", {"IN": mine})
    assert found["A"].tolist() == [[b"A", b"B", b"C", b"D"]]
    found["B"][:] = b"-"
    assert mine.tolist() == [[b"a", b"b", b"c", b"d"]]


# -- one tensor for several --------------------------------------------------------------------------


def test_one_tensor_as_two_inputs_of_a_step_is_two(server: Server):
    def both(A, B):
        A += 1
        return {"OUT": A + 10 * B}

    config = """
    max_batch_size: 8 backend: "python"
    input [ { name: "A" data_type: TYPE_FP32 dims: 4 }, { name: "B" data_type: TYPE_FP32 dims: 4 } ]
    output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
    """
    load(server, "before", lambda IN: IN * 1)
    server.load(config, both, name="both")
    steps = (("before", {"IN": "X"}, {"OUT": "T"}), ("both", {"A": "T", "B": "T"}, {"OUT": "Y"}))
    server.load(ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}), name="e")
    assert server.infer("e", {"X": ones()})["Y"].tolist() == [[12] * 4]


def test_a_tensor_with_one_reader_is_not_copied(server: Server):
    both = (
        echo()
        .replace('"IN"', '"A"')
        .replace("output", 'input { name: "B" data_type: TYPE_FP32 dims: 4 } output')
    )
    server.load(both, lambda A, B: A + B, name="both")
    load(server, "one", lambda IN: IN)
    steps = (
        ("one", {"IN": "X"}, {"OUT": "T"}),
        ("one", {"IN": "T"}, {"OUT": "U"}),
        ("both", {"A": "U", "B": "T"}, {"OUT": "Y"}),
        ("both", {"A": "V", "B": "V"}, {"OUT": "Z"}),
    )
    inputs, outputs = {"X": "FP32[4]", "V": "FP32[4]"}, {"Y": "FP32[4]", "Z": "FP32[4]"}
    server.load(ensemble_text(*steps, inputs=inputs, outputs=outputs), name="e")
    ensemble = server.engine.registry.resolve("e")
    binding = ensemble._bind()
    binding.release()
    # X is the caller's until it was copied; T and V have two readers.
    assert binding.owned == (set(), set(), {"A"}, set())
    assert binding.owned_of_all == ({"IN"}, set(), {"A"}, set())


class Counting:
    """Decoupled: three responses, all of one buffer."""

    def execute(self, requests):
        buffer = np.zeros((1, 4), np.float32)
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(3):
                buffer += 1
                sender.send(answer(buffer))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def counting(IN):
    buffer = np.zeros((1, 4), np.float32)
    for _ in range(3):
        buffer += 1
        yield buffer


DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.mark.parametrize("source", [Counting, counting])
def test_responses_of_a_decoupled_model_are_each_their_own(server: Server, source: Any):
    load(server, "m", source, DECOUPLED)
    found = [values(response["OUT"]) for response in server.stream("m", {"IN": ones()})]
    assert found == [[[n] * 4] for n in (1, 2, 3)]


# -- calls from model to model -----------------------------------------------------------------------


def calling(target: str, run: Callable[[Any], Any]) -> type:
    class TritonPythonModel:
        def execute(self, requests):
            found = []
            for request in requests:
                x = request.inputs()[0].as_numpy()
                call = pb_utils.InferenceRequest(
                    model_name=target,
                    requested_output_names=["OUT"],
                    inputs=[pb_utils.Tensor("IN", x)],
                )
                y = pb_utils.get_output_tensor_by_name(run(call), "OUT").as_numpy()
                y += 1000  # its own, from any source
                found.append(answer(x * 10 + y))
            return found

    return TritonPythonModel


RUNS = {
    "exec": lambda call: call.exec(),
    "decoupled": lambda call: next(iter(call.exec(decoupled=True))),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("writer", ["as_numpy", "function", "add_"])
def test_a_called_model_writes_in_memory_of_its_own(server: Server, writer: str, run: str):
    load(server, "writer", WRITERS[writer])
    load(server, "m", calling("writer", RUNS[run]))
    for _ in range(2):
        assert values(server.infer("m", {"IN": ones()})["OUT"]) == [[911] * 4]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("keeper", KEEPERS)
def test_the_answer_of_a_called_model_is_the_callers(server: Server, keeper: str, run: str):
    source = KEEPERS[keeper]
    load(server, "keeper", source() if keeper == "module" else source)
    load(server, "m", calling("keeper", RUNS[run]))
    for _ in range(3):
        assert values(server.infer("m", {"IN": ones()})["OUT"]) == [[1011] * 4]


def test_an_awaited_call_reads_its_inputs_at_once(server: Server):
    class TritonPythonModel:
        async def execute(self, requests):
            found = []
            for request in requests:
                x = request.inputs()[0].as_numpy()
                calls = []
                for at in range(3):
                    x[:] = at
                    call = pb_utils.InferenceRequest(
                        model_name="slow",
                        requested_output_names=["OUT"],
                        inputs=[pb_utils.Tensor("IN", x)],
                    )
                    calls.append(call.async_exec())
                outs = [(await call).output_tensors()[0].as_numpy() for call in calls]
                found.append(answer(outs[0] + 10 * outs[1] + 100 * outs[2]))
            return found

    load(server, "slow", lambda IN: IN + 1)
    load(server, "m", TritonPythonModel)
    assert server.infer("m", {"IN": ones()})["OUT"].tolist() == [[321] * 4]


# -- what the engine keeps ---------------------------------------------------------------------------


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("writer", [None, "function", "add_"])
def test_outputs_from_the_cache_are_the_receivers_own(writer: str | None, caller: str):
    with Server(gpus=(), cache_bytes=1 << 20) as server:
        cached = "response_cache { enable: true }"
        load(server, "m0", lambda IN: IN * 2, cached)
        steps = [("m0", {"IN": "IN"}, {"OUT": "T" if writer else "OUT"})]
        if writer:
            load(server, "m1", WRITERS[writer])
            steps.append(("m1", {"IN": "T"}, {"OUT": "OUT"}))
        text = ensemble_text(*steps, inputs={"IN": "FP32[4]"}, outputs={"OUT": "FP32[4]"})
        server.load(text, name="e")
        for _ in range(3):
            out = server.infer("e", {"IN": CALLERS[caller]()})["OUT"]
            assert values(out) == [[-98 if writer else 2] * 4]
            out[:] = 55
        assert server.engine.lifecycle.builder.cache.statistics().hits == 2


def test_warmup_data_are_the_same_each_time(server: Server):
    class Checking:
        def execute(self, requests):
            for request in requests:
                x = request.inputs()[0].as_numpy()
                if x.any():
                    raise ValueError("these are not the zeros of the sample")
                x += 1
            return [answer(x) for _ in requests]

    load(server, "m", Checking, """
        model_warmup { name: "zeros" batch_size: 3 count: 2 inputs {
            key: "IN" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }""")  # fmt: skip
    assert server.is_ready("m")


STATE = f"""
sequence_batching {{ {PATIENT} direct {{ }} state {{
    input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 4
    initial_state {{ name: "i" data_type: TYPE_FP32 dims: 4 zero_data: true }} }} }}
"""


def test_an_implicit_state_is_not_what_the_model_writes_to(server: Server):
    class Summing:
        def initialize(self, args):
            self.buffer = np.zeros((1, 4), np.float32)

        def execute(self, requests):
            found = []
            for request in requests:
                x, s = (
                    pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in ("IN", "S")
                )
                self.buffer[:] = s + x
                s += 1000  # thrown away
                tensors = [pb_utils.Tensor("OUT", self.buffer), pb_utils.Tensor("T", self.buffer)]
                found.append(pb_utils.InferenceResponse(tensors))
                x += 1000
            return found

    load(server, "m", Summing, STATE)
    mine = ones()
    sums = {}
    for start in (True, False, False):
        for sequence in (1, 2):
            out = server.infer(
                "m", {"IN": mine * sequence}, sequence_id=sequence, sequence_start=start
            )["OUT"]
            sums.setdefault(sequence, []).append(float(out[0, 0]))
            out[:] = 55
    assert sums == {1: [1, 2, 3], 2: [2, 4, 6]}
    assert mine.tolist() == [[1] * 4]


@pytest.mark.parametrize("ask", ["infer", "submit"])
def test_a_request_that_runs_again_has_its_inputs_as_they_came(server: Server, ask: str):
    class Again:
        def execute(self, requests):
            found = []
            for request in requests:
                x = request.inputs()[0].as_numpy()
                self.seen = [*getattr(self, "seen", []), float(x[0, 0])]
                x += 1
                if len(self.seen) < 3:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    found.append(None)
                else:
                    found.append(answer(np.array([[*self.seen, 0]], np.float32)))
            return found

    load(server, "m", Again, "sequence_batching { iterative_sequence: true }")
    options = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    if ask == "infer":
        found = server.infer("m", {"IN": ones()}, **options)
    else:
        found = server.submit("m", {"IN": ones()}, **options).result()
    assert found["OUT"].tolist() == [[1, 1, 1, 0]]


@pytest.mark.parametrize("size", [1, 5])
def test_ragged_inputs_are_the_models_own(server: Server, size: int):
    config = """
    backend: "python" max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
    batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32 source_input: "IN" }
    output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
    """
    server.load(config + (FIVE if size == 5 else ""), ragged, name="m")
    mine = row(1, width=3)
    futures = [server.submit("m", {"IN": mine}) for _ in range(size)]
    assert [values(future.result()["OUT"]) for future in futures] == [[[3]]] * size
    if size == 1:
        assert values(server.infer("m", {"IN": mine})["OUT"]) == [[3]]
    assert mine.tolist() == [[1] * 3]


def ragged(IN, N):
    sums = [part.sum() for part in np.split(IN, np.cumsum(N.reshape(-1).astype(int))[:-1])]
    IN += 100
    return {"OUT": np.array(sums, np.float32).reshape(-1, 1)}


class Looking:
    """A batching strategy that tries to write."""

    refused: list[str] = []

    @staticmethod
    def model_batcher_initialize(model):
        return None

    @staticmethod
    def model_batcher_finalize(batcher):
        pass

    @staticmethod
    def model_batch_initialize(batcher):
        return {}

    @staticmethod
    def model_batch_include_request(request, batch):
        try:
            request.inputs["IN"][:] = 9
        except ValueError as error:
            Looking.refused.append(str(error))
        return True

    @staticmethod
    def model_batch_finalize(batch):
        pass


@pytest.mark.parametrize("ask", ["infer", "submit"])
def test_a_batching_strategy_only_looks(server: Server, ask: str):
    server.load(echo("dynamic_batching { }"), model(numpy_in_place), name="m", batching=Looking)
    mine = ones()
    found = (
        server.infer("m", {"IN": mine})
        if ask == "infer"
        else server.submit("m", {"IN": mine}).result()
    )
    assert found["OUT"].tolist() == [[-99] * 4]
    assert mine.tolist() == [[1] * 4]
    assert all("read-only" in text for text in Looking.refused)


def test_an_example_batch_stays_what_it_is(server: Server):
    mine = torch.ones(1, 4)
    server.load({"name": "m", "max_batch_size": 8}, module(lambda IN: IN.add_(-100)), example=mine)
    assert mine.tolist() == [[1] * 4]


@pytest.mark.gpu
@pytest.mark.parametrize("writer", ["to_dlpack", "from_dlpack", "torch function", "add_"])
def test_on_a_gpu_a_write_is_seen_by_no_other_reader(writer: str):
    place = "instance_group { kind: KIND_GPU }"
    force = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
    backend = "pytorch" if isinstance(WRITERS[writer], torch.nn.Module) else "python"
    extra = place + (force if backend == "python" else "")
    with Server() as server:
        server.load(echo(extra, backend=backend), WRITERS[writer], name="writer")
        server.load(echo(place, backend="pytorch"), READERS["module"], name="reader")
        steps = (("writer", {"IN": "IN"}, {"OUT": "A"}), ("reader", {"IN": "IN"}, {"OUT": "B"}))
        outputs = {"A": "FP32[4]", "B": "FP32[4]"}
        text = ensemble_text(*steps, inputs={"IN": "FP32[4]"}, outputs=outputs)
        server.load(text, name="fan")
        mine = torch.ones(1, 4, device="cuda")
        for ask in (server.infer, lambda *call: server.submit(*call).result()):
            found = ask("fan", {"IN": mine})
            assert [found[name].tolist() for name in "AB"] == [[[-99] * 4], [[1] * 4]]
            assert mine.tolist() == [[1] * 4]
