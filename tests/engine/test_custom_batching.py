"""Custom batching through `Server.load`: Triton's five functions in Python (D4, G8, V46, V47)."""

from __future__ import annotations

import logging
import types

import numpy as np
import pytest

from nbtriton.common.errors import (
    ConfigError,
    InternalError,
    InvalidArgumentError,
    LoadError,
    TritonError,
)
from nbtriton.runtime.engine import Server
from tests.engine.support import WAIT_S, Gate, echo, fields, gated, ones, row

DYNAMIC = echo("dynamic_batching { }")
# A request that carries its volume: any number of values.
RAGGED = """
backend: "python" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
dynamic_batching { }
parameters { key: "MAX_BATCH_VOLUME_BYTES" value { string_value: "64" } }
"""


class Volume:
    """Triton's example: a limit of the bytes of a batch's inputs."""

    def __init__(self):
        self.calls = []

    def model_batcher_initialize(self, model):
        self.calls.append(("batcher_initialize", model.name))
        return int(model.config.parameters["MAX_BATCH_VOLUME_BYTES"].string_value)

    def model_batch_initialize(self, batcher):
        return {"left": batcher}

    def model_batch_include_request(self, request, batch):
        volume = sum(array.nbytes for array in request.inputs.values())
        if volume > batch["left"]:
            return False
        batch["left"] -= volume
        return True

    def model_batch_finalize(self, batch):
        self.calls.append(("batch_finalize", batch["left"]))

    def model_batcher_finalize(self, batcher):
        self.calls.append(("batcher_finalize", batcher))


def values(count):
    return {"IN": np.zeros((1, count), np.float32)}


def busy(server, gate, config, strategy, **load):
    """Load a model and keep its only instance busy."""
    server.load(config, gated(gate), name="m", batching=strategy, **load)
    first = server.submit("m", values(4) if config == RAGGED else {"IN": ones()}, request_id="busy")
    gate.wait_entered()
    return first


def test_D4_the_volume_strategy_limits_the_bytes_of_a_batch(server: Server, gate: Gate):
    strategy = Volume()
    futures = [busy(server, gate, RAGGED, strategy)]
    for name, count in (("a", 4), ("b", 8), ("c", 5), ("d", 8), ("e", 4), ("f", 4)):
        futures.append(server.submit("m", values(count), request_id=name))
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    # 16 values in a batch: 4 and 8, 5 and 8, 4 and 4
    assert gate.batches == [["busy"], ["a", "b"], ["c", "d"], ["e", "f"]]
    reasons = [record.reason for record in server.batches("m")]
    assert reasons == ["no_delay", "custom_batching", "custom_batching", "no_delay"]
    server.unload("m", timeout_s=WAIT_S)
    assert strategy.calls[0] == ("batcher_initialize", "m")
    assert strategy.calls[-1] == ("batcher_finalize", 64)
    assert [name for name, _ in strategy.calls].count("batcher_finalize") == 1


def test_a_request_beyond_the_volume_is_refused_with_the_limit(server: Server):
    server.load(RAGGED, gated(Gate(is_open=True)), name="m", batching=Volume())
    server.infer("m", values(16))
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("m", values(17), request_id="17")
    assert caught.value.message == (
        "[request id: 17] the custom batching strategy includes the request in no batch, not even "
        "in an empty one"
    )
    assert fields(server.statistics("m"), "m")["fail"] == 1
    server.infer("m", values(16))


# -- forms of a strategy -----------------------------------------------------------------------------


def pairs(static=False):
    """The five functions, for two requests in a batch."""

    def model_batcher_initialize(model):
        return 2

    def model_batch_initialize(batcher):
        return []

    def model_batch_include_request(request, batch):
        batch.append(request.request_id)
        return len(batch) <= 2

    def model_batch_finalize(batch):
        pass

    def model_batcher_finalize(batcher):
        pass

    functions = dict(locals())
    del functions["static"]
    return {name: staticmethod(f) if static else f for name, f in functions.items()}


def in_pairs(server, gate):
    futures = [server.submit("m", {"IN": ones()}, request_id=name) for name in "abcde"]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert gate.batches[1:] == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize("form", ["class", "object", "module"])
def test_a_strategy_may_be(server: Server, gate: Gate, form: str):
    if form == "class":
        strategy = type("Pairs", (), pairs(static=True))
    elif form == "object":
        strategy = type("Pairs", (), pairs(static=True))()
    else:
        strategy = types.ModuleType("pairs")
        vars(strategy).update(pairs())
    busy(server, gate, DYNAMIC, strategy)
    in_pairs(server, gate)


def test_a_models_own_class_may_have_the_functions(server: Server, gate: Gate):
    model = gated(gate)
    for name, function in pairs(static=True).items():
        setattr(model, name, function)
    server.load(DYNAMIC, model, name="m")
    server.submit("m", {"IN": ones()}, request_id="busy")
    gate.wait_entered()
    in_pairs(server, gate)


MODEL_FILE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def model_batcher_initialize(model): return None
    @staticmethod
    def model_batcher_finalize(batcher): pass
    @staticmethod
    def model_batch_initialize(batcher): return None
    @staticmethod
    def model_batch_finalize(batch): pass
    @staticmethod
    def model_batch_include_request(request, batch): return request.request_id != "never"

    def execute(self, requests):
        return [pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]
        ) for r in requests]
"""


def test_a_model_file_may_have_the_functions(server: Server, tmp_path):
    path = tmp_path / "m" / "1" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text(MODEL_FILE)
    server.load(DYNAMIC, path, name="m")
    server.infer("m", {"IN": ones()})
    with pytest.raises(InvalidArgumentError, match="includes the request in no batch"):
        server.infer("m", {"IN": ones()}, request_id="never")


def test_a_new_configuration_keeps_the_strategy(server: Server, gate: Gate):
    server.load(DYNAMIC, gated(gate), name="m", batching=type("Pairs", (), pairs(static=True)))
    server.load(echo("dynamic_batching { preserve_ordering: true }"), name="m")
    server.submit("m", {"IN": ones()}, request_id="busy")
    gate.wait_entered()
    in_pairs(server, gate)
    server.load(echo(), name="m")  # without the dynamic batcher no batch can grow
    server.infer("m", {"IN": ones()})


def test_functions_of_a_class_without_dynamic_batching_are_not_used(server: Server):
    model = gated(Gate(is_open=True))
    model.model_batch_include_request = staticmethod(lambda request, batch: 1 / 0)
    server.load(echo(), model, name="m")
    assert server.infer("m", {"IN": ones()})["OUT"].shape == ones().shape


# -- what a strategy may do wrong --------------------------------------------------------------------


class Clumsy:
    """Raises where its attribute says so."""

    where = ""

    def model_batcher_initialize(self, model):
        self.stumble("model_batcher_initialize")

    def model_batch_initialize(self, batcher):
        self.stumble("model_batch_initialize")

    def model_batch_include_request(self, request, batch):
        if request.inputs["IN"].flat[0] == 13:
            self.stumble("model_batch_include_request")
        return True

    def model_batch_finalize(self, batch):
        self.stumble("model_batch_finalize")

    def model_batcher_finalize(self, batcher):
        self.stumble("model_batcher_finalize")

    def stumble(self, name):
        if self.where == name:
            raise ValueError("kaboom")


def test_raising_on_a_request_fails_that_request_alone(server: Server, gate: Gate):
    strategy = Clumsy()
    strategy.where = "model_batch_include_request"
    busy(server, gate, DYNAMIC, strategy)
    futures = [server.submit("m", {"IN": row(value)}) for value in (1, 13, 2)]
    with pytest.raises(InternalError) as caught:
        futures[1].result(WAIT_S)
    assert caught.value.message.startswith(
        "custom batching of model 'm' failed in model_batch_include_request: ValueError: kaboom"
    )
    assert "test_custom_batching.py" in caught.value.message  # it says where
    gate.open()
    assert futures[0].result(WAIT_S)["OUT"][0, 0] == 1
    assert futures[2].result(WAIT_S)["OUT"][0, 0] == 2
    assert len(gate.batches) == 2


def test_raising_at_the_begin_of_a_batch_fails_its_first_request(server: Server):
    strategy = Clumsy()
    server.load(DYNAMIC, gated(Gate(is_open=True)), name="m", batching=strategy)
    strategy.where = "model_batch_initialize"
    with pytest.raises(InternalError, match="model_batch_initialize: ValueError: kaboom"):
        server.infer("m", {"IN": ones()})
    strategy.where = ""
    server.infer("m", {"IN": ones()})
    counts = fields(server.statistics("m"), "m")
    assert (counts["success"], counts["fail"]) == (1, 1)


@pytest.mark.parametrize("hook", ["model_batch_finalize", "model_batcher_finalize"])
def test_raising_at_an_end_is_logged(server: Server, caplog, hook: str):
    strategy = Clumsy()
    strategy.where = hook
    with caplog.at_level(logging.ERROR, "nbtriton.runtime.engine"):
        server.load(DYNAMIC, gated(Gate(is_open=True)), name="m", batching=strategy)
        server.infer("m", {"IN": ones()})
        server.unload("m", timeout_s=WAIT_S)
    assert f"{hook} of model 'm' raised" in caplog.text
    assert "kaboom" in caplog.text


def test_raising_while_the_model_loads_fails_the_load(server: Server):
    strategy = Clumsy()
    strategy.where = "model_batcher_initialize"
    with pytest.raises(LoadError) as caught:
        server.load(DYNAMIC, gated(Gate(is_open=True)), name="m", batching=strategy)
    assert "Internal: ValueError: kaboom" in caught.value.message
    assert "in model_batcher_initialize" in caught.value.user_traceback
    assert not server.is_ready("m")


def test_an_answer_that_is_none_is_no_answer(server: Server):
    strategy = type("Silent", (), pairs(static=True))
    strategy.model_batch_include_request = staticmethod(lambda request, batch: None)
    server.load(DYNAMIC, gated(Gate(is_open=True)), name="m", batching=strategy)
    with pytest.raises(InternalError, match="it returned None, expected True or False"):
        server.infer("m", {"IN": ones()})


def test_G8_all_functions_or_none(server: Server):
    strategy = type("Half", (), pairs(static=True))
    del strategy.model_batch_finalize
    with pytest.raises(TritonError) as caught:
        server.load(DYNAMIC, gated(Gate(is_open=True)), name="m", batching=strategy)
    assert "Half does not define all required custom batching functions for model m" in (
        caught.value.message
    )
    assert caught.value.hint == "missing: model_batch_finalize"


def test_a_function_with_self_on_a_models_class_is_found_at_load(server: Server):
    model = gated(Gate(is_open=True))
    for name, function in pairs(static=True).items():
        setattr(model, name, function)
    model.model_batch_initialize = lambda self, batcher: None
    with pytest.raises(TritonError, match="does not take") as caught:
        server.load(DYNAMIC, model, name="m")
    assert "@staticmethod" in caught.value.hint


def test_custom_batching_needs_the_dynamic_batcher(server: Server):
    with pytest.raises(TritonError, match="custom batching of model 'm' needs the dynamic batcher"):
        server.load(echo(), gated(Gate(is_open=True)), name="m", batching=Volume())
    with pytest.raises(ConfigError, match="forms no batches of its own"):
        server.load('platform: "ensemble"', name="e", batching=Volume())


# -- libraries ---------------------------------------------------------------------------------------


def with_library(path):
    return DYNAMIC + (
        f'parameters {{ key: "TRITON_BATCH_STRATEGY_PATH" value {{ string_value: "{path}" }} }}'
    )


SEQUENCE = echo('sequence_batching { } parameters { key: "MAX_BATCH_VOLUME_BYTES" value { } }')


def test_V46_a_sequence_model_has_no_custom_batching(server: Server):
    with pytest.raises(TritonError) as caught:
        server.load(SEQUENCE, gated(Gate(is_open=True)), name="m", batching=Volume())
    assert (
        "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default "
        "batching strategy"
    ) in caught.value.message


def test_V47_the_library_must_exist(server: Server):
    with pytest.raises(LoadError) as caught:
        server.load(with_library("/no/such.so"), gated(Gate(is_open=True)), name="m")
    assert caught.value.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Not found: Batching library "
        "path not found: /no/such.so;"
    )


@pytest.mark.medium
@pytest.mark.parametrize("place", ["named", "beside"])
def test_a_library_that_exists_is_not_used_with_a_warning(server, caplog, tmp_path, place):
    path = tmp_path / "m" / "1" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text(MODEL_FILE.replace("model_batch", "other"))
    library = path.with_name("batchstrategy.so" if place == "beside" else "mine.so")
    library.write_bytes(b"\x7fELF")
    with caplog.at_level(logging.WARNING, "nbtriton.runtime.engine"):
        server.load(DYNAMIC if place == "beside" else with_library(library), path, name="m")
    assert f"model 'm': {library} is not used: a custom batching library" in caplog.text
    assert "server.load(config, model, batching=STRATEGY)" in caplog.text
    assert server.infer("m", {"IN": ones()})["OUT"].shape == (1, 4)


def test_python_stands_in_for_a_library(server: Server, caplog, tmp_path):
    library = tmp_path / "mine.so"
    library.write_bytes(b"\x7fELF")
    strategy = type("Pairs", (), pairs(static=True))
    with caplog.at_level(logging.WARNING, "nbtriton.runtime.engine"):
        server.load(with_library(library), gated(Gate(is_open=True)), name="m", batching=strategy)
    assert not caplog.text
