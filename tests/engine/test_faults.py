"""Failing models and backends under load from many threads: no request is lost."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import random
import threading
from collections import Counter

import numpy as np
import pytest

from nbtriton.backends.base import Backend, BackendInstance, Response
from nbtriton.common import entries
from nbtriton.common.errors import InternalError, TritonError, UnavailableError
from nbtriton.runtime.engine import InferenceFuture, Server
from tests.engine.support import (
    WAIT_S,
    echo,
    ensemble_text,
    failing,
    fields,
    ones,
    row,
)


@pytest.mark.medium
def test_20000_requests_from_8_threads(server: Server):
    """Every request is answered exactly once, with its own answer, and the statistics add up."""
    threads, each = 8, 2500
    server.load(
        echo("dynamic_batching {} instance_group { count: 2 kind: KIND_CPU }"),
        lambda IN: {"OUT": IN * 2},
        name="batched",
    )
    server.load(echo(), lambda IN: {"OUT": IN * 2}, name="single")
    answers: Counter[int] = Counter()
    wrong: list[object] = []
    checked = threading.Semaphore(0)  # a result is ready before its callbacks are called
    rows = [0] * threads

    def ask(worker: int) -> None:
        chance = random.Random(worker)
        mine: list[InferenceFuture] = []
        for index in range(each):
            number = worker * each + index
            size = chance.choice((1, 1, 1, 2, 5))
            rows[worker] += size

            def check(future: InferenceFuture, number=number, size=size) -> None:
                answers[number] += 1
                out = future.result()["OUT"]
                if out.shape != (size, 4) or (out != 2 * number).any():
                    wrong.append((number, out))
                checked.release()

            name = chance.choice(("batched", "batched", "single"))
            future = server.submit(name, {"IN": row(*[float(number)] * size)})
            future.add_done_callback(check)
            mine.append(future)
            if len(mine) == 32:
                mine.pop(0).result(WAIT_S)
        for future in mine:
            future.result(WAIT_S)

    workers = [threading.Thread(target=ask, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(checked.acquire(timeout=WAIT_S) for _ in range(threads * each))
    assert not wrong, wrong[0]
    assert len(answers) == threads * each
    assert set(answers.values()) == {1}
    batched, single = server.models()
    assert batched.success_count + single.success_count == threads * each
    assert batched.inference_count + single.inference_count == sum(rows)
    for model in (batched, single):
        assert model.fail_count == 0
        assert sum(size * n for size, n in model.batch_sizes.items()) == model.inference_count
        assert sum(instance.executions for instance in model.instances) == model.execution_count
    assert single.execution_count == single.success_count
    assert batched.execution_count < batched.success_count


@pytest.mark.medium
def test_statistics_of_20000_mixed_requests_add_up(server: Server):
    """Exceptions, wrong lengths, errors of single requests: each fails alone, and is counted."""
    threads, each = 8, 2500
    server.load(
        echo("instance_group { count: 2 kind: KIND_CPU }", max_batch_size=4), failing(), name="m"
    )
    outcomes: list[Counter[str]] = [Counter() for _ in range(threads)]

    def ask(worker: int) -> None:
        chance = random.Random(worker)
        pending: list[tuple[int, InferenceFuture]] = []

        def settle() -> None:
            how, future = pending.pop(0)
            error = future.exception(WAIT_S)
            if error is None:
                outcomes[worker]["answer"] += 1
                assert future.result()["OUT"][0, 0] == how
            else:
                outcomes[worker]["one" if isinstance(error, UnavailableError) else "all"] += 1
            expected = "one" if how == 6 else "all" if 0 < how < 5 else "answer"
            outcomes[worker][f"expected {expected}"] += 1

        for _ in range(each):
            how = chance.choice((0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7))
            pending.append((how, server.submit("m", {"IN": row(how)})))
            if len(pending) == 16:
                settle()
        while pending:
            settle()

    workers = [threading.Thread(target=ask, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    total = sum(outcomes, Counter())
    for what in ("answer", "one", "all"):
        assert total[what] == total[f"expected {what}"] > 0
    counts = fields(server.statistics(), "m")
    # Y2: an error for one request is a success in Triton's statistics.
    assert counts["success"] == total["answer"] + total["one"]
    assert counts["fail"] == total["all"]
    assert counts["execution_count"] == threads * each
    assert counts["inference_count"] == counts["success"]


@pytest.mark.medium
def test_ensembles_of_failing_models_under_load(server: Server):
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="ok")
    server.load(echo(), failing(), name="bad")
    server.load(
        ensemble_text(
            ("ok", {"IN": "X"}, {"OUT": "a"}),
            ("bad", {"IN": "a"}, {"OUT": "L"}),
            ("ok", {"IN": "a"}, {"OUT": "R"}),
            inputs={"X": "FP32[4]"},
            outputs={"L": "FP32[4]", "R": "FP32[4]"},
        ),
        name="e",
    )
    answers: Counter[int] = Counter()
    answered = threading.Semaphore(0)  # a result is ready before its callbacks are called
    chosen = random.Random(7)
    hows = [chosen.choice((0, 0, 1, 2, 6)) for _ in range(2000)]
    futures = []
    for number, how in enumerate(hows):
        future = server.submit("e", {"X": row(how)})
        future.add_done_callback(lambda _, n=number: (answers.update([n]), answered.release()))
        futures.append(future)
    for how, future in zip(hows, futures, strict=True):
        assert (future.exception(WAIT_S) is None) is (how == 0)
    assert all(answered.acquire(timeout=WAIT_S) for _ in hows)
    assert len(answers) == 2000
    assert set(answers.values()) == {1}
    counts = fields(server.statistics(), "e")
    assert counts["success"] == hows.count(0)
    # T4: a request counts twice where it fails when nothing else of it runs any more.
    failed = 2000 - hows.count(0)
    assert failed <= counts["fail"] <= 2 * failed


# -- backends that break the contract ----------------------------------------------------------------


class _Instance(BackendInstance):
    """Fails a batch in the way of the first value of its first request."""

    def execute(self, requests, timer):
        values = [request.inputs["IN"] for request in requests]
        good = [Response({"OUT": value}) for value in values]
        how = int(values[0].flat[0])
        if how == 1:
            return good[:-1]
        if how == 2:
            return good * 2
        if how == 3:
            raise ZeroDivisionError("in the backend")
        if how == 4:  # answers one itself, and again by returning it
            requests[0].send(good[0], final=True)
        if how == 6:  # no array at all
            return [Response({"OUT": "text"}) for _ in values]
        if how == 5:  # answers, then fails the batch
            requests[0].send(good[0], final=True)
            raise InternalError("after the answer")
        return good


class BrokenBackend(Backend):
    name = "broken"

    @classmethod
    def accepts(cls, source):
        return False

    def create_instance(self, context):
        return _Instance()


@pytest.fixture
def broken(server: Server, monkeypatch) -> Server:
    # As an entry point of an installed package would be found.
    monkeypatch.setitem(entries.CORE["backends"], "broken", f"{__name__}:BrokenBackend")
    server.load(echo(backend="broken"), object(), name="m")
    return server


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (1, "'m_0' gave 0 responses to 1 requests"),
        (2, "'m_0' gave 2 responses to 1 requests"),
        (3, "ZeroDivisionError: in the backend"),
    ],
)
@pytest.mark.parametrize("direct", [True, False], ids=["infer", "submit"])
def test_a_backend_that_breaks_the_contract_fails_its_requests_only(
    broken: Server, how: int, text: str, direct: bool
):
    with pytest.raises(InternalError, match=text):
        if direct:
            broken.infer("m", {"IN": row(how)})
        else:
            broken.submit("m", {"IN": row(how)}).result(WAIT_S)
    assert broken.infer("m", {"IN": row(9)})["OUT"][0, 0] == 9
    counts = fields(broken.statistics(), "m")
    assert (counts["success"], counts["fail"]) == (1, 1)


@pytest.mark.parametrize("how", [4, 5])
def test_a_request_that_is_answered_twice_is_answered_once(broken: Server, how: int):
    answers = []
    future = broken.submit("m", {"IN": row(how)})
    future.add_done_callback(answers.append)
    assert future.result(WAIT_S)["OUT"][0, 0] == how
    assert broken.infer("m", {"IN": row(9)})["OUT"][0, 0] == 9
    assert len(answers) == 1


def test_an_output_that_cannot_be_reshaped_fails_its_request(broken: Server):
    """It was settled who answers: nobody else would."""
    broken.load(
        'backend: "broken" max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }',
        object(),
        name="m",
    )
    for requests in (1, 3):
        sent = [broken.submit("m", {"IN": row(6)}) for _ in range(requests)]
        for future in sent:
            assert isinstance(future.exception(WAIT_S), InternalError)


def test_an_ensemble_survives_an_input_that_no_step_accepts(broken: Server):
    broken.load(
        'backend: "broken" input { name: "IN" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }',
        object(),
        name="plain",
    )
    for first, second in (("m", "plain"), ("plain", "m")):
        broken.load(
            ensemble_text(
                (first, {"IN": "X"}, {"OUT": "a"}),
                (second, {"IN": "a"}, {"OUT": "Y"}),
                inputs={"X": "FP32[4]"},
                outputs={"Y": "FP32[4]"},
            ),
            name="e",
        )
        with pytest.raises(TritonError, match="in ensemble 'e', "):
            broken.infer("e", {"X": row(6)})
        assert broken.infer("e", {"X": row(9)})["Y"][0, 0] == 9
        assert broken.unload("e", timeout_s=WAIT_S)


def test_a_request_that_a_model_forgets_is_answered_with_an_error(server: Server):
    """Triton never answers it; here the caller would wait forever in a cell."""

    class TritonPythonModel:
        def execute(self, requests):
            return [None] * len(requests)

    server.load(echo(), TritonPythonModel, name="m")
    error = server.submit("m", {"IN": ones()}).exception(WAIT_S)
    assert isinstance(error, TritonError)
    with pytest.raises(TritonError):
        server.infer("m", {"IN": ones()})


def test_a_model_that_is_not_decoupled_may_answer_later_from_a_thread(server: Server):
    released = threading.Event()

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            def later(sender, value):
                assert released.wait(WAIT_S)
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)]),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )

            for request in requests:
                arguments = (request.get_response_sender(), request.inputs()[0].as_numpy())
                threading.Thread(target=later, args=arguments).start()
            return [None] * len(requests)

    server.load(echo(), TritonPythonModel, name="m")
    futures = [server.submit("m", {"IN": row(n)}) for n in range(3)]
    released.set()
    assert [float(f.result(WAIT_S)["OUT"][0, 0]) for f in futures] == [1, 2, 3]


def test_a_model_that_leaves_by_sys_exit_keeps_serving(server: Server):
    def model(IN):
        if IN[0, 0] == 1:
            raise SystemExit(3)
        return {"OUT": IN}

    server.load(echo(), model, name="m")
    for send in (
        lambda: server.infer("m", {"IN": row(1)}),
        lambda: server.submit("m", {"IN": row(1)}).result(WAIT_S),
    ):
        with pytest.raises(InternalError, match="SystemExit: 3"):
            send()
    assert server.infer("m", {"IN": row(2)})["OUT"][0, 0] == 2


def test_wrong_shapes_from_a_batching_function_fail_the_batch_alone(server: Server):
    def model(IN):
        return {"OUT": IN[:-1]} if IN[0, 0] == 1 else {"OUT": IN}

    server.load(echo("dynamic_batching {}"), model, name="m")
    with pytest.raises(InternalError, match="expected a first dimension of 2"):
        server.infer("m", {"IN": row(1, 1)})
    np.testing.assert_array_equal(server.infer("m", {"IN": row(5)})["OUT"], row(5))
