"""Cases written by hand: what nbtriton does differently on purpose, shown on both servers."""

from __future__ import annotations

import json

import numpy as np

from tests.differential import actors, sources
from tests.differential.generate import planned, stream_model
from tests.differential.harness import Answer, Scenario, Send
from tests.differential.scenarios import batcher, ensemble, f32, python, sized, text

__all__ = ["CASES"]

TWICE = ("IN FP32 [-1]",), ("OUT FP32 [-1]", "TIMES INT32 [1]")
CACHE = "response_cache { enable: true }"


def kept(values: np.ndarray, times: int, *outputs: str) -> Answer:
    """Return the answer of the counting model after this number of executions."""
    made = {
        "OUT": ("FP32", list(values.shape), values.ravel().tolist()),
        "TIMES": ("INT32", [values.shape[0], 1], [times] * values.shape[0]),
    }
    return Answer({name: made[name] for name in outputs or made})


CACHED = python("cached_by_hand", actors.COUNTING, *TWICE, CACHE)
CACHED_OUTPUTS = python("cached_outputs", actors.COUNTING, *TWICE, CACHE)
CACHED_ERRORS = python("cached_errors", actors.COUNTING, *TWICE, CACHE)
FLAT = f32(1, 4)
SILENT = python("silent", actors.SILENT, ("IN FP32 [1]",), ("OUT FP32 [1]",))
ANSWERS_TWICE = python("answers_twice", sources.TWICE, ("IN FP32 [1]",), ("OUT FP32 [1]",))
SAYS = "Failed to process the request(s) for model 'answers_twice_0', message: "
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
SENT_ON = python("sent_on", sources.SENT_ON, ("SAME FP32 [4]",), ("SAME FP32 [4]",))
EMPTY_BATCH = python("empty_batch", sources.IDENTITY, ("IN FP32 [-1]",), ("OUT_IN FP32 [-1]",))
NEEDED = python(
    "needed", sources.IDENTITY,
    ("A FP32 [1]", "B FP32 [1]", "C FP32 [1] optional: true"), ("OUT_A FP32 [1]", "OUT_C FP32 [1]"),
)  # fmt: skip
NEEDS = ensemble(
    "needs", ("X FP32 [1]", "Y FP32 [1] optional: true"), ("Z FP32 [1]",),
    "needed: A=X,B=Y,C=X -> OUT_A=Z",
)  # fmt: skip
DOUBLE = python("doubles", sources.DOUBLE, ("IN FP32 [1]",), ("OUT FP32 [1]",))
APART = ensemble(
    "apart", ("X FP32 [1]", "Y FP32 [1]"), ("A FP32 [1]", "B FP32 [1]"),
    "doubles: IN=X -> OUT=A", "doubles: IN=Y -> OUT=B",
)  # fmt: skip
WIDE = python("wide", sources.DOUBLE, ("IN FP32 [-1]",), ("OUT FP32 [-1]",))
FOUR = python("four", sources.DOUBLE, ("IN FP32 [4]",), ("OUT FP32 [4]",))
LISTED_TWICE = python(
    "listed_twice", sources.DOUBLE,
    ("IN FP32 [1]", "IN INT32 [2] optional: true"), ("OUT FP32 [1]", "OUT INT32 [2]"),
)  # fmt: skip
TOGETHER = tuple(
    ensemble(
        f"{one}_and_{other}", ("X FP32 [-1]",), ("A FP32 [-1]", "B FP32 [-1]"),
        f"{one}: IN=X -> OUT=A", f"{other}: IN=X -> OUT=B",
    )
    for one, other in (("wide", "four"), ("four", "wide"))
)  # fmt: skip
MAYBE = python(
    "maybes", actors.MAYBE,
    ("A FP32 [1]", "B FP32 [1] optional: true"), ("OUT FP32 [1]", "SUM FP32 [1]"),
)  # fmt: skip
PARTLY = ensemble(
    "partly", ("X FP32 [1]", "Y FP32 [1] optional: true"), ("U FP32 [1]", "V FP32 [1]"),
    "maybes: A=X,B=Y -> OUT=U,SUM=V",
)  # fmt: skip
EXPIRES = batcher(
    "expires",
    "dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } }",
    1,
)
STREAM = stream_model("by_hand")
CALLER = python("caller", actors.CALLS, ("SCRIPT STRING [1]",), ("REPORT STRING [1]",), mbs=0)
CALL = {
    "model": STREAM.name,
    "inputs": [["PLAN", "int32", [[10, -1, 61]]], ["HOW", "int32", [[0]]]],
}
REPORT = [
    {"OUT": ["int32", [1, 1], [10]]}, {"code": 1, "error": "planned"},
    {"OUT": ["int32", [1, 1], [61]]}, {},
]  # fmt: skip
LACKS = (
    "[request id: <id_unknown>] expected all required inputs for "
    "model 'needed'. Got input(s) ['C','A'], but missing required input(s) ['B']. "
    "Please provide all required input(s)."
)
RAN = {
    **dict.fromkeys(("inference_count", "execution_count", "success", "queue"), 1),
    **dict.fromkeys(("compute_input", "compute_infer", "compute_output"), 1),
    **{f"batch 1 {part}": 1 for part in ("compute_input", "compute_infer", "compute_output")},
}
ONE_OF_FOUR = {**{name: RAN[name] for name in RAN if "batch" not in name}, "execution_count": 4}
NOTHING = {"inference_count": 0, "execution_count": 0, "success": 0, "queue": 0, "compute_input": 0,
           "compute_infer": 0, "compute_output": 0}  # fmt: skip
NO_BATCHES = {f"batch 1 {part}": 0 for part in ("compute_input", "compute_infer", "compute_output")}
ONCE_MORE = {
    "inference_count": 2, "execution_count": 2, "compute_input": 2, "compute_infer": 2,
    "compute_output": 2, "cache_hit": 0, "cache_miss": 2,
}  # fmt: skip

CASES = [
    Scenario(
        "an input is written to and sent on", (SENT_ON,), (Send({"SAME": FLAT}),),
        deliberate="one-memory",
        instead={0: Answer({"SAME": ("FP32", [1, 4], [1.0, 2.0, 3.0, 4.0])})},
    ),
    Scenario(
        "A6 a required input is missing", (NEEDED,), (Send({"A": f32(1, 1), "C": f32(1, 1)}),),
        deliberate="required-inputs", instead={0: Answer(status="INVALID_ARG", message=LACKS)},
        instead_counts={"needed": {**NOTHING, **NO_BATCHES}},
    ),
    Scenario("A16 tensors that are listed twice", (LISTED_TWICE,), (Send({"IN": f32(1, 1)}),)),
    *(
        Scenario(
            f"E13 one of two steps that are ready is refused: {both.name}", (WIDE, FOUR, both),
            (Send({"X": f32(1, 3)}), Send({"X": f32(1, 4)})), one_by_one=True,
        )
        for both in TOGETHER
    ),
    Scenario(
        "E10 a required input of a step is missing", (NEEDED, NEEDS), (Send({"X": f32(1, 1)}),),
        deliberate="required-inputs",
        instead={0: Answer(status="INVALID_ARG", message=f"in ensemble 'needs', {LACKS}")},
        instead_counts={
            "needed": {**NOTHING, **NO_BATCHES}, "needs": {**NOTHING, **NO_BATCHES, "fail": 2},
        },
    ),
    Scenario(
        "K2 the same bytes in another shape", (CACHED,),
        (Send({"IN": FLAT}), Send({"IN": FLAT.reshape(2, 2)})),
        one_by_one=True, deliberate="cache-key", instead={1: kept(FLAT.reshape(2, 2), 2)},
        instead_counts={"cached_by_hand": {
            **ONCE_MORE, "inference_count": 3,
            **{f"batch 2 {part}": 1 for part in ("compute_input", "compute_infer", "compute_output")},
        }},
    ),
    Scenario(
        "K2 other outputs of the same request", (CACHED_OUTPUTS,),
        (Send({"IN": FLAT}), Send({"IN": FLAT}, outputs=("OUT",)), Send({"IN": FLAT})),
        one_by_one=True, deliberate="cache-key", instead={1: kept(FLAT, 2, "OUT")},
        instead_counts={"cached_outputs": {
            **ONCE_MORE, "cache_hit": 1,
            **{f"batch 1 {part}": 2 for part in ("compute_input", "compute_infer", "compute_output")},
        }},
    ),
    Scenario(
        "K5 an error that was answered before", (CACHED_ERRORS,),
        tuple(Send({"IN": f32(1, 2, start=-5)}) for _ in range(2)),
        one_by_one=True, deliberate="cache-errors",
        instead={n: Answer(status="INTERNAL", message=f"no {n + 1}") for n in range(2)},
        instead_counts={"cached_errors": {
            **ONCE_MORE, "cache_miss": 2,
            **{f"batch 1 {part}": 2 for part in ("compute_input", "compute_infer", "compute_output")},
        }},
    ),
    Scenario(
        "Y2 a model that answers nothing", (SILENT,), (Send({"IN": f32(1, 1)}, patience_s=1.5),),
        deliberate="unanswered-requests",
        instead={0: Answer(
            status="INTERNAL",
            message="The model finished with the request without sending a final response.",
        )},
    ),
    Scenario(
        "a second response of a model that is not decoupled", (ANSWERS_TWICE,),
        tuple(Send({"IN": f32(1, 1, start=how)}) for how in range(4)),
        one_by_one=True, deliberate="second-responses",
        instead={
            0: Answer(status="INTERNAL", message=f"{SAYS}TritonModelException: {SECOND}\n\nAt:\n  model.py(18): execute\n"),
            1: Answer(status="INTERNAL", message=f"{SAYS}ValueError: after its response\n\nAt:\n  model.py(20): execute\n"),
            2: Answer(status="INTERNAL", message=f"{SAYS}{SECOND}"),
        },
        instead_counts={"answers_twice": {**ONE_OF_FOUR, "fail": 3}},
    ),
    Scenario(
        "A14 a batch of none, of empty items", (EMPTY_BATCH,),
        (Send({"IN": f32(0, 0)}, patience_s=1.5),),
        deliberate="empty-batches",
        instead={0: Answer(
            status="INVALID_ARG",
            message="[request id: <id_unknown>] inference request batch-size must be >= 1 for "
            "'empty_batch'",
        )},
        instead_counts={"empty_batch": {**NOTHING, **NO_BATCHES}},
    ),
    Scenario(
        "B6 errors in the stream of a call", (STREAM, CALLER),
        (Send({"SCRIPT": text(json.dumps([{"how": "stream", "calls": [CALL]}]).encode())}),),
        deliberate="bls-stream-errors",
        instead={0: Answer({"REPORT": ("BYTES", [1], [json.dumps([[REPORT]], sort_keys=True).encode()])})},
    ),
    Scenario(
        "Q9 an expired request gets its error at once", (EXPIRES,),
        (sized(1, gate=True), sized(1, takes_s=(0.09, 0.4))),
        batches=True, hold_s=0.9, deliberate="queue-latency",
    ),
    Scenario(
        "E4 an input that nothing needs", (DOUBLE, APART),
        (Send({"X": f32(1, 1, start=2), "Y": f32(1, 1)}, outputs=("A",)),),
        deliberate="ensemble-pruned-inputs",
        instead={0: Answer(
            {"A": ("FP32", [1, 1], [4.0])},
            {"sequence_id": 0, "sequence_start": False, "sequence_end": False},
        )},
        instead_counts={"doubles": RAN, "apart": {**RAN, "fail": 0}},
    ),
    Scenario(
        "E11 one of two outputs is missing", (MAYBE, PARTLY),
        (
            Send({"X": f32(1, 1)}), Send({"X": f32(1, 1)}, outputs=("V",)),
            Send({"X": f32(1, 1), "Y": f32(1, 1)}, correlation_id=3),
        ),
        one_by_one=True,
    ),
    Scenario(
        "PB34 errors in a stream", (STREAM,),
        tuple(Send(planned(plan, 0), stream=True) for plan in ([-1], [1, -1, 2], [-1, -1], [])),
        one_by_one=True,
    ),
    Scenario(
        "Y4 the last response is the final one", (STREAM,),
        tuple(Send(planned(plan, 1), stream=True) for plan in ([1], [1, 2], [1, -1])),
        one_by_one=True,
    ),
]  # fmt: skip
