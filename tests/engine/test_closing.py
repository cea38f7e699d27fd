"""Closing a server: from any thread, with all requests answered and nothing kept."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import gc
import queue
import threading
import warnings
import weakref

import numpy as np
import pytest

from nbtriton.backends.base import Backend, BackendInstance, RequestOptions, Response
from nbtriton.common import entries
from nbtriton.common.errors import EngineStoppedError, LoadError
from nbtriton.runtime.engine import Server, Submission
from tests.children import run_python
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones, row, waited
from tests.until import until

STREAM = echo("model_transaction_policy { decoupled: true }")


def in_initialize(action):
    """A model that does something while it is loaded, and then adds 1."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            action()

        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor(
                            "OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() + 1
                        )
                    ]
                )
                for r in requests
            ]

    return TritonPythonModel


def keeping(senders: queue.SimpleQueue):
    """A model that keeps its response senders."""

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                senders.put(request.get_response_sender())

    return TritonPythonModel


# -- in a model's initialize -------------------------------------------------------------------------


def test_a_model_may_load_another_while_it_is_loaded(server: Server):
    def load() -> None:
        server.load(echo(), lambda IN: {"OUT": IN + 5}, name="inner")

    server.load(echo(), in_initialize(load), name="outer")
    assert server.infer("inner", {"IN": row(1)})["OUT"][0, 0] == 6
    assert server.infer("outer", {"IN": row(1)})["OUT"][0, 0] == 2


def test_a_model_may_unload_another_while_it_is_loaded(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="other")
    server.load(echo(), in_initialize(lambda: server.unload("other", timeout_s=None)), name="m")
    assert server.engine.inspection.model_names() == ("m",)


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_models_that_load_each_other_while_they_are_loaded_are_refused(server: Server, names: str):
    loaded = []

    def load(name: str) -> None:
        loaded.append(name)
        following = names[(names.index(name) + 1) % len(names)]
        server.load(echo(), in_initialize(lambda: load(following)), name=name)

    with pytest.raises(LoadError, match="model 'a' is being loaded, by this very call") as caught:
        load("a")
    assert caught.value.hint.endswith(f": {' -> '.join([names[-1], *names])}")
    assert server.engine.inspection.model_names() == ()
    assert loaded == [*names, "a"]
    server.load(echo(), lambda IN: {"OUT": IN}, name="a")


def test_a_server_may_be_closed_while_a_model_is_loaded(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="other")
    with pytest.raises(EngineStoppedError, match="the server is closed"):
        server.load(echo(), in_initialize(server.close), name="m")
    assert server.engine.inspection.model_names() == ()


def test_an_update_that_came_too_late_is_discarded(server: Server):
    """The model was unloaded while its new instance was made."""
    calls = []

    def unload() -> None:
        calls.append(1)
        if len(calls) > 1:
            server.unload("m")

    model = in_initialize(unload)
    server.load(echo(), model, name="m")
    with pytest.raises(LoadError, match="Newer operation has been applied"):
        server.load(echo("instance_group { count: 2 kind: KIND_CPU }"), model, name="m")
    assert server.engine.inspection.model_names() == ()


# -- every accepted request is answered --------------------------------------------------------------


@pytest.mark.parametrize("config", [STREAM, echo()], ids=["decoupled", "ordinary"])
def test_requests_whose_senders_are_kept_are_answered_by_close(server: Server, config: str):
    senders: queue.SimpleQueue = queue.SimpleQueue()
    responses: list = []
    server.load(config, keeping(senders), name="m")
    options = (
        {"on_response": lambda response, final: responses.append((response.error, final))}
        if config is STREAM
        else {}
    )
    futures = [server.submit("m", {"IN": ones()}, **options) for _ in range(3)]
    kept = [senders.get(timeout=WAIT_S) for _ in futures]
    assert not server.unload("m"), "a model is loaded until its last response"
    server.close(timeout_s=0.05)
    assert len(kept) == len(futures)
    for future in futures:
        error = future.exception(0)
        assert isinstance(error, EngineStoppedError)
        assert "Server is stopping" in error.message
    if config is STREAM:
        assert [(str(error), final) for error, final in responses] == [
            ("Server is stopping", True)
        ] * 3


def test_close_answers_a_request_whose_execution_ends_meanwhile(server: Server, gate: Gate):
    """From those that are executed it moves to those that are answered later."""
    senders: list = []

    class Keeping:
        def execute(self, requests):
            gate.stand([])
            senders.extend(request.get_response_sender() for request in requests)

    class Moving(set):
        def __iter__(self):
            found = [*super().__iter__()]
            gate.open()
            assert until(lambda: not runtime.instances()[0].running)
            return iter(found)

    server.load(echo(), Keeping, name="m")
    runtime = server.engine.registry.resolve("m")
    runtime._in_flight.late = Moving()
    future = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    server.close(timeout_s=0.01)
    assert isinstance(future.exception(0), EngineStoppedError)


def test_a_late_answer_ends_an_unload(server: Server):
    senders: queue.SimpleQueue = queue.SimpleQueue()
    import triton_python_backend_utils as pb_utils

    server.load(echo(), keeping(senders), name="m")
    future = server.submit("m", {"IN": ones()})
    kept = senders.get(timeout=WAIT_S)
    assert not server.unload("m")
    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ones())])
    kept.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    assert future.result(WAIT_S)["OUT"].shape == (1, 4)
    assert until(lambda: not server.engine.lifecycle.unloading()), "nothing of the model is left"


def test_a_request_that_runs_too_long_is_answered_by_close(gate: Gate, server: Server):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    server.close(timeout_s=0.01)
    assert isinstance(future.exception(0), EngineStoppedError)


def test_a_batch_that_was_handed_over_and_has_not_begun_is_answered_by_close(server: Server):
    """The thread of its instance is still busy with what follows from the batch before."""
    held, goes_on = threading.Event(), threading.Event()
    gate = Gate()

    def hold() -> None:
        held.set()
        goes_on.wait(2 * WAIT_S)

    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    first = server.submit("m", {"IN": ones(8)})
    gate.wait_entered()
    pair = [
        Submission("m", -1, {"IN": ones()}, RequestOptions(), lambda *_: None) for _ in range(2)
    ]
    server.engine.dispatcher.submit_many(pair, lambda completion: completion.defer(hold))
    gate.open()
    first.result(WAIT_S)
    waited(held)
    future = server.submit("m", {"IN": ones()})
    try:
        server.close(timeout_s=0.01)
        assert isinstance(future.exception(0), EngineStoppedError)
    finally:
        goes_on.set()


class Echo(BackendInstance):
    def execute(self, requests, timer):
        return [Response({"OUT": request.inputs["IN"]}) for request in requests]


class UnclosableBackend(Backend):
    name = "unclosable"

    def create_instance(self, context):
        return Echo()

    def close(self):
        raise OSError("no such file")


def test_a_backend_that_cannot_be_closed_is_unloaded(server: Server, monkeypatch, caplog):
    monkeypatch.setitem(entries.CORE["backends"], "unclosable", f"{__name__}:UnclosableBackend")
    server.load(echo(backend="unclosable"), object(), name="m")
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3
    assert server.unload("m", timeout_s=WAIT_S)
    assert "no such file" in caplog.text


class HalfBackend(UnclosableBackend):
    name = "half"
    fails = "open"
    closed = 0

    def open(self, context):
        if self.fails == "open":
            raise OSError("no room")

    def close(self):
        type(self).closed += 1


class Refusing:
    """Custom batching that cannot begin."""

    def model_batcher_initialize(self, model):
        raise OSError("no room")

    def model_batch_initialize(self, batcher): ...
    def model_batch_include_request(self, request, batch): ...
    def model_batch_finalize(self, batch): ...
    def model_batcher_finalize(self, batcher): ...


@pytest.mark.parametrize("fails", ["open", "batching"])
def test_a_backend_whose_model_cannot_be_opened_is_closed(server: Server, monkeypatch, fails):
    monkeypatch.setitem(entries.CORE["backends"], "half", f"{__name__}:HalfBackend")
    monkeypatch.setattr(HalfBackend, "fails", fails)
    monkeypatch.setattr(HalfBackend, "closed", 0)
    batching = Refusing() if fails == "batching" else None
    text = echo("dynamic_batching { }", backend="half")
    with pytest.raises(LoadError, match="no room"):
        server.load(text, object(), name="m", batching=batching)
    assert until(lambda: HalfBackend.closed == 1)
    server.close()
    assert HalfBackend.closed == 1


def test_the_end_of_an_ensemble_is_logged_once(server: Server, caplog):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    step = ("m", {"IN": "X"}, {"OUT": "Y"})
    text = ensemble_text(step, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"})
    server.load(text, name="e")
    caplog.set_level("INFO", "nbtriton")
    assert server.unload("e", timeout_s=WAIT_S)
    server.close()
    ends = [text for text in caplog.messages if "unloaded 'e'" in text]
    assert ends == ["successfully unloaded 'e' version 1"]


# -- closed from the inside --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["model", "callback", "infer", "ensemble"])
def test_closing_from_a_model_does_not_wait_for_that_model(where: str):
    """The time limit is longer than the test's: a caller that waited would fail it."""
    server = Server(gpus=())
    closed = threading.Event()
    before = set(threading.enumerate())

    def close(*_) -> None:
        server.close(timeout_s=10 * WAIT_S)
        closed.set()

    def model(IN):
        if where != "callback":
            close()
        return {"OUT": IN}

    server.load(echo(), model, name="m")
    server.load(echo(), lambda IN: {"OUT": IN}, name="other")
    if where == "infer":
        server.infer("m", {"IN": ones()})
    else:
        future = server.submit("m", {"IN": ones()})
        if where == "callback":
            future.add_done_callback(close)
        future.result(WAIT_S)
    waited(closed)

    def left() -> list[str]:
        found = [thread.name for thread in set(threading.enumerate()) - before]
        return [name for name in found if "abandoned" not in name]  # one for the process

    assert until(lambda: not left()), "all threads end by themselves"


def test_an_unload_where_no_thread_can_be_started(server: Server, monkeypatch: pytest.MonkeyPatch):
    ended = threading.Event()

    class Model:
        def execute(self, requests):
            return []

        def finalize(self):
            ended.set()

    server.load(echo(), Model, name="m")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert server.unload("m", timeout_s=WAIT_S)
    assert ended.is_set()


# -- dropped -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_without_references_closes_itself():
    """A cell that binds the same name again and again."""
    before = threading.active_count()
    weights = []

    def load() -> Server:
        server = Server(gpus=())
        kept = np.ones(2_500_000, np.float64)  # 20 MB
        weights.append(weakref.ref(kept))

        class Model:
            def __init__(self):
                self.kept = kept

            def execute(self, requests):
                return []

        server.load(echo(), Model, name="m")
        return server

    server = load()
    for _ in range(8):
        with pytest.warns(ResourceWarning, match=r"dropped without close\(\); its models leave: m"):
            server = load()
    server.close()

    def kept() -> int:
        gc.collect()  # a class is a circle of its own
        return sum(ref() is not None for ref in weights)

    assert until(lambda: not kept()), "all weights are freed"
    assert until(lambda: threading.active_count() <= before), "all threads end"


@pytest.mark.medium
def test_what_a_dropped_server_has_accepted_is_answered(gate: Gate):
    server = Server(gpus=())
    server.load(echo(), gated(gate), name="m")
    futures = [server.submit("m", {"IN": ones()}) for _ in range(3)]
    gate.wait_entered()
    with pytest.warns(ResourceWarning):
        del server
    gate.open()
    for future in futures:
        assert future.result(WAIT_S)["OUT"].shape == (1, 4)


def test_a_dropped_server_keeps_what_a_later_step_binds(gate: Gate):
    """An ensemble that is a step, and that no request has reached yet."""
    server = Server(gpus=())
    server.load(echo(), gated(gate), name="first")
    server.load(echo(), lambda IN: {"OUT": IN + 1}, name="m")
    tensors = {"inputs": {"X": "FP32[4]"}, "outputs": {"Z": "FP32[4]"}}
    server.load(ensemble_text(("m", {"IN": "X"}, {"OUT": "Z"}), **tensors), name="inner")
    steps = [("first", {"IN": "X"}, {"OUT": "Y"}), ("inner", {"X": "Y"}, {"Z": "Z"})]
    server.load(ensemble_text(*steps, **tensors), name="outer")
    inner = server.engine.registry.resolve("inner")
    future = server.submit("outer", {"X": row(3)})
    gate.wait_entered()
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del server
    assert until(lambda: inner._unpublished), "the models leave, one after the other"
    gate.open()
    assert future.result(WAIT_S)["Z"][0, 0] == 4
    assert inner.wait_drained(WAIT_S)


@pytest.mark.medium
def test_a_closed_or_empty_server_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        empty, closed = Server(gpus=()), Server(gpus=())
        closed.load(echo(), lambda IN: {"OUT": IN}, name="m")
        closed.close()
        del empty, closed
        gc.collect()


# -- the interpreter's exit --------------------------------------------------------------------------

PROGRAM = """
import atexit, logging, threading
import nbtriton as nt
from nbtriton.runtime.engine.lifecycle import closing

closing._AT_EXIT_S = 60.0  # as long as it takes
logging.getLogger("asyncio").setLevel("ERROR")  # which in this mode says what took long

class Model:
    def execute(self, requests):
        return []
    def finalize(self):
        print("finalized", self.name)
    def initialize(self, args):
        self.name = args["model_name"]

CONFIG = '''max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
dynamic_batching { max_queue_delay_microseconds: 1000 }'''

shared, own = nt.server(), nt.Server()
shared.load(CONFIG, Model, name="shared")
own.load(CONFIG, Model, name="own")
shared.submit("shared", {"IN": [[1.0] * 4]}).exception()
shared.serve(http_port=0, grpc_port=None, metrics_port=0)

def refuse(*_, **__):
    raise RuntimeError("can't create new thread at interpreter shutdown")

@atexit.register
def forbid():  # as Python does from 3.12 on
    threading.Thread.start = refuse
    print("exit")
"""


@pytest.mark.slow
def test_models_are_finalized_when_the_interpreter_exits():
    ran = run_python("-X", "dev", "-W", "ignore", "-c", PROGRAM)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.split("\n")) == ["", "exit", "finalized own", "finalized shared"]
