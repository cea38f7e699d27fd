"""Callables as models: generators, controls and states, estimators, pipelines."""

# ruff: noqa: N803, F821 - tensors have Triton's names, and annotations say tensors

import functools
import re
import threading

import numpy as np
import pytest

from nbtriton.common.errors import ConfigError, ModelError, TritonError
from nbtriton.runtime.engine import Server
from tests.engine.support import WAIT_S


@pytest.fixture(scope="module")
def server():
    with Server(gpus=()) as running:
        yield running


def row(*values):
    return np.array([values], np.float32)


def test_a_function_on_a_gpu_that_torch_has_not_gets_numpy_arrays():
    def double(IN: "FP32[2]") -> {"OUT": "FP32[2]"}:
        assert type(IN) is np.ndarray
        return IN * 2

    with Server(gpus=(64,)) as server:
        server.load(
            "max_batch_size: 4 instance_group { kind: KIND_GPU gpus: 64 }", double, name="double"
        )
        assert server.infer("double", {"IN": row(1, 2)})["OUT"].tolist() == [[2, 4]]


# -- generators -------------------------------------------------------------------------------------


def count_down(N: "INT32[1]") -> {"LEFT": "INT32[1]"}:
    for left in range(N.item(), 0, -1):
        yield {"LEFT": np.array([[left]], np.int32)}


@pytest.mark.parametrize("policy", ["", "model_transaction_policy { decoupled: true }"])
def test_values_of_a_generator_are_responses(server, policy):
    server.load(f"max_batch_size: 4 {policy}", count_down, name="count_down")
    assert server.config("count_down").model_transaction_policy.decoupled
    found = [
        r["LEFT"].item() for r in server.stream("count_down", {"N": np.array([[3]], np.int32)})
    ]
    assert found == [3, 2, 1]
    assert list(server.stream("count_down", {"N": np.array([[0]], np.int32)})) == []


def test_a_generator_of_a_model_that_is_not_decoupled_is_refused(server):
    with pytest.raises(ConfigError, match="yields, the configuration of 'refused' says") as caught:
        server.load("model_transaction_policy { decoupled: false }", count_down, name="refused")
    assert "decoupled: true" in caught.value.hint


def test_an_exception_between_responses_ends_the_stream(server):
    def breaks(N: "INT32[1]") -> {"OUT": "INT32[1]"}:
        yield N
        raise ValueError("enough")

    server.load("max_batch_size: 4", breaks, name="breaks")
    stream = server.stream("breaks", {"N": np.array([[3]], np.int32)})
    assert next(stream)["OUT"].item() == 3
    with pytest.raises(ModelError, match="ValueError: enough"):
        next(stream)


def test_a_wrong_value_between_responses_ends_the_stream(server):
    def wrong(N: "INT32[1]") -> {"OUT": "INT32[1]"}:
        yield {"OUTT": N}

    server.load("max_batch_size: 4", wrong, name="wrong")
    with pytest.raises(TritonError, match="returned the output 'OUTT'"):
        list(server.stream("wrong", {"N": np.array([[3]], np.int32)}))


def test_a_plain_function_of_a_decoupled_model_answers_once(server):
    def once(N: "INT32[1]") -> {"OUT": "INT32[1]"}:
        return N + 1

    server.load("max_batch_size: 4 model_transaction_policy { decoupled: true }", once, name="once")
    found = list(server.stream("once", {"N": np.array([[3]], np.int32)}))
    assert [response["OUT"].item() for response in found] == [4]


def test_a_generator_of_a_cancelled_request_runs_its_finally(server):
    closed = threading.Event()

    def endless(N: "INT32[1]") -> {"OUT": "INT32[1]"}:
        try:
            while True:
                yield N
        finally:
            closed.set()

    server.load("max_batch_size: 4", endless, name="endless")
    stream = server.stream("endless", {"N": np.array([[3]], np.int32)})
    next(stream)
    stream.close()
    assert closed.wait(WAIT_S)


def test_a_coroutine_function_is_refused_with_the_way_out(server):
    async def later(N: "INT32[1]") -> {"OUT": "INT32[1]"}:
        return N

    with pytest.raises(TritonError, match="'later' is a coroutine function"):
        server.load("", later, name="refused")


# -- sequences --------------------------------------------------------------------------------------

SUM = """
max_batch_size: 4
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  state {
    input_name: "TOTAL" output_name: "NEW" data_type: TYPE_FP32 dims: 1
    initial_state { name: "zero" data_type: TYPE_FP32 dims: 1 zero_data: true }
  }
}
"""


def play(server, name, values):
    last = len(values) - 1
    return [
        server.infer(
            name,
            {"IN": row(value)},
            sequence_id=9,
            sequence_start=index == 0,
            sequence_end=index == last,
        )
        for index, value in enumerate(values)
    ]


def total(IN: "FP32[1]", START, TOTAL) -> {"OUT": "FP32[1]"}:
    new = IN + TOTAL
    return {"OUT": new + 100 * START, "NEW": new}


def annotated(
    IN: "FP32[1]", START: "INT32[1]", TOTAL: "FP32[1]"
) -> {
    "OUT": "FP32[1]",
    "NEW": "FP32[1]",
}:
    return total(IN, START, TOTAL)


@pytest.mark.parametrize("function", [total, annotated])
def test_controls_and_states_are_parameters_and_results(server, function):
    server.load(SUM, function, name="total")
    assert [tensor.name for tensor in server.config("total").input] == ["IN"]
    found = play(server, "total", [1, 2, 3])
    assert [result["OUT"].item() for result in found] == [101, 3, 6]
    assert {*found[0]} == {"OUT"}


def test_a_control_without_a_parameter_is_refused_by_name(server):
    def lacks(IN: "FP32[1]", TOTAL) -> {"OUT": "FP32[1]"}:
        return IN

    with pytest.raises(ConfigError, match="'lacks' has no parameter for input 'START'"):
        server.load(SUM, lacks, name="refused")


def test_an_annotation_that_contradicts_a_control_is_refused(server):
    def other(IN: "FP32[1]", START: "FP32[1]", TOTAL) -> {"OUT": "FP32[1]"}:
        return IN

    with pytest.raises(ConfigError, match="'START' is annotated as FP32 in 'other'"):
        server.load(SUM, other, name="refused")


# -- objects ----------------------------------------------------------------------------------------


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, IN: "FP32[2]") -> {"OUT": "FP32[2]"}:
        return IN * self.factor

    def scaled(self, IN: "FP32[2]") -> {"OUT": "FP32[2]"}:
        return IN * self.factor


def scaled(IN: "FP32[2]", factor=1) -> {"OUT": "FP32[2]"}:
    return IN * factor


@pytest.mark.parametrize(
    "source", [Scaler(3), Scaler(3).scaled, functools.partial(scaled, factor=3)]
)
def test_any_callable_is_a_model(server, source):
    server.load("max_batch_size: 4", source, name="scaler")
    assert server.infer("scaler", {"IN": row(1, 2)})["OUT"].tolist() == [[3, 6]]


@pytest.fixture(scope="module")
def classifier():
    linear_model = pytest.importorskip("sklearn.linear_model", reason="extra 'demo'")
    x = np.array([[0, 0], [0, 1], [5, 5], [6, 5]], np.float32)
    return linear_model.LogisticRegression().fit(x, np.array(["low", "low", "high", "high"]))


@pytest.mark.medium
def test_an_estimator_brings_its_inputs_and_outputs(server, classifier):
    server.load("max_batch_size: 8 dynamic_batching { }", classifier, name="estimator")
    config = server.config("estimator")
    assert [(t.name, list(t.dims)) for t in config.input] == [("INPUT", [2])]
    assert [(t.name, list(t.dims)) for t in config.output] == [
        ("predict", [1]),
        ("predict_proba", [2]),
    ]
    x = np.array([[0, 0], [6, 6]], np.float32)
    found = server.infer("estimator", {"INPUT": x})
    assert found["predict"].tolist() == [[b"low"], [b"high"]]
    assert np.allclose(found["predict_proba"], classifier.predict_proba(x))


@pytest.mark.medium
def test_outputs_are_named_after_the_methods(server, classifier):
    text = (
        'max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 dims: 2 } '
        'output { name: "decision_function" data_type: TYPE_FP64 dims: 1 }'
    )
    server.load(text, classifier, name="named")
    x = np.array([[3, 1]], np.float32)
    wanted = classifier.decision_function(x)
    assert np.allclose(server.infer("named", {"X": x})["decision_function"], wanted)
    with pytest.raises(
        ConfigError, match="LogisticRegression has no method 'predict_probs'"
    ) as caught:
        server.load(text.replace("decision_function", "predict_probs"), classifier, name="refused")
    assert "predict_proba" in str(caught.value.hint)


def test_an_estimator_computes_the_requested_outputs():
    calls = []

    class Estimator:
        n_features_in_ = 2

        def predict(self, x):
            calls.append("predict")
            return x[:, 0]

        def predict_proba(self, x):
            calls.append("predict_proba")
            return x

    with Server(gpus=()) as server:
        server.load("max_batch_size: 8", Estimator(), name="m")
        calls.clear()
        server.infer("m", {"INPUT": row(1, 2)}, outputs=["predict_proba"])
    assert calls == ["predict_proba"]


def test_an_estimator_of_unknown_width_wants_an_example(server):
    class Estimator:
        def predict(self, x):
            return x.sum(axis=1)

    with pytest.raises(ConfigError, match="the inputs of a Estimator are unknown"):
        server.load("max_batch_size: 8", Estimator(), name="refused")
    server.load(
        "max_batch_size: 8", Estimator(), name="summed", example=np.ones((2, 3), np.float32)
    )
    assert server.infer("summed", {"INPUT": row(1, 2, 3)})["predict"].tolist() == [[6]]


class Pipeline:
    """The interface of a transformers pipeline for text."""

    task = "text-classification"
    tokenizer = object()

    def __call__(self, texts):
        return [{"label": "LONG" if len(t) > 3 else "SHORT", "score": len(t) / 10} for t in texts]


def test_a_pipeline_takes_text_and_gives_its_keys(server):
    server.load("max_batch_size: 8", Pipeline(), name="pipeline")
    text = np.array([["héllo"], ["no"]], object)
    found = server.infer("pipeline", {"TEXT": text})
    assert found["label"].tolist() == [[b"LONG"], [b"SHORT"]]
    assert np.allclose(found["score"], [[0.5], [0.2]])
    assert found["score"].dtype == np.float32


def test_several_results_of_a_text_are_a_row(server):
    class Several(Pipeline):
        def __call__(self, texts):
            return [[{"label": "A", "score": 1.0}, {"label": "B", "score": 0.0}] for _ in texts]

    server.load("max_batch_size: 8", Several(), name="several")
    found = server.infer("several", {"TEXT": np.array([["x"]], object)})
    assert found["label"].tolist() == [[b"A", b"B"]]


def test_an_object_that_neither_is_called_nor_predicts_is_no_model(server):
    with pytest.raises(TritonError, match=re.escape("no backend runs")):
        server.load("", object(), name="refused")


def test_a_wrong_configuration_is_an_error_of_the_configuration():
    from nbtriton.backends.python.callables import complete_callable
    from nbtriton.model.config import as_config

    with pytest.raises(ConfigError):
        complete_callable(lambda IN: IN, as_config('name: "m"'), None)
