"""Ensembles: rules E2 to E18 with real models and threads."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import threading

import numpy as np
import pytest

from nbtriton.common.errors import (
    ConfigError,
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.runtime.engine import Server
from tests.engine.support import (
    WAIT_S,
    Gate,
    echo,
    ensemble_text,
    failing,
    fields,
    gated,
    ones,
    row,
    streaming,
    waited,
)

FP32 = "FP32[4]"


# Ensembles that are steps of others in these tests: their tensors have other names.
NESTED = ("e1", "inner")


def chain(*models: str, max_batch_size: int = 8, dims: str = FP32) -> str:
    """X -> models one after the other -> Y."""
    names = ["X", *(f"t{n}" for n in range(len(models) - 1)), "Y"]
    return ensemble_text(
        *(
            (model, {"X": into}, {"Y": out})
            if model in NESTED
            else (model, {"IN": into}, {"OUT": out})
            for model, into, out in zip(models, names, names[1:], strict=False)
        ),
        inputs={"X": dims},
        outputs={"Y": dims},
        max_batch_size=max_batch_size,
    )


def fork(left: str, right: str, *, dims: str = FP32) -> str:
    """X -> left -> L, X -> right -> R."""
    return ensemble_text(
        (left, {"IN": "X"}, {"OUT": "L"}),
        (right, {"IN": "X"}, {"OUT": "R"}),
        inputs={"X": dims},
        outputs={"L": dims, "R": dims},
    )


def plus(amount: float):
    return lambda IN: {"OUT": IN + amount}


def times(amount: float):
    return lambda IN: {"OUT": IN * amount}


@pytest.mark.parametrize("direct", [True, False], ids=["infer", "submit"])
def test_a_chain_computes_in_order(server: Server, direct: bool):
    server.load(echo(), plus(1), name="inc")
    server.load(echo("dynamic_batching {}"), times(10), name="tenfold")
    server.load(chain("inc", "tenfold", "inc"), name="e")
    value = row(1, 2, 3)
    result = (
        server.infer("e", {"X": value})
        if direct
        else server.submit("e", {"X": value}).result(WAIT_S)
    )
    np.testing.assert_array_equal(result["Y"], (value + 1) * 10 + 1)
    assert result.model_name == "e"


def test_a_chain_by_infer_stays_in_the_callers_thread(server: Server):
    gates = [Gate(is_open=True) for _ in range(2)]
    for name, gate in zip("ab", gates, strict=True):
        server.load(echo(), gated(gate), name=name)
    server.load(chain("a", "b"), name="e")
    server.infer("e", {"X": ones()})
    assert [gate.threads for gate in gates] == [[threading.get_ident()]] * 2


@pytest.mark.parametrize("direct", [True, False], ids=["infer", "submit"])
def test_E3_branches_run_side_by_side(server: Server, direct: bool):
    barrier = threading.Barrier(2, timeout=WAIT_S)

    def branch(amount: float):
        def model(IN):
            barrier.wait()  # passes only if the other branch is in its execute now
            return {"OUT": IN + amount}

        return model

    server.load(echo(), branch(1), name="left")
    server.load(echo(), branch(2), name="right")
    server.load(fork("left", "right"), name="e")
    for _ in range(5):
        result = (
            server.infer("e", {"X": ones()})
            if direct
            else server.submit("e", {"X": ones()}).result(WAIT_S)
        )
        assert (result["L"][0, 0], result["R"][0, 0]) == (2, 3)


def test_E2_a_step_with_two_inputs_waits_for_both(server: Server, gate: Gate):
    joined = Gate(is_open=True)

    def join(A, B):
        joined.stand([])
        return {"OUT": A + B}

    server.load(echo(), gated(gate), name="slow")
    server.load(echo(), plus(1), name="quick")
    server.load(
        """
        backend: "python" max_batch_size: 8
        input [ { name: "A" data_type: TYPE_FP32 dims: 4 }, { name: "B" data_type: TYPE_FP32 dims: 4 } ]
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
        """,
        join,
        name="join",
    )
    server.load(
        ensemble_text(
            ("slow", {"IN": "X"}, {"OUT": "a"}),
            ("quick", {"IN": "X"}, {"OUT": "b"}),
            ("join", {"A": "a", "B": "b"}, {"OUT": "Y"}),
            inputs={"X": FP32},
            outputs={"Y": FP32},
        ),
        name="e",
    )
    future = server.submit("e", {"X": ones()})
    gate.wait_entered()
    server.infer("quick", {"IN": ones()})  # behind the ensemble's own: that one is done
    assert not joined.batches
    gate.open()
    assert future.result(WAIT_S)["Y"][0, 0] == 3


def test_E4_steps_for_unrequested_outputs_are_not_run(server: Server):
    gates = {name: Gate(is_open=True) for name in ("root", "left", "right")}
    for name, gate in gates.items():
        server.load(echo(), gated(gate), name=name)
    server.load(
        ensemble_text(
            ("root", {"IN": "X"}, {"OUT": "m"}),
            ("left", {"IN": "m"}, {"OUT": "L"}),
            ("right", {"IN": "X"}, {"OUT": "R"}),
            inputs={"X": FP32},
            outputs={"L": FP32, "R": FP32},
        ),
        name="e",
    )
    assert set(server.infer("e", {"X": ones()}, outputs=["R"])) == {"R"}
    assert {name: len(gate.batches) for name, gate in gates.items()} == {
        "root": 0,
        "left": 0,
        "right": 1,
    }
    assert set(server.infer("e", {"X": ones()}, outputs=["L"])) == {"L"}
    assert {name: len(gate.batches) for name, gate in gates.items()} == {
        "root": 1,
        "left": 1,
        "right": 1,
    }


def test_E5_steps_carry_what_the_request_carried(server: Server):
    seen = []

    class TritonPythonModel:
        def execute(self, requests):
            import json

            import triton_python_backend_utils as pb_utils

            for r in requests:
                seen.append(
                    {
                        "id": r.request_id(),
                        "correlation": r.correlation_id(),
                        "flags": r.flags(),
                        "timeout": r.timeout(),
                        "parameters": json.loads(r.parameters()),
                        "outputs": list(r.requested_output_names()),
                    }
                )
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                for r in requests
            ]

    more = 'output { name: "MORE" data_type: TYPE_FP32 dims: 4 }'
    server.load(echo(more), TritonPythonModel, name="part")
    server.load(chain("part", "part"), name="e")
    server.infer(
        "e",
        {"X": ones()},
        request_id="r1",
        sequence_id=77,
        sequence_start=True,
        timeout_us=5_000_000,
        parameters={"temperature": 3},
    )
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0] == {
        "id": "r1",
        "correlation": 77,
        "flags": 1,
        "timeout": 5_000_000,
        "parameters": {"temperature": 3},
        "outputs": ["OUT"],
    }


def test_E5_the_priority_of_a_request_is_that_of_its_steps(server: Server, gate: Gate):
    """The step's model has priority levels, the ensembles around it have none."""
    config = (
        "dynamic_batching { preferred_batch_size: 4 priority_levels: 3 default_priority_level: 3 }"
    )
    server.load(echo(config), gated(gate), name="part")
    server.load(chain("part"), name="inner")
    server.load(chain("inner"), name="outer")
    futures = [server.submit("part", {"IN": ones()}, request_id="busy")]
    gate.wait_entered()
    futures += [
        server.submit("outer", {"X": ones()}, request_id=name, priority=priority)
        for name, priority in (("d", 0), ("c", 2), ("a", 1), ("e", 2**63), ("b", 1))
    ]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    # No priority, or one that the step's model does not have, is its default.
    assert gate.batches[1:] == [["a", "b", "c", "d"], ["e"]]


def test_E7_every_response_carries_the_sequence_parameters(server: Server):
    server.load(echo(), plus(1), name="inc")
    server.load(chain("inc"), name="e")
    assert server.infer("e", {"X": ones()}).parameters == {
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
    }
    result = server.infer("e", {"X": ones()}, sequence_id="s-1", sequence_end=True)
    assert result.parameters == {
        "sequence_id": "s-1",
        "sequence_start": False,
        "sequence_end": True,
    }
    for sequence_id in (1, (1 << 63) - 1, 1 << 63, (1 << 64) - 5):  # a parameter is an int64
        found = server.infer("e", {"X": ones()}, sequence_id=sequence_id).parameters
        assert found["sequence_id"] == np.uint64(sequence_id).astype(np.int64)


# -- E8, E9: models that batch and models that do not ------------------------------------------------


def test_E8_a_composing_model_with_a_smaller_batch_is_refused(server: Server):
    server.load(echo(max_batch_size=4), plus(1), name="small")
    with pytest.raises(ConfigError) as caught:
        server.load(chain("small"), name="e")
    assert caught.value.message == (
        "ensemble e allows maximum batch size 8, but it contains model small which only allows "
        "maximum batch size to be 4"
    )
    assert not server.is_ready("e")


def plain(shape: str) -> str:
    return (
        f'backend: "python" input {{ name: "IN" data_type: TYPE_FP32 dims: {shape} }} '
        f'output {{ name: "OUT" data_type: TYPE_FP32 dims: {shape} }}'
    )


def shapes_of(seen: list):
    def model(IN):
        seen.append(IN.shape)
        return {"OUT": IN + 1}

    return model


def test_E9_a_non_batching_model_takes_the_full_shape_as_it_is(server: Server):
    seen: list = []
    server.load(plain("[ -1, 4 ]"), shapes_of(seen), name="whole")
    server.load(chain("whole"), name="e")
    assert server.infer("e", {"X": ones(3)})["Y"].shape == (3, 4)
    assert seen == [(3, 4)]


def test_E9_a_batch_of_one_is_stripped_and_put_back(server: Server):
    seen: list = []
    server.load(plain("[ 4 ]"), shapes_of(seen), name="single")
    server.load(echo(), shapes_of(seen), name="batching")
    server.load(
        ensemble_text(
            ("batching", {"IN": "X"}, {"OUT": "a"}),
            ("single", {"IN": "a"}, {"OUT": "b"}),
            ("batching", {"IN": "b"}, {"OUT": "Y"}),
            inputs={"X": FP32},
            outputs={"Y": FP32},
            max_batch_size=1,
        ),
        name="e",
    )
    out = server.infer("e", {"X": row(5)})["Y"]
    assert seen == [(1, 4), (4,), (1, 4)]
    np.testing.assert_array_equal(out, row(8))


def test_E9_a_larger_batch_does_not_fit_a_single_item_model(server: Server):
    server.load(plain("[ 4 ]"), plus(1), name="single")
    server.load(chain("single"), name="e")
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("e", {"X": ones(2)})
    assert caught.value.message == (
        "in ensemble 'e', [request id: <id_unknown>] unexpected shape for input 'IN' for model "
        "'single'. Expected [4], got [2,4]. "
    )
    counts = fields(server.statistics(), "e")
    assert (counts["fail"], counts["success"]) == (2, 0)


# -- E10, E11: missing tensors -----------------------------------------------------------------------

JOIN = """
backend: "python" max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: 4 },
  { name: "B" data_type: TYPE_FP32 dims: 4 %s }
]
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


def join(A, B=None):
    return {"OUT": A if B is None else A + B}


def join_ensemble() -> str:
    return ensemble_text(
        ("join", {"A": "X", "B": "Z"}, {"OUT": "Y"}),
        inputs={"X": FP32, "Z": FP32},
        outputs={"Y": FP32},
        optional=("Z",),
    )


def test_E10_an_omitted_optional_input_is_left_out_of_the_step(server: Server):
    server.load(JOIN % "optional: true", join, name="join")
    server.load(join_ensemble(), name="e")
    assert server.infer("e", {"X": ones()})["Y"][0, 0] == 1
    assert server.infer("e", {"X": ones(), "Z": ones()})["Y"][0, 0] == 2


def test_E10_an_omitted_input_that_a_step_requires_fails_that_step(server: Server):
    server.load(JOIN % "", lambda A, B: {"OUT": A + B}, name="join")
    server.load(join_ensemble(), name="e")
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("e", {"X": ones()}, request_id="r")
    assert caught.value.message == (
        "in ensemble 'e', [request id: r] expected 2 inputs but got 1 inputs for model 'join'. Got "
        "input(s) ['A'], but missing required input(s) ['B']. Please provide all required input(s)."
    )


class OnlyOne:
    """Has two outputs and makes only the first."""

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
            for r in requests
        ]


MORE = 'output { name: "MORE" data_type: TYPE_FP32 dims: 4 }'


@pytest.mark.parametrize("optional", ["optional: true", ""], ids=["optional", "required"])
def test_E11_an_output_that_is_not_made_is_skipped_downstream(server: Server, optional: str):
    server.load(echo(MORE), OnlyOne, name="one")
    server.load(JOIN % optional, join, name="join")
    server.load(
        ensemble_text(
            ("one", {"IN": "X"}, {"OUT": "a", "MORE": "b"}),
            ("join", {"A": "a", "B": "b"}, {"OUT": "Y"}),
            inputs={"X": FP32},
            outputs={"Y": FP32},
        ),
        name="e",
    )
    if optional:
        assert server.infer("e", {"X": ones()})["Y"][0, 0] == 1
        return
    with pytest.raises(InvalidArgumentError, match=r"missing required input\(s\) \['B'\]"):
        server.infer("e", {"X": ones()})


def test_E11_an_ensemble_output_that_is_not_made_is_missing(server: Server):
    server.load(echo(MORE), OnlyOne, name="one")
    server.load(
        ensemble_text(
            ("one", {"IN": "X"}, {"OUT": "Y", "MORE": "Z"}),
            inputs={"X": FP32},
            outputs={"Y": FP32, "Z": FP32},
        ),
        name="e",
    )
    assert set(server.infer("e", {"X": ones()})) == {"Y"}


# -- E12, E13: errors --------------------------------------------------------------------------------


def test_E12_no_response_at_all_is_a_deadlock(server: Server):
    """A decoupled step makes the ensemble decoupled, so only a broken backend could get here."""
    server.load(echo("model_transaction_policy { decoupled: true }"), streaming(), name="many")
    server.load(chain("many"), name="e")
    assert server.config("e").model_transaction_policy.decoupled
    assert list(server.stream("e", {"X": row(0)})) == []


@pytest.mark.parametrize("depth", [1, 2])
def test_E13_the_first_error_with_the_path_to_it(server: Server, depth: int):
    server.load(echo(), failing(), name="bad")
    server.load(echo(), plus(0), name="ok")
    server.load(chain("ok", "bad", "ok"), name="e1")
    server.load(chain("e1", "ok"), name="e2")
    prefix = "in ensemble 'e2', in ensemble 'e1', " if depth == 2 else "in ensemble 'e1', "
    with pytest.raises(UnavailableError) as refused:
        server.infer(f"e{depth}", {"X": row(6)})
    assert refused.value.message == prefix + "not today"
    with pytest.raises(ModelError) as raised:
        server.infer(f"e{depth}", {"X": row(1)})
    assert raised.value.message.startswith(
        prefix + "Failed to process the request(s) for model 'bad_0', message: ValueError: kaboom"
    )
    assert 'raise ValueError("kaboom")' in raised.value.user_traceback
    # Nothing behind the failure ran: 'ok' saw the first step of each request only.
    assert fields(server.statistics(), "ok")["execution_count"] == 2


def test_E13_the_error_does_not_wait_for_the_sibling(server: Server, gate: Gate):
    after = Gate(is_open=True)
    server.load(echo(), gated(gate), name="slow")
    server.load(echo(), gated(after), name="after")
    server.load(echo(), failing(), name="bad")
    server.load(
        ensemble_text(
            ("slow", {"IN": "X"}, {"OUT": "a"}),
            ("after", {"IN": "a"}, {"OUT": "L"}),
            ("bad", {"IN": "X"}, {"OUT": "R"}),
            inputs={"X": FP32},
            outputs={"L": FP32, "R": FP32},
        ),
        name="e",
    )
    answers = []
    answered = threading.Event()
    future = server.submit("e", {"X": row(1)})
    future.add_done_callback(answers.append)
    future.add_done_callback(lambda _: answered.set())
    gate.wait_entered()
    with pytest.raises(ModelError, match="kaboom"):
        future.result(WAIT_S)  # while 'slow' stands at its gate
    waited(answered)
    gate.open()
    server.infer("slow", {"IN": ones()})  # behind the dropped one
    assert not after.batches, "a step started after the failure"
    assert len(answers) == 1
    counts = fields(server.statistics(), "e")
    assert (counts["fail"], counts["success"]) == (1, 0)


# -- nesting, streams --------------------------------------------------------------------------------


def test_E13_a_refused_step_fails_the_ensemble_while_others_run(server: Server, gate: Gate):
    """Beside a running step Triton never answers, and before one it ends; nbtriton does neither."""
    server.load(echo(), gated(gate), name="slow")
    server.load(echo("sequence_batching {}"), plus(1), name="strict")
    message = "must specify a non-zero or non-empty correlation ID"
    for first, second in (("slow", "strict"), ("strict", "slow")):
        server.load(fork(first, second), name="e")
        future = server.submit("e", {"X": ones()})
        with pytest.raises(InvalidArgumentError, match=message):
            future.result(WAIT_S)
    gate.open()
    server.infer("slow", {"IN": ones()}, request_id="last")
    # The first one's sibling ran; the second one's never began.
    assert len(gate.batches) == 2


@pytest.mark.parametrize("swapped", [False, True])
def test_E13_steps_that_are_ready_together_are_checked_before_one_begins(
    server: Server, swapped: bool
):
    log: list[str] = []
    wide = echo().replace("dims: 4", "dims: -1")
    server.load(wide, lambda IN: log.append("wide") or {"OUT": IN}, name="wide")
    server.load(echo(), lambda IN: log.append("four") or {"OUT": IN}, name="four")
    members = ("four", "wide") if swapped else ("wide", "four")
    server.load(fork(*members, dims="FP32[-1]"), name="e")
    with pytest.raises(InvalidArgumentError, match="shape for input 'IN' for model 'four'"):
        server.infer("e", {"X": np.ones((1, 3), np.float32)})
    assert not log
    counts = fields(server.statistics(), "e")
    assert (counts["fail"], counts["success"]) == (2, 0)  # twice, as nothing runs any more (T4)
    server.infer("e", {"X": ones()})
    assert sorted(log) == ["four", "wide"]


def test_nested_ensembles(server: Server):
    server.load(echo(), plus(1), name="inc")
    server.load(echo(), times(2), name="twice")
    server.load(chain("inc", "twice"), name="inner")
    server.load(chain("inner", "inner", "inc"), name="outer")
    assert server.infer("outer", {"X": row(1)})["Y"][0, 0] == ((1 + 1) * 2 + 1) * 2 + 1
    assert server.submit("outer", {"X": row(1)}).result(WAIT_S)["Y"][0, 0] == 11
    assert fields(server.statistics(), "inner")["success"] == 4


@pytest.mark.parametrize("count", [0, 1, 4])
def test_E14_every_response_of_a_decoupled_step_runs_the_steps_behind_it(
    server: Server, count: int
):
    server.load(echo("model_transaction_policy { decoupled: true }"), streaming(), name="many")
    server.load(echo(), plus(10), name="after")
    server.load(chain("many", "after"), name="e")
    values = sorted(float(r["Y"][0, 0]) for r in server.stream("e", {"X": row(count)}))
    assert values == [10.0 + n for n in range(count)]
    counts = fields(server.statistics(), "after")
    assert counts["success"] == count


def test_E14_a_later_error_ends_the_stream(server: Server):
    server.load(echo("model_transaction_policy { decoupled: true }"), streaming(), name="many")

    def picky(IN):
        if IN[0, 0] == 2:
            raise ValueError("not the third")
        return {"OUT": IN}

    server.load(echo(), picky, name="after")
    server.load(chain("many", "after"), name="e")
    got = []
    with pytest.raises(ModelError, match=r"in ensemble 'e', .*not the third"):
        for response in server.stream("e", {"X": row(5)}):
            got.append(float(response["Y"][0, 0]))
    assert got == sorted(got)
    assert 2.0 not in got
    counts = fields(server.statistics(), "e")
    # Once more if the stream was over by then.
    assert (counts["fail"] in (1, 2), counts["success"]) == (True, 0)


def test_E14_the_final_response_never_overtakes_one_before_it(server: Server):
    """The first response is still with its receiver when the last one is ready elsewhere."""
    receiver, calls = Gate(), []
    server.load(echo("model_transaction_policy { decoupled: true }"), streaming(), name="many")
    server.load(echo("instance_group { count: 2 kind: KIND_CPU }"), plus(10), name="after")
    server.load(chain("many", "after"), name="e")

    def receive(response, final):
        calls.append(("begin", len(response.outputs), final))
        if len(calls) == 1:
            receiver.stand([])
        calls.append(("end", len(response.outputs), final))

    future = server.submit("e", {"X": row(3)}, on_response=receive)
    receiver.wait_entered()
    # The other instance is through with the other two responses when it takes this one.
    server.submit("after", {"IN": ones()}).result(WAIT_S)
    assert calls == [("begin", 1, False)]
    receiver.open()
    future.result(WAIT_S)
    assert [call[0] for call in calls] == ["begin", "end"] * (len(calls) // 2)
    assert [call[1] for call in calls if call[0] == "end"][:3] == [1, 1, 1]
    assert [call[2] for call in calls if call[0] == "end"][-1] is True
    assert sum(call[2] for call in calls if call[0] == "end") == 1


# -- E6: a step changes whose sequence it is ---------------------------------------------------------


def relabelling(parameters: dict) -> type:
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())], parameters=parameters
                )
                for r in requests
            ]

    return TritonPythonModel


def test_E6_steps_behind_get_the_sequence_that_a_response_names(server: Server):
    seen = []

    class Reader:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            seen.extend((r.correlation_id(), r.flags()) for r in requests)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                for r in requests
            ]

    server.load(echo(), Reader, name="reader")
    server.load(echo(), relabelling({"sequence_id": 42, "sequence_end": True}), name="writer")
    server.load(chain("reader", "writer", "reader"), name="e")
    result = server.infer("e", {"X": ones()}, sequence_id=7, sequence_start=True)
    assert seen == [(7, 1), (42, 2)]
    # The last step said nothing of its own: its response is the request's again.
    assert result.parameters["sequence_id"] == 7
    server.load(chain("reader", "writer"), name="e")
    result = server.infer("e", {"X": ones()}, sequence_id=7, sequence_start=True)
    assert result.parameters == {
        "sequence_id": 42,
        "sequence_start": False,
        "sequence_end": True,
    }


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"sequence_id": True},
            (
                "in ensemble 'e', expected parameter 'sequence_id' to be "
                "TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
            ),
        ),
        (
            {"sequence_start": 1},
            "in ensemble 'e', expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL",
        ),
    ],
    ids=["id", "start"],
)
def test_E6_parameters_of_a_wrong_type(server: Server, parameters: dict, text: str):
    server.load(echo(), relabelling(parameters), name="writer")
    server.load(chain("writer", "writer"), name="e")
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("e", {"X": ones()})
    assert caught.value.message == text
    assert server.models()[0].executing == 0


# -- E16 to E18: members come and go -----------------------------------------------------------------


def test_E17_a_member_that_is_replaced_in_flight_finishes_what_it_began(server: Server, gate: Gate):
    """The versions a request started with are the ones it ends with."""
    server.load(echo(), gated(gate), name="first")
    server.load(echo(), plus(1), name="second")
    server.load(chain("first", "second"), name="e")
    old = server.submit("e", {"X": row(1)})
    gate.wait_entered()
    server.load(echo(), plus(100), name="second")
    new = server.submit("e", {"X": row(1)})
    gate.open()
    assert old.result(WAIT_S)["Y"][0, 0] == 2
    assert new.result(WAIT_S)["Y"][0, 0] == 101


def test_E17_a_member_that_is_unloaded_in_flight_finishes_what_it_began(server: Server, gate: Gate):
    finalized = threading.Event()

    class Second:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + 1)])
                for r in requests
            ]

        def finalize(self):
            finalized.set()

    server.load(echo(), gated(gate), name="first")
    server.load(echo(), Second, name="second")
    server.load(chain("first", "second"), name="e")
    flying = server.submit("e", {"X": row(1)})
    gate.wait_entered()
    assert server.unload("second") is False  # a request in flight still needs it
    with pytest.raises(NotFoundError):
        server.infer("second", {"IN": ones()})
    assert not finalized.is_set()
    gate.open()
    assert flying.result(WAIT_S)["Y"][0, 0] == 2
    assert finalized.wait(WAIT_S)


def test_E16_tensors_of_different_streams_cannot_meet(server: Server):
    server.load(echo("model_transaction_policy { decoupled: true }"), streaming(), name="many")
    server.load(JOIN % "", lambda A, B: {"OUT": A + B}, name="join")
    config = ensemble_text(
        ("many", {"IN": "X"}, {"OUT": "a"}),
        ("many", {"IN": "X"}, {"OUT": "b"}),
        ("join", {"A": "a", "B": "b"}, {"OUT": "Y"}),
        inputs={"X": FP32},
        outputs={"Y": FP32},
    )
    with pytest.raises(ConfigError, match="receives inputs originated from different decoupled"):
        server.load(config, name="e")


def test_E18_an_ensemble_follows_its_members_out_of_service_and_back(server: Server):
    server.load(echo(), plus(1), name="inc")
    server.load(chain("inc"), name="inner")
    server.load(chain("inner"), name="outer")
    server.unload("inc")
    for name in ("inner", "outer"):
        assert not server.is_ready(name)
        with pytest.raises(NotFoundError, match=f"'{name}' has no available versions"):
            server.infer(name, {"X": ones()})
    states = {model.name: model.state for model in server.models()}
    assert states == {"inner": "UNAVAILABLE", "outer": "UNAVAILABLE"}
    server.load(echo(), plus(5), name="inc")
    assert server.infer("outer", {"X": row(1)})["Y"][0, 0] == 6


def test_E18_a_member_that_no_longer_fits_takes_the_ensemble_out(server: Server):
    server.load(echo(), plus(1), name="inc")
    server.load(chain("inc"), name="e")
    server.load(
        echo(max_batch_size=2), plus(1), name="inc"
    )  # the model is fine, the ensemble is not
    assert server.infer("inc", {"IN": ones()})["OUT"][0, 0] == 2
    (model,) = (model for model in server.models() if model.name == "e")
    assert model.state == "UNAVAILABLE"
    assert "maximum batch size" in model.reason


def test_L19_unload_dependents_spares_what_another_ensemble_uses(server: Server):
    for name in ("own", "shared"):
        server.load(echo(), plus(1), name=name)
    server.load(chain("own", "shared"), name="e")
    server.load(chain("shared"), name="other")
    server.unload("e")
    assert server.engine.inspection.model_names() == ("other", "own", "shared")
    server.load(chain("own", "shared"), name="e")
    server.unload("e", unload_dependents=True)
    assert server.engine.inspection.model_names() == ("other", "shared")


@pytest.mark.parametrize(
    ("steps", "text"),
    {
        "V112": (
            [("absent", {"IN": "X"}, {"OUT": "Y"}), ("inc", {"IN": "X"}, {"OUT": "Z"})],
            "ensemble e contains models that are not available or ambiguous: absent",
        ),
        "V118": (
            [("inc", {"NI": "X", "IN": "X"}, {"OUT": "Y"})],
            "in ensemble e, ensemble tensor X is mapping to non-existing input NI in model inc",
        ),
        "V119": (
            [("two", {"A": "X"}, {"OUT": "Y"})],
            "in ensemble e, input B in model two is not mapped to any ensemble tensors",
        ),
    }.values(),
    ids=["V112", "V118", "V119"],
)
def test_an_ensemble_that_does_not_fit_its_members_is_refused(server: Server, steps, text: str):
    server.load(echo(), plus(1), name="inc")
    server.load(JOIN % "", lambda A, B: {"OUT": A + B}, name="two")
    outputs = {"Y": FP32, **({"Z": FP32} if len(steps) > 1 else {})}
    with pytest.raises(ConfigError) as caught:
        server.load(ensemble_text(*steps, inputs={"X": FP32}, outputs=outputs), name="e")
    assert caught.value.message == text
    assert server.engine.inspection.model_names() == ("inc", "two")


def test_a_cycle_is_refused(server: Server):
    server.load(JOIN % "", lambda A, B: {"OUT": A + B}, name="two")
    config = ensemble_text(
        ("two", {"A": "X", "B": "b"}, {"OUT": "a"}),
        ("two", {"A": "X", "B": "a"}, {"OUT": "b"}),
        ("two", {"A": "a", "B": "b"}, {"OUT": "Y"}),
        inputs={"X": FP32},
        outputs={"Y": FP32},
    )
    with pytest.raises(ConfigError) as caught:
        server.load(config, name="e")
    assert caught.value.hint == "the steps wait for each other in a cycle"
    assert not server.is_ready("e")


def test_64_ensemble_requests_in_flight(server: Server, gate: Gate):
    server.load(echo("dynamic_batching {}"), gated(gate, lambda value: value + 1), name="inc")
    server.load(echo(), times(2), name="twice")
    server.load(chain("inc", "twice", "inc"), name="e")
    futures = [server.submit("e", {"X": row(n)}) for n in range(64)]
    gate.open()
    assert [float(f.result(WAIT_S)["Y"][0, 0]) for f in futures] == [
        (n + 1) * 2 + 1 for n in range(64)
    ]
    assert fields(server.statistics(), "e")["success"] == 64
    # Composing models batch across the requests of an ensemble (E1).
    assert fields(server.statistics(), "inc")["execution_count"] < 128


def test_outputs_stand_in_tritons_order():
    """That of its hash table: tritonserver was seen to answer SEEN, OUT."""
    text = ensemble_text(
        ("m", {"IN": "X"}, {"OUT": "OUT"}),
        ("m", {"IN": "OUT"}, {"OUT": "SEEN"}),
        inputs={"X": FP32},
        outputs={"OUT": FP32, "SEEN": FP32},
    )
    with Server() as server:
        server.load(echo(), lambda IN: {"OUT": IN}, name="m")
        server.load(text, name="e")
        assert list(server.infer("e", {"X": ones()})) == ["SEEN", "OUT"]


def test_inputs_stand_in_the_order_in_which_they_were_sent():
    seen = []

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            seen.extend([tensor.name() for tensor in r.inputs()] for r in requests)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ones())]) for _ in requests]

    text = echo().replace("input {", 'input { name: "A" data_type: TYPE_FP32 dims: 4 } input {', 1)
    with Server() as server:
        server.load(text, TritonPythonModel, name="m")
        server.infer("m", {"IN": ones(), "A": ones()})
        server.infer("m", {"A": ones(), "IN": ones()})
    assert seen == [["IN", "A"], ["A", "IN"]]


def test_a_step_gets_its_inputs_by_their_names_in_every_process(server: Server):
    """Protobuf's maps have no order of their own."""
    names = [f"I{number}" for number in range(9)]
    seen: list[list[str]] = []

    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            seen.extend([tensor.name() for tensor in request.inputs()] for request in requests)
            out = pb_utils.Tensor("OUT", ones())
            return [pb_utils.InferenceResponse([out]) for _ in requests]

    inputs = "".join(f'input {{ name: "{n}" data_type: TYPE_FP32 dims: 4 }} ' for n in names)
    output = 'output { name: "OUT" data_type: TYPE_FP32 dims: 4 } '
    server.load(f"max_batch_size: 8 {inputs}{output}", TritonPythonModel, name="many")
    step = ("many", dict.fromkeys(names, "X"), {"OUT": "Y"})
    text = ensemble_text(step, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"})
    server.load(text, name="e")
    server.infer("e", {"X": ones()})
    assert seen == [names]


def test_an_input_that_cannot_be_reshaped_fails_its_request_alone(server: Server):
    torch = pytest.importorskip("torch")

    class Lost(torch.Tensor):
        """As a tensor on a device that has failed."""

        def reshape(self, *shape):
            raise RuntimeError("the device is lost")

    server.load(echo(max_batch_size=0), lambda IN: {"OUT": IN}, name="m")
    server.load(chain("m"), name="e")
    with pytest.raises(TritonError, match=r"in ensemble 'e', .*the device is lost"):
        server.infer("e", {"X": torch.ones(1, 4).as_subclass(Lost)})
    assert server.infer("e", {"X": ones()})["Y"].shape == (1, 4)
    assert server.unload("e", timeout_s=WAIT_S)
