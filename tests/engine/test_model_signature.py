"""Admission of requests: rules A1 to A16."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbtriton.backends import RequestOptions
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.model.config import as_config, normalize
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.runtime import ModelSignature
from tests.engine.support import echo, ensemble_text, fields, gated, ones, row

NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)
WHO = "[request id: <id_unknown>] "

TWO = """
backend: "python" max_batch_size: 4
input [ { name: "A" data_type: TYPE_FP32 dims: 4 }, { name: "B" data_type: TYPE_INT32 dims: -1 } ]
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
PLAIN = """
backend: "python"
input { name: "A" data_type: TYPE_FP32 dims: [ 4, -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4, -1 ] }
"""
OPTIONAL = """
backend: "python" max_batch_size: 4
input [
  { name: "A" data_type: TYPE_FP32 dims: 4 },
  { name: "B" data_type: TYPE_FP32 dims: 4 optional: true },
  { name: "C" data_type: TYPE_FP32 dims: 4 optional: true }
]
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
VARIABLE = """
backend: "python" max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
TEXT = """
backend: "python" max_batch_size: 4
input { name: "A" data_type: TYPE_STRING dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


class Sink:
    """Answers only that it was called."""

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32))])
            for _ in requests
        ]


B = np.ones((1, 3), np.int32)
REFUSED = {
    "A3 an unknown output": (
        TWO,
        {"A": ones(), "B": B},
        {"outputs": ["OUT", "OTHER"]},
        "unexpected inference output 'OTHER' for model 'm'",
    ),
    "A4 too few": (
        TWO,
        {"A": ones()},
        {},
        WHO + "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing "
        "required input(s) ['B']. Please provide all required input(s).",
    ),
    "A4 id": (
        TWO,
        {},
        {"request_id": "seven"},
        (
            "[request id: seven] expected 2 inputs but got 0 inputs for model 'm'. Got input(s) "
            "[], but missing required input(s) ['A','B']. Please provide all required input(s)."
        ),
    ),
    "A4 optional": (
        OPTIONAL,
        {},
        {},
        WHO + "expected number of inputs between 1 and 3 but got 0 inputs for model 'm'. Got "
        "input(s) [], but missing required input(s) ['A']. Please provide all required input(s).",
    ),
    "A5 too many": (
        TWO,
        {"A": ones(), "B": B, "C": ones()},
        {},
        WHO + "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['B','C','A'], but "
        "missing required input(s) ]. Please provide all required input(s).",
    ),
    # Triton runs such a request without its required input (A6): a deliberate difference.
    "A6 a required one is missing": (
        OPTIONAL,
        {"B": ones()},
        {},
        WHO + "expected all required inputs for model 'm'. Got "
        "input(s) ['B'], but missing required input(s) ['A']. Please provide all required "
        "input(s).",
    ),
    "A7 an unknown input": (
        TWO,
        {"A": ones(), "X": B},
        {},
        "unexpected inference input 'X' for model 'm'",
    ),
    "A7 optional": (
        OPTIONAL,
        {"A": ones(), "X": ones()},
        {},
        "unexpected inference input 'X' for model 'm'",
    ),
    "A8 batch sizes differ": (
        TWO,
        {"A": ones(2), "B": np.ones((3, 3), np.int32)},
        {},
        WHO + "input 'A' batch size does not match other inputs for 'm'",
    ),
    "A8 first": (
        TWO,
        {"A": row(1, 1, width=5), "B": np.ones((3, 9), np.int64)},
        {},
        WHO + "input 'A' batch size does not match other inputs for 'm'",
    ),
    "A8 after 0": (
        TWO,
        {"A": ones(3), "B": np.ones((0, 3), np.int32)},
        {},
        WHO + "input byte size mismatch for input 'B' for model 'm'. Expected 36, got 0",
    ),
    "A8 scalar": (
        TWO,
        {"A": np.float32(1), "B": B},
        {},
        WHO + "input 'A' has no shape but model requires batch dimension for 'm'",
    ),
    "A9 too large a batch": (
        TWO,
        {"A": ones(5), "B": np.ones((5, 3), np.int32)},
        {},
        WHO + "inference request batch-size must be <= 4 for 'm'",
    ),
    "A10 datatype": (
        TWO,
        {"A": np.ones((1, 4), np.int32), "B": B},
        {},
        WHO + "inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'",
    ),
    "A10 bytes": (
        TEXT,
        {"A": np.ones((1, 2), np.float32)},
        {},
        WHO + "inference input 'A' data-type is 'FP32', but model 'm' expects 'BYTES'",
    ),
    "A11 shape": (
        TWO,
        {"A": row(1, width=5), "B": B},
        {},
        WHO + "unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [1,5]. " + NOTE,
    ),
    "A11 of two": (
        TWO,
        {"A": row(1, width=5), "B": np.ones((1, 3, 1), np.int32)},
        {},
        WHO
        + "unexpected shape for input 'B' for model 'm'. Expected [-1,-1], got [1,3,1]. "
        + NOTE,
    ),
    "A11 plain": (
        PLAIN,
        {"A": np.ones((3, 2), np.float32)},
        {},
        WHO + "unexpected shape for input 'A' for model 'm'. Expected [4,-1], got [3,2]. ",
    ),
    "A11 rank": (
        PLAIN,
        {"A": np.ones(4, np.float32)},
        {},
        WHO + "unexpected shape for input 'A' for model 'm'. Expected [4,-1], got [4]. ",
    ),
    "A14 a batch of none": (
        TWO,
        {"A": np.ones((0, 4), np.float32), "B": np.ones((0, 3), np.int32)},
        {},
        WHO + "input byte size mismatch for input 'B' for model 'm'. Expected 12, got 0",
    ),
    "A14 variable": (
        VARIABLE,
        {"A": np.ones((0, 3), np.float32)},
        {},
        WHO + "input byte size mismatch for input 'A' for model 'm'. Expected 12, got 0",
    ),
    "A14 bytes": (
        TEXT,
        {"A": np.zeros((0, 2), object)},
        {},
        WHO + "expected 2 string elements for inference input 'A' for model 'm', got 0",
    ),
    # Such a request is never answered by Triton: a deliberate difference.
    "A14 nothing": (
        VARIABLE,
        {"A": np.ones((0, 0), np.float32)},
        {},
        WHO + "inference request batch-size must be >= 1 for 'm'",
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_request_is_refused(server: Server, rule: str):
    config, inputs, options, text = REFUSED[rule]
    server.load(config, Sink, name="m")
    for send in (server.infer, server.submit):
        with pytest.raises(InvalidArgumentError) as caught:
            send("m", inputs, **options)
        assert caught.value.message == text
        assert caught.value.status == "INVALID_ARG"
    # A request that the signature refuses is in no statistics.
    counts = fields(server.statistics(), "m")
    assert not any(value for key, value in counts.items() if key != "batches")
    assert counts["batches"] == {}
    assert server.snapshot().models[0].executing == 0


@pytest.mark.parametrize("width", [4, 16])
def test_an_input_without_its_batch_dimension_gets_a_hint(server: Server, width: int):
    """A short row has a wrong shape, a long one is a batch that is too large: one cause."""
    server.load(echo().replace("dims: 4", f"dims: {width}"), Sink, name="m")
    for given in ({"IN": np.ones(width, np.float32)}, {"IN": np.ones((1, width + 1), np.float32)}):
        with pytest.raises(InvalidArgumentError) as caught:
            server.infer("m", given)
        lacks = given["IN"].ndim == 1
        assert ("IN[None] is a batch of one" in caught.value.hint) is lacks


def test_G6_with_a_batch_dimension_a_request_needs_an_input(server: Server):
    """Seen on the server: it waits in the queue, fails before the model sees it, and counts so."""
    server.load(OPTIONAL.replace("dims: 4 }", "dims: 4 optional: true }", 1), Sink, name="m")
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("m", {}, request_id="bare")
    assert caught.value.message == (
        "[request id: bare] out of bounds index 0: request has 0 inputs"
    )
    server.infer("m", {"B": ones()})
    counts = fields(server.statistics(), "m")
    assert (counts["fail"], counts["success"], counts["batches"]) == (1, 1, {1: 1})


def test_A1_unknown_model(server: Server):
    server.load(echo(), Sink, name="classifier")
    with pytest.raises(NotFoundError) as caught:
        server.infer("clasifier", {"IN": ones()})
    assert caught.value.message == "Request for unknown model: 'clasifier' is not found"
    assert "classifier" in caught.value.hint


def test_A1_unknown_version(server: Server):
    server.load(echo(), Sink, name="m", version=3)
    with pytest.raises(NotFoundError) as caught:
        server.infer("m", {"IN": ones()}, version=2)
    assert caught.value.message == "Request for unknown model: 'm' version 2 is not found"
    assert "3" in caught.value.hint


def test_A1_no_available_version_and_version_not_ready(server: Server):
    server.load(echo(), Sink, name="part")
    server.load(
        ensemble_text(
            ("part", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="whole",
    )
    server.unload("part")
    with pytest.raises(NotFoundError) as caught:
        server.infer("whole", {"X": ones()})
    assert caught.value.message == "Request for unknown model: 'whole' has no available versions"
    with pytest.raises(UnavailableError) as refused:
        server.infer("whole", {"X": ones()}, version=1)
    assert refused.value.message == (
        "Request for unknown model: 'whole' version 1 is not at ready state"
    )


def test_A2_minus_one_is_the_highest_ready_version(server: Server):
    policy = "version_policy { all {} }"
    for version, factor in ((2, 2), (1, 1)):
        server.load(
            echo(policy), lambda IN, factor=factor: {"OUT": IN * factor}, name="m", version=version
        )
    assert server.infer("m", {"IN": ones()})["OUT"][0, 0] == 2
    assert server.infer("m", {"IN": ones()}, version=1)["OUT"][0, 0] == 1


def test_A12_reshape_gives_the_model_its_own_shape(server: Server):
    seen = []

    def model(A, B):
        seen.append((A.shape, B.shape))
        return {"OUT": A.reshape(-1, 1)}

    server.load(
        """
        backend: "python" max_batch_size: 4
        input [
          { name: "A" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } },
          { name: "B" data_type: TYPE_FP32 dims: [ 2, -1, 4, -1 ] reshape { shape: [ 1, 2, -1, 2, 2, -1 ] } }
        ]
        output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
        """,
        model,
        name="m",
    )
    inputs = {"A": np.ones((3, 1), np.float32), "B": np.zeros((3, 2, 5, 4, 7), np.float32)}
    server.infer("m", inputs)
    assert seen == [((3,), (3, 1, 2, 5, 2, 2, 7))]


def test_A16_priority_beyond_the_levels_is_the_default_level(server: Server, gate):
    server.load(
        echo(
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
            "preferred_batch_size: 1 }",
            max_batch_size=1,
        ),
        gated(gate),
        name="m",
    )
    first = server.submit("m", {"IN": ones()}, request_id="busy")
    gate.wait_entered()
    futures = [
        server.submit("m", {"IN": ones()}, request_id=name, priority=priority)
        for name, priority in (("low", 2), ("nine", 9), ("none", 0), ("high", 1))
    ]
    gate.open()
    for future in [first, *futures]:
        future.result(30)
    assert [ids[0] for ids in gate.batches] == ["busy", "nine", "none", "high", "low"]


# -- what a request may be made of ------------------------------------------------------------------


def double(IN):
    return {"OUT": IN * 2}


def test_numpy_in_numpy_out(server: Server):
    server.load(echo(), double, name="m")
    out = server.infer("m", {"IN": row(1, 2)})["OUT"]
    assert type(out) is np.ndarray
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, row(2, 4))


def test_torch_in_torch_out(server: Server):
    torch = pytest.importorskip("torch")

    server.load(echo(), double, name="m")
    out = server.infer("m", {"IN": torch.ones(2, 4)})["OUT"]
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, torch.full((2, 4), 2.0))


def test_list_in_numpy_out(server: Server):
    server.load(echo(), double, name="m")
    out = server.infer("m", {"IN": [[1, 2, 3, 4]]})["OUT"]
    assert type(out) is np.ndarray
    assert out.tolist() == [[2, 4, 6, 8]]


def test_read_only_input_reaches_a_model_that_writes(server: Server):
    def in_place(IN):
        np.add(IN, 1, out=IN)
        return {"OUT": IN}

    server.load(echo(), in_place, name="m")
    value = ones()
    value.flags.writeable = False
    assert server.infer("m", {"IN": value})["OUT"][0, 0] == 2
    assert value[0, 0] == 1


@pytest.mark.parametrize(
    "value",
    [
        [["a", b"\xff\x00"]],
        np.array([["a", b"\xff\x00"]], dtype=object),
    ],
    ids=["list", "objects"],
)
def test_bytes_in_any_form(server: Server, value):
    seen = []

    def model(A):
        seen.append(A.tolist())
        return {"OUT": np.zeros((len(A), 4), np.float32)}

    server.load(TEXT, model, name="m")
    server.infer("m", {"A": value})
    assert seen == [[[b"a", b"\xff\x00"]]]


def test_strings_are_returned_as_bytes(server: Server):
    torch = pytest.importorskip("torch")

    server.load(
        """
        backend: "python" max_batch_size: 4
        input { name: "N" data_type: TYPE_INT32 dims: 1 }
        output { name: "OUT" data_type: TYPE_STRING dims: 1 }
        """,
        lambda N: {
            "OUT": np.array([[str(n).encode()] for n in N.flatten().tolist()], dtype=object)
        },
        name="m",
    )
    out = server.infer("m", {"N": torch.tensor([[7], [8]], dtype=torch.int32)})["OUT"]
    assert out.tolist() == [[b"7"], [b"8"]]


def test_bf16_is_torchs(server: Server):
    torch = pytest.importorskip("torch")

    server.load(
        """
        backend: "python" max_batch_size: 4
        input { name: "IN" data_type: TYPE_BF16 dims: 2 }
        output { name: "OUT" data_type: TYPE_BF16 dims: 2 }
        """,
        lambda IN: {"OUT": IN + 1},
        name="m",
    )
    out = server.infer("m", {"IN": torch.ones(1, 2, dtype=torch.bfloat16)})["OUT"]
    assert out.dtype == torch.bfloat16
    assert out.tolist() == [[2, 2]]
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("m", {"IN": np.ones((1, 2), np.float32)})
    assert "data-type is 'FP32', but model 'm' expects 'BF16'" in caught.value.message


def test_outputs_asked_for_are_the_outputs_given(server: Server):
    server.load(
        echo('output { name: "MORE" data_type: TYPE_FP32 dims: 4 }'),
        lambda IN: {"OUT": IN, "MORE": IN + 1},
        name="m",
    )
    assert set(server.infer("m", {"IN": ones()})) == {"OUT", "MORE"}
    assert set(server.infer("m", {"IN": ones()}, outputs=["MORE"])) == {"MORE"}


def test_result_says_what_it_is(server: Server):
    server.load(echo(), double, name="m", version=4)
    result = server.infer("m", {"IN": ones(3)}, request_id="r")
    assert (result.model_name, result.model_version, result.request_id) == ("m", 4, "r")
    assert result.timing.batch_size == 3
    timing = result.timing
    parts = timing.queue_ns + timing.compute_input_ns + timing.compute_infer_ns
    assert 0 < parts + timing.compute_output_ns <= timing.total_ns
    assert result.describe() == [("OUT", "FP32", "[3,4]", "cpu")]
    assert "OUT: FP32[3,4]" in repr(result)


def test_numbers_of_a_request_may_be_numpys(server: Server):
    """A row of a table gives numpy's integers; the compiled core refuses any type but int."""
    levels = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
    server.load(echo(levels), double, name="m")
    number = np.int64(1)
    result = server.infer(
        "m", {"IN": ones()}, version=number, priority=number, timeout_us=number * 10**9,
        sequence_id=number, sequence_start=np.bool_(True), sequence_end=np.bool_(False),
    )  # fmt: skip
    assert result["OUT"].tolist() == (ones() * 2).tolist()


def test_a_closed_server_accepts_nothing():
    server = Server(gpus=())
    server.load(echo(), double, name="m")
    server.close()
    for send in (server.infer, server.submit):
        with pytest.raises(UnavailableError, match="closed"):
            send("m", {"IN": ones()})
    with pytest.raises(TritonError, match="closed"):
        server.load(echo(), double, name="m")


def test_admission_error_on_a_stream_is_raised_by_the_first_step(server: Server):
    server.load(echo(), double, name="m")
    with pytest.raises(InvalidArgumentError, match="unexpected inference input"):
        next(iter(server.stream("m", {"NI": ones()})))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"a": [1]},
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        ({"a": None}, "parameter 'a' has invalid type."),
        ({"a": b"x"}, "parameter 'a' has invalid type."),
        ({1: "x"}, "the parameter name 1 has invalid type."),
        ([1], "the parameters of a request are a mapping, found type list"),
    ],
)
def test_parameters_that_no_client_could_send_are_refused(parameters, said):
    with Server() as server:
        server.load(echo(), lambda IN: {"OUT": IN}, name="m")
        for send in (server.infer, server.submit):
            with pytest.raises(InvalidArgumentError) as caught:
                send("m", {"IN": ones()}, parameters=parameters)
            assert caught.value.message.startswith(said)
        server.infer("m", {"IN": ones()}, parameters={"a": 1, "b": True, "c": "x", "d": 0.5})


@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        (None, {}, "the inputs of a request are a mapping of arrays by name, found type NoneType"),
        ([1], {}, "the inputs of a request are a mapping of arrays by name, found type list"),
        ({None: ones(1)}, {}, "the name of an input is a text, found None"),
        (None, {"timeout_us": -1}, "the inputs of a request"),
        ({"IN": ones(1)}, {"timeout_us": -1}, "timeout_us must be from 0 to 2^64 - 1, found -1"),
        (
            {"IN": ones(1)},
            {"sequence_id": 1 << 64},
            f"sequence_id must be from 0 to 2^64 - 1, found {1 << 64}",
        ),
        ({"IN": ones(1)}, {"version": "1"}, "the version of a model is a whole number, found '1'"),
        ({"IN": ones(1)}, {"timeout_us": "5"}, "timeout_us must be a whole number, found '5'"),
        ({"IN": ones(1)}, {"timeout_us": None}, "timeout_us must be a whole number, found None"),
        (
            {"IN": ones(1)},
            {"sequence_id": 1.5},
            "sequence_id must be a whole number or a text, found 1.5",
        ),
        ({"IN": ones(1)}, {"priority": "1"}, "priority must be a whole number, found '1'"),
        ({"IN": ones(1)}, {"request_id": 5}, "request_id must be a text, found 5"),
        ({"IN": ones(1)}, {"outputs": 5}, "outputs are a list of names, found 5"),
        ({"IN": ones(1)}, {"outputs": [5]}, "outputs are a list of names, found [5]"),
        ({"IN": ones(1)}, {"outputs": [["OUT"]]}, "outputs are a list of names, found [['OUT']]"),
    ],
)
def test_what_is_no_request_is_refused_in_one_sentence(inputs, options, said):
    with Server(gpus=()) as server:
        levels = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
        server.load(echo(extra=levels), lambda IN: {"OUT": IN}, name="m")
        for call in (server.infer, server.submit, lambda *a, **b: next(server.stream(*a, **b))):
            with pytest.raises(InvalidArgumentError) as caught:
                call("m", inputs, **options)
            assert caught.value.message.startswith(said)


def test_outputs_in_one_text_are_refused_as_they_must_be_a_list(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("m", {"IN": ones(1)}, outputs="OUT")
    assert caught.value.hint == "outputs are a list of names: ['OUT']"


def _calls_that_name_a_model(server: Server) -> list[Any]:
    return [
        server.is_ready, server.config, server.metadata, server.statistics, server.batches,
        server.requests,
    ]  # fmt: skip


@pytest.mark.parametrize("name", [5, None, b"5"])
def test_a_name_of_a_model_that_is_no_text_is_refused_by_every_call(server: Server, name: Any):
    server.load(echo(), lambda IN: {"OUT": IN}, name="5")
    refused = f"^the name of a model is a text, found {name!r}$"
    calls = [*_calls_that_name_a_model(server), server.ignored, server.unload]
    if name is not None:  # as where it is left out
        calls.append(lambda name: server.load(echo(), lambda IN: {"OUT": IN}, name=name))
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=refused):
            call(name)
    for send in (server.infer, server.submit, lambda *given: next(server.stream(*given))):
        with pytest.raises(InvalidArgumentError, match=refused):
            send(name, {"IN": ones(1)})
    assert [model.name for model in server.models()] == ["5"]


@pytest.mark.parametrize(
    ("version", "hint"),
    [("1", "version=1"), ("", "-1 is the highest that is ready"), (1.0, "-1 is the highest that")],
)
def test_a_version_that_is_no_number_is_refused_by_every_call(
    server: Server, version: Any, hint: str
):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    for call in _calls_that_name_a_model(server):
        with pytest.raises(InvalidArgumentError) as caught:
            call("m", version)
        said = f"the version of a model is a whole number, found {version!r}"
        assert caught.value.message == said
        assert caught.value.hint.startswith(hint)
        assert call("m", np.int64(1)) is not None
    with pytest.raises(InvalidArgumentError, match="the version of a model is a whole number"):
        server.statistics(version=version)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"most": "x"}, "most must be a whole number from 0 on; found 'x'"),
        ({"most": -1}, "most must be a whole number from 0 on; found -1"),
        ({"since_ns": "now"}, "since_ns must be a number of nanoseconds; found 'now'"),
    ],
)
def test_what_no_records_can_be_asked_for_by_is_refused(
    server: Server, options: dict[str, Any], said: str
):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    for call in (server.batches, server.requests):
        with pytest.raises(InvalidArgumentError) as caught:
            call("m", **options)
        assert caught.value.message == said


def test_what_is_no_function_cannot_get_responses(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    with pytest.raises(InvalidArgumentError, match="on_response must be a function; found 5"):
        server.submit("m", {"IN": ones(1)}, on_response=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["2", 1.5, -1, True])
def test_what_is_no_version_to_load_changes_nothing(server: Server, version: Any):
    with pytest.raises(InvalidArgumentError) as caught:
        server.load(echo(), lambda IN: {"OUT": IN}, name="m", version=version)
    said = f"version must be a whole number from 0 on; found {version!r}"
    assert caught.value.message == said
    server.load(echo(), lambda IN: {"OUT": IN}, name="m", version=np.int32(0))
    assert [(model.name, model.version) for model in server.models()] == [("m", 0)]


@pytest.mark.parametrize(
    ("dims", "array", "hint"),
    [
        ("[-1, 64]", np.ones((1, 1, 32), np.float32), "dimension 2 is 32 instead of 64"),
        (
            "[2, 3]",
            np.ones((1, 4, 5), np.float32),
            "dimension 1 is 4 instead of 2, dimension 2 is 5 instead of 3",
        ),
        ("[4]", np.ones((1, 2, 2, 4), np.float32), "4 dimensions instead of 2"),
        ("[4]", np.ones(4, np.float32), "add the batch dimension: IN[None] is a batch of one"),
    ],
)
def test_a_wrong_shape_is_told_by_its_dimension(dims, array, hint):
    text = 'name: "m" max_batch_size: 4 input { name: "IN" data_type: %s dims: %s }'
    signature = ModelSignature(normalize(as_config(text % ("TYPE_FP32", dims)), name="m"))
    with pytest.raises(InvalidArgumentError) as caught:
        signature.build_request({"IN": array}, RequestOptions())
    assert caught.value.hint == hint


def test_the_way_to_bf16_is_one_that_numpy_has():
    text = 'name: "m" max_batch_size: 4 input { name: "IN" data_type: TYPE_BF16 dims: [4] }'
    signature = ModelSignature(normalize(as_config(text), name="m"))
    with pytest.raises(InvalidArgumentError) as caught:
        signature.build_request({"IN": np.ones((1, 4), np.float32)}, RequestOptions())
    assert "'bfloat16'" not in caught.value.hint
    assert "ml_dtypes.bfloat16" in caught.value.hint
