"""The cases: models, traffic, and which rule of Triton's each of them shows.

The identifiers are those of docs/rules (S2: the default scheduler never merges,
A9: batch over the maximum, E13: an ensemble's error prefix, ...).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.differential import sources
from tests.differential.harness import Model, Scenario, Send

__all__ = ["COMPLETED", "COMPLETION", "MODELS", "SCENARIOS"]


def tensors(field: str, *specs: str) -> str:
    """Write ``NAME TYPE dims [extra]`` lines as pbtxt."""
    lines = []
    for spec in specs:
        name, datatype, dims, *extra = spec.split(" ", 3)
        lines.append(
            f'{field} {{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} '
            f"{extra[0] if extra else ''} }}"
        )
    return "\n".join(lines)


def python(
    name: str,
    source: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    rest: str = "",
    mbs: int = 8,
) -> Model:
    config = "\n".join(
        [
            f'name: "{name}"',
            'backend: "python"',
            f"max_batch_size: {mbs}" if mbs else "",
            tensors("input", *inputs),
            tensors("output", *outputs),
            rest,
        ]
    )
    return Model(name, config, source)


def batcher(name: str, rest: str, mbs: int = 8, *inputs: str) -> Model:
    return python(
        name,
        sources.BATCHES,
        inputs or ("IN FP32 [1]",),
        ("SEEN STRING [1]", "INPUTS STRING [1]"),
        rest,
        mbs,
    )


def ensemble(
    name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], *steps: str, mbs: int = 8
) -> Model:
    """Write steps as ``model: IN=tensor,.. -> OUT=tensor,..``."""
    blocks = []
    for step in steps:
        model, maps = step.split(": ")
        blocks.append(f'step {{ model_name: "{model}" model_version: -1')
        for side, pairs in zip(("input_map", "output_map"), maps.split(" -> "), strict=True):
            for pair in pairs.split(","):
                key, value = pair.split("=")
                blocks.append(f'{side} {{ key: "{key}" value: "{value}" }}')
        blocks.append("}")
    config = "\n".join(
        [
            f'name: "{name}"',
            'platform: "ensemble"',
            f"max_batch_size: {mbs}" if mbs else "",
            tensors("input", *inputs),
            tensors("output", *outputs),
            "ensemble_scheduling {",
            *blocks,
            "}",
        ]
    )
    return Model(name, config)


def f32(*shape: int, start: float = 0.0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def text(*values: bytes, shape: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=object).reshape(shape or (len(values),))


# One execution takes this long: time for the scheduler to handle waiting requests meanwhile.
PACE = {"pace_ms": 30}


def sized(size: int, **more: Any) -> Send:
    return Send({"IN": f32(size, 1)}, parameters=PACE, **more)


def sizes(*batch_sizes: int, **more: Any) -> tuple[Send, ...]:
    return tuple(sized(size, **more) for size in batch_sizes)


# Keeps the instance busy while the next requests arrive.
GATE = sized(1, gate=True)

# --- models ------------------------------------------------------------------------------------

ADD_SUB = python(
    "add_sub", sources.ADD_SUB,
    ("INPUT0 FP32 [4]", "INPUT1 FP32 [4]"), ("OUTPUT0 FP32 [4]", "OUTPUT1 FP32 [4]"),
)  # fmt: skip
ADD_SUB_PLAIN = python(
    "add_sub_plain", sources.ADD_SUB,
    ("INPUT0 FP32 [-1,2]", "INPUT1 FP32 [-1,2]"), ("OUTPUT0 FP32 [-1,2]", "OUTPUT1 FP32 [-1,2]"),
    mbs=0,
)  # fmt: skip
DTYPES = (
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
    "FP16", "FP32", "FP64", "STRING",
)  # fmt: skip
EVERY_TYPE = python(
    "every_type", sources.IDENTITY,
    tuple(f"{d} {d} [-1]" for d in DTYPES), tuple(f"OUT_{d} {d} [-1]" for d in DTYPES),
)  # fmt: skip
STRINGS = python("strings", sources.IDENTITY, ("S STRING [-1]",), ("OUT_S STRING [-1]",))
STRINGS_PLAIN = python(
    "strings_plain", sources.IDENTITY, ("S STRING [2,2]",), ("OUT_S STRING [2,2]",), mbs=0
)
RESHAPED = python(
    "reshaped", sources.REQUEST,
    ("IN FP32 [1] reshape { shape: [] }",), ("REPORT STRING [1]", "OUT FP32 [1] reshape { shape: [] }"),
)  # fmt: skip
RESHAPED_VARIABLE = python(
    "reshaped_variable", sources.REQUEST,
    ("IN FP32 [-1,2] reshape { shape: [-1,1,2] }",), ("REPORT STRING [1]", "OUT FP32 [-1,1,2]"),
)  # fmt: skip
OPTIONAL = python(
    "optional", sources.IDENTITY,
    ("A FP32 [1]", "B FP32 [1] optional: true"), ("OUT_A FP32 [1]", "OUT_B FP32 [1]"),
)  # fmt: skip
FAILING = python(
    "failing", sources.FAILURES, ("IN FP32 [1]",), ("OUT FP32 [1]",), "dynamic_batching { }"
)
NAMED_GROUP = python(
    "named_group", sources.FAILURES, ("IN FP32 [1]",), ("OUT FP32 [1]",),
    'instance_group { name: "workers" count: 1 kind: KIND_CPU }',
)  # fmt: skip
ANSWERING = python("answering", sources.ANSWERS, ("IN FP32 [1]",), ("OUT FP32 [1]",))
NO_EXECUTE = python("no_execute", sources.NOTHING, ("IN FP32 [1]",), ("OUT FP32 [1]",))
REPORTING = python(
    "reporting", sources.REQUEST, ("IN FP32 [2]",), ("REPORT STRING [1]", "OUT FP32 [2]"), mbs=0
)
ARGUMENTS = python(
    "arguments", sources.ARGUMENTS, ("IN FP32 [2]",), ("REPORT STRING [1]",),
    'parameters { key: "k" value { string_value: "v" } }', mbs=0,
)  # fmt: skip
API = python("api", sources.API, ("IN FP32 [1]",), ("REPORT STRING [1]",), mbs=0)
TRANSPOSED = python("transposed", sources.TRANSPOSED, ("IN FP32 [2,2]",), ("OUT FP32 [2,2]",))
IN_PLACE = python(
    "in_place", sources.IN_PLACE, ("IN FP32 [2,2]",), ("OUT FP32 [2,2]", "FLAGS BOOL [4]")
)
MEMORY = ensemble(
    "memory", ("X FP32 [2,2]",), ("T FP32 [2,2]", "A FP32 [2,2]", "FLAGS BOOL [4]", "B FP32 [2,2]"),
    "transposed: IN=X -> OUT=T", "in_place: IN=T -> OUT=A,FLAGS=FLAGS", "in_place: IN=T -> OUT=B",
)  # fmt: skip
SENDER = python("sender", sources.SENDER, ("IN FP32 [1]",), ("OUT FP32 [1]",))
AUTO = Model("auto", 'backend: "python"', sources.AUTO_COMPLETE)
HALF_AUTO = Model(
    "half_auto",
    'backend: "python" max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: [4] }',
    sources.AUTO_COMPLETE.replace("set_max_batch_size(8)", "set_max_batch_size(4)"),
)

PLAIN = batcher("b_default", "")
DYNAMIC = batcher("b_dynamic", "dynamic_batching { }")
PREF_4 = batcher("b_pref_4", "dynamic_batching { preferred_batch_size: [4] }")
PREF_2_6 = batcher("b_pref_2_6", "dynamic_batching { preferred_batch_size: [2,6] }")
# Delays far above the time in which a busy machine accepts a request.
PREF_4_DELAY = batcher(
    "b_pref_4_delay",
    "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 3000000 }",
)
PREF_2_4_DELAY = batcher(
    "b_pref_2_4_delay",
    "dynamic_batching { preferred_batch_size: [2,4] max_queue_delay_microseconds: 3000000 }",
)
DELAY = batcher("b_delay", "dynamic_batching { max_queue_delay_microseconds: 3000000 }")
# A delay that has passed long before the gate opens.
SHORT_DELAY = batcher(
    "b_short_delay",
    "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 100000 }",
)
# Delays that nothing waits for: longer than a client waits for its answer.
PREF_4_LONG = batcher(
    "b_pref_4_long",
    "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 60000000 }",
)
LONG = batcher("b_long", "dynamic_batching { max_queue_delay_microseconds: 60000000 }")
UNBATCHED = batcher("b_mbs_0", "dynamic_batching { max_queue_delay_microseconds: 60000000 }", 0)
TWO = batcher("b_two", "dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }")
TWO_PLAIN = batcher("b_two_default", "instance_group { count: 2 kind: KIND_CPU }")
VARIABLE = batcher("b_variable", "dynamic_batching { }", 8, "IN FP32 [-1]")
RAGGED = batcher("b_ragged", "dynamic_batching { }", 8, "IN FP32 [-1] allow_ragged_batch: true")
CHOICE = batcher(
    "b_optional", "dynamic_batching { }", 8,
    "IN FP32 [1]", "B FP32 [1] optional: true", "C FP32 [1] optional: true",
)  # fmt: skip
ORDERED = batcher(
    "b_ordered",
    "dynamic_batching { preserve_ordering: true } instance_group { count: 2 kind: KIND_CPU }",
    1,
)
BOUNDED = batcher("b_bounded", "dynamic_batching { default_queue_policy { max_queue_size: 2 } }", 1)
PRIORITIES = batcher(
    "b_priorities", "dynamic_batching { priority_levels: 3 default_priority_level: 2 }", 2
)
LEVELS = batcher(
    "b_levels",
    "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 800000 "
    "priority_levels: 2 default_priority_level: 2 }",
)
LEVELS_STEP = ensemble(
    "levels_step", ("IN FP32 [1]",), ("SEEN STRING [1]", "INPUTS STRING [1]"),
    "b_levels: IN=IN -> SEEN=SEEN,INPUTS=INPUTS",
)  # fmt: skip
DELAYED = batcher(
    "b_delayed",
    "dynamic_batching { default_queue_policy { timeout_action: DELAY "
    "default_timeout_microseconds: 200000 allow_timeout_override: true } }",
    2,
)
HASTY = batcher(
    "b_hasty",
    "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000000 "
    "allow_timeout_override: true } }",
)

DOUBLE_A = python("double_a", sources.DOUBLE, ("IN FP32 [2]",), ("OUT FP32 [2]",))
DOUBLE_B = python(
    "double_b", sources.DOUBLE, ("IN FP32 [2]",), ("OUT FP32 [2]",), "dynamic_batching { }"
)
CHAIN = ensemble(
    "chain", ("X FP32 [2]",), ("Y FP32 [2]",), "double_a: IN=X -> OUT=m", "double_b: IN=m -> OUT=Y"
)
FORK = ensemble(
    "fork", ("X FP32 [2]",), ("Y FP32 [2]", "Z FP32 [2]"),
    "double_a: IN=X -> OUT=Y", "double_b: IN=X -> OUT=Z",
)  # fmt: skip
ERRING = ensemble(
    "erring", ("X FP32 [1]",), ("Y FP32 [1]",),
    "answering: IN=X -> OUT=m", "failing: IN=m -> OUT=Y",
)  # fmt: skip
NESTED = ensemble("nested", ("X FP32 [1]",), ("Y FP32 [1]",), "erring: X=X -> Y=Y")
INHERITING = ensemble(
    "inheriting", ("X FP32 [2]",), ("T STRING [1]",), "reporting: IN=X -> REPORT=T", mbs=0
)
BATCHING_STEP = ensemble(
    "batching_step", ("X FP32 [1]",), ("SEEN STRING [1]",), "b_dynamic: IN=X -> SEEN=SEEN"
)
PLAIN_STEP = python("plain_step", sources.DOUBLE, ("IN FP32 [2]",), ("OUT FP32 [2]",), mbs=0)
MIXED_BATCH = ensemble(
    "mixed_batch", ("X FP32 [2]",), ("Y FP32 [2]",),
    "plain_step: IN=X -> OUT=m", "double_a: IN=m -> OUT=Y",
)  # fmt: skip

# --- results -----------------------------------------------------------------------------------

PAIR = {"INPUT0": f32(1, 4), "INPUT1": f32(1, 4, start=10)}
ONE = {"IN": f32(1, 1)}
EVERYTHING = {
    "BOOL": np.array([[True, False, True]]),
    **{
        d: np.array([[np.iinfo(d.lower()).min, 0, np.iinfo(d.lower()).max]], dtype=d.lower())
        for d in DTYPES[1:9]
    },
    "FP16": np.array([[0.5, -2, 65504]], dtype=np.float16),
    "FP32": np.array([[0.1, -np.inf, 1e38]], dtype=np.float32),
    "FP64": np.array([[0.1, 5e-324, 1e308]], dtype=np.float64),
    "STRING": text(b"", b"\x00\xff", "grün".encode(), shape=(1, 3)),
}

RESULTS = [
    Scenario("add_sub", (ADD_SUB,), (Send(PAIR),)),
    Scenario("add_sub static batch", (ADD_SUB,), (Send({k: v.repeat(3, 0) for k, v in PAIR.items()}),)),
    Scenario("add_sub request id", (ADD_SUB,), (Send(PAIR, request_id="r 1"),)),
    Scenario("add_sub one output", (ADD_SUB,), (Send(PAIR, outputs=("OUTPUT1",)),)),
    Scenario("add_sub without batching", (ADD_SUB_PLAIN,), (Send({"INPUT0": f32(3, 2), "INPUT1": f32(3, 2)}),)),
    Scenario("add_sub empty tensor", (ADD_SUB_PLAIN,), (Send({"INPUT0": f32(0, 2), "INPUT1": f32(0, 2)}),)),
    Scenario("every datatype", (EVERY_TYPE,), (Send(EVERYTHING),)),
    Scenario("strings", (STRINGS,), (
        Send({"S": text(b"a", b"", b"long " * 400, shape=(1, 3))}),
        Send({"S": text(b"1", b"2", b"3", b"4", shape=(2, 2))}),
        Send({"S": text(shape=(1, 0))}),
    ), one_by_one=True),
    Scenario("strings in two dimensions", (STRINGS_PLAIN,), (Send({"S": text(b"a", b"b", b"c", b"d", shape=(2, 2))}),)),
    Scenario("A12 reshape to a scalar", (RESHAPED,), (Send({"IN": f32(1, 1, start=5)}),)),
    Scenario("A12 reshape with a variable dimension", (RESHAPED_VARIABLE,), (Send({"IN": f32(1, 3, 2)}),)),
    Scenario("G6 optional input", (OPTIONAL,), (
        Send({"A": f32(1, 1)}), Send({"A": f32(1, 1), "B": f32(1, 1, start=3)}),
    ), one_by_one=True),
    Scenario("PB3 arguments of initialize", (ARGUMENTS,), (Send({"IN": f32(2)}),)),
    Scenario("pb_utils helpers", (API,), (Send({"IN": f32(1)}),)),
    Scenario("response sender", (SENDER,), (
        Send({"IN": f32(1, 1)}), Send({"IN": f32(1, 1, start=1)}), Send({"IN": f32(1, 1, start=2)}),
    ), one_by_one=True),
    Scenario("what a request carries", (REPORTING,), (
        Send({"IN": f32(2)}),
        Send({"IN": f32(2)}, request_id="abc", outputs=("REPORT",)),
        Send({"IN": f32(2)}, correlation_id=7, sequence_start=True),
        Send({"IN": f32(2)}, correlation_id=7, sequence_end=True, timeout_us=5_000_000),
        Send({"IN": f32(2)}, correlation_id=9, sequence_start=True, sequence_end=True, priority=2),
        Send({"IN": f32(2)}, parameters={"text": "t", "number": 3, "flag": True}),
    ), one_by_one=True),
]  # fmt: skip

COMPLETION = [
    Scenario("auto-complete", (AUTO,), (Send({"IN": f32(2, 4)}),)),
    Scenario("auto-complete beside a given config", (HALF_AUTO,), (Send({"IN": f32(2, 4)}),)),
]

# --- failures of model code --------------------------------------------------------------------


def failure(name: str, how: int, count: int = 1, model: Model = FAILING) -> Scenario:
    sends = tuple(Send({"IN": f32(1, 1, start=how)}) for _ in range(count))
    return Scenario(f"Y2 {name}", (model,), sends, one_by_one=True)


FAILED = [
    failure("nothing wrong", 0),
    failure("execute raises", 1),
    failure("execute raises, twice", 1, 2),
    failure("TritonModelException", 2),
    failure("too many responses", 3),
    failure("too few responses", 4),
    failure("a tuple", 5),
    failure("a number", 6),
    failure("a foreign element", 7),
    failure("a helper raises", 8),
    failure("an unsupported dtype", 9),
    failure("KeyError", 10),
    failure("named instance group", 1, 1, NAMED_GROUP),
    failure("no execute method", 0, 1, NO_EXECUTE),
    *(failure(f"TritonError code {how}", how, 1, ANSWERING) for how in range(10, 19)),
    failure("TritonError beside outputs", 19, 1, ANSWERING),
    failure("no outputs", 20, 1, ANSWERING),
    failure("an extra output", 21, 1, ANSWERING),
    failure("another dtype", 22, 1, ANSWERING),
    failure("another shape", 23, 1, ANSWERING),
    failure("not contiguous", 24, 1, ANSWERING),
    failure("objects that are no bytes", 25, 1, ANSWERING),
    failure("a scalar", 26, 1, ANSWERING),
    failure("an empty output", 27, 1, ANSWERING),
    failure("fixed-size bytes", 28, 1, ANSWERING),
]

# --- admission ---------------------------------------------------------------------------------

FOUR = f32(1, 4)


def refused(name: str, target: Model, inputs: dict[str, Any], **more: Any) -> Scenario:
    return Scenario(name, (target,), (Send(inputs, **more),))


ADMISSION = [
    refused("A1 unknown model", ADD_SUB, PAIR, model="nope"),
    refused("A1 unknown version", ADD_SUB, PAIR, version=7),
    refused("A2 version by number", ADD_SUB, PAIR, version=1),
    refused("A3 unknown output", ADD_SUB, PAIR, outputs=("OUTPUT0", "NOPE")),
    refused("A4 too few inputs", ADD_SUB, {"INPUT0": FOUR}),
    refused("A4 too few inputs, with an id", ADD_SUB, {"INPUT0": FOUR}, request_id="mine"),
    refused("A4 no inputs", ADD_SUB, {}),
    refused("A4 too few with optional inputs", OPTIONAL, {}),
    refused("A5 too many inputs", ADD_SUB, {**PAIR, "MORE": FOUR}),
    refused("A5 too many with optional inputs", OPTIONAL, {"A": f32(1, 1), "B": f32(1, 1), "Z": f32(1, 1)}),
    refused("A7 unknown input", ADD_SUB, {"INPUT0": FOUR, "NOPE": FOUR}),
    refused("A8 different batch sizes", ADD_SUB, {"INPUT0": FOUR, "INPUT1": f32(2, 4)}),
    refused("A8 no batch dimension", ADD_SUB, {"INPUT0": np.float32(1), "INPUT1": FOUR}),
    refused("A9 over max_batch_size", ADD_SUB, {"INPUT0": f32(9, 4), "INPUT1": f32(9, 4)}),
    refused("A10 datatype", ADD_SUB, {"INPUT0": FOUR.astype(np.int32), "INPUT1": FOUR}),
    refused("A10 datatype, strings expected", STRINGS, {"S": FOUR}),
    refused("A10 datatype, strings given", ADD_SUB, {"INPUT0": text(b"a", shape=(1, 1)), "INPUT1": FOUR}),
    refused("A11 shape", ADD_SUB, {"INPUT0": f32(1, 5), "INPUT1": FOUR}),
    refused("A11 rank", ADD_SUB, {"INPUT0": f32(1, 2, 2), "INPUT1": FOUR}),
    refused("A11 batch dimension forgotten", ADD_SUB, {"INPUT0": f32(4), "INPUT1": f32(4, 4)}),
    refused("A11 shape without batching", ADD_SUB_PLAIN, {"INPUT0": f32(2, 3), "INPUT1": f32(2, 2)}),
    refused("A14 batch of none", DOUBLE_A, {"IN": f32(0, 2)}),
]  # fmt: skip

# --- batching ----------------------------------------------------------------------------------


def busy(name: str, model: Model, *batch_sizes: int) -> Scenario:
    return Scenario(name, (model,), (GATE, *sizes(*batch_sizes)), batches=True)


def idle(name: str, model: Model, *sends: Send, **more: Any) -> Scenario:
    return Scenario(name, (model,), sends, batches=True, **more)


# Of delays of 3 s.
AT_ONCE = (0.0, 2.5)
WAITED = (2.9, 30.0)


def shaped(*widths: int) -> tuple[Send, ...]:
    return tuple(Send({"IN": f32(1, width)}) for width in widths)


BATCHING = [
    idle("S2 default scheduler, idle", PLAIN, *sizes(1)),
    busy("S2 default scheduler never merges", PLAIN, 1, 1, 1),
    busy("S2 static batches stay whole", PLAIN, 3, 2),
    idle("D9 no delay never waits", DYNAMIC, *sizes(1, takes_s=AT_ONCE)),
    busy("D9 all that wait", DYNAMIC, 1, 1, 1, 1, 1),
    busy("D3 never split", DYNAMIC, 1, 2, 4, 3, 1),
    busy("D3 exactly full", DYNAMIC, 4, 4, 1),
    busy("D3 a full request", DYNAMIC, 8, 8),
    busy("D7 preferred 4", PREF_4, *[1] * 11),
    busy("D7 preferred 2 and 6", PREF_2_6, *[1] * 5),
    busy("D8 an open payload overshoots, with a delay", PREF_2_4_DELAY, *[1] * 7),
    busy("D10 an open payload overshoots", PREF_4, 3, 3, 1, 1),
    busy("D7 preferred 4, sizes", PREF_4, 5, 1, 2, 8),
    idle("D10 delay from the first", PREF_4_DELAY, sized(1, takes_s=WAITED), *sizes(1, 1)),
    idle("D7 preferred ends the delay", PREF_4_LONG, *sizes(1, 1, 1, 1)),
    idle("D7 the rest waits", PREF_4_DELAY, *sizes(1, 1, 1, 1, takes_s=AT_ONCE), sized(1, after_answers=4, takes_s=WAITED)),
    idle("D3 overflow of preferred ends the delay", PREF_4_DELAY, sized(3, takes_s=AT_ONCE), sized(3, takes_s=WAITED)),
    idle(
        "D7 the smallest preferred fires", PREF_2_4_DELAY,
        *(sized(1, after_answers=n, takes_s=AT_ONCE) for n in (0, 0, 2, 2, 4, 4)),
        sized(1, after_answers=6, takes_s=WAITED),
    ),
    idle("D10 delay without preferred", DELAY, sized(1, takes_s=WAITED), *sizes(1, 1)),
    idle("D8 full ends the delay", LONG, *sizes(8, 1, 8)),
    Scenario("P5 merged when the delay has passed", (SHORT_DELAY,), (GATE, *sizes(*[1] * 6)), batches=True, hold_s=0.8),
    Scenario("D8 max_batch_size 0", (UNBATCHED,), (
        Send({"IN": f32(1)}, gate=True), *(Send({"IN": f32(1)}) for _ in range(3)),
    ), batches=True),
    Scenario("two instances share one queue", (TWO,), (GATE, GATE, *sizes(*[1] * 10)), batches=True),
    Scenario("two instances, default scheduler", (TWO_PLAIN,), (GATE, GATE, *sizes(1, 1, 1)), batches=True),
    Scenario("G3 shapes end a batch", (VARIABLE,), (GATE, *shaped(4, 4, 5, 4, 4)), batches=True),
    Scenario("G4 ragged", (RAGGED,), (GATE, *shaped(4, 4, 5, 4, 4)), batches=True),
    Scenario("G5 optional inputs end a batch", (CHOICE,), (
        GATE,
        Send({"IN": f32(1, 1)}),
        Send({"IN": f32(1, 1), "B": f32(1, 1)}),
        Send({"IN": f32(1, 1), "B": f32(1, 1)}),
        Send({"IN": f32(1, 1), "C": f32(1, 1)}),
        Send({"IN": f32(1, 1)}),
        Send({"IN": f32(1, 1)}),
    ), batches=True),
    Scenario("D12 preserve_ordering", (ORDERED,), (GATE, *sizes(1, 1, takes_s=(0.4, 30.0))), batches=True, hold_s=0.5),
    Scenario("Q4 max_queue_size", (BOUNDED,), (GATE, *sizes(1, 1, 1)), batches=True),
    Scenario("Q2 priorities", (PRIORITIES,), (
        GATE, sized(1, priority=3), sized(1, priority=1), sized(1), sized(1, priority=1), sized(1, priority=9),
    ), batches=True),
    Scenario("Q6 a timeout of microseconds, idle", (HASTY,), (
        *(sized(1, timeout_us=timeout) for timeout in (1, 3, 500_000)),
    ), one_by_one=True),
    Scenario("Q8 the expired in order of arrival", (DELAYED,), (
        GATE, *(sized(1, timeout_us=timeout) for timeout in (0, 100_000, 1, 0, 500_000, 150_000)),
    ), batches=True, hold_s=0.7),
]  # fmt: skip

# --- ensembles ---------------------------------------------------------------------------------

X2 = {"X": f32(1, 2)}
STEPS = (DOUBLE_A, DOUBLE_B)

ENSEMBLES = [
    Scenario("ensemble of two", (*STEPS, CHAIN), (Send(X2),)),
    Scenario("ensemble, static batch", (*STEPS, CHAIN), (Send({"X": f32(3, 2)}),)),
    Scenario("ensemble, several", (*STEPS, CHAIN), (Send(X2), Send(X2), Send(X2)), one_by_one=True),
    Scenario("ensemble with a request id", (*STEPS, CHAIN), (Send(X2, request_id="e"),)),
    Scenario("E7 sequence parameters", (*STEPS, CHAIN), (Send(X2, correlation_id=5, sequence_start=True),)),
    Scenario("a tensor for several, written in place", (TRANSPOSED, IN_PLACE, MEMORY),
             (Send({"X": f32(1, 2, 2)}),) * 3, one_by_one=True),
    Scenario("ensemble fork", (*STEPS, FORK), (Send(X2),)),
    Scenario("E4 pruning", (*STEPS, FORK), (Send(X2, outputs=("Z",)),)),
    Scenario("E5 inheritance", (REPORTING, INHERITING), (
        Send({"X": f32(2)}, request_id="e", correlation_id=5, sequence_start=True, timeout_us=9_000_000,
             priority=1, parameters={"k": "v"}),
    )),
    Scenario("E5 priority", (LEVELS, LEVELS_STEP), (
        replace(GATE, model="b_levels", priority=1),
        sized(2, priority=2), sized(2, priority=1), sized(2, priority=2),
    ), batches=True, waits_on="b_levels"),
    Scenario("E13 a step's error", (ANSWERING, FAILING, ERRING), (Send({"X": f32(1, 1, start=13)}),)),
    Scenario("E13 the second step's error", (ANSWERING, FAILING, ERRING), (Send({"X": f32(1, 1, start=1)}),)),
    Scenario("E13 nested", (ANSWERING, FAILING, ERRING, NESTED), (Send({"X": f32(1, 1, start=13)}),)),
    Scenario("E13 a step refuses", (ANSWERING, FAILING, ERRING), (Send({"X": f32(1, 1, start=23)}),)),
    Scenario("E11 a step without its output", (ANSWERING, FAILING, ERRING), (Send({"X": f32(1, 1, start=20)}),)),
    Scenario("nested ensembles", (ANSWERING, FAILING, ERRING, NESTED), (Send({"X": f32(1, 1)}),)),
    Scenario("E1 steps batch across requests", (DYNAMIC, BATCHING_STEP), (
        Send({"X": f32(1, 1)}, gate=True), *(Send({"X": f32(1, 1)}) for _ in range(4)),
    ), batches=True, waits_on="b_dynamic"),
    Scenario("E9 a step without batching", (PLAIN_STEP, DOUBLE_A, MIXED_BATCH), (Send(X2),)),
    Scenario("E9 batch of two for a step without batching", (PLAIN_STEP, DOUBLE_A, MIXED_BATCH), (Send({"X": f32(2, 2)}),)),
    refused("A4 ensemble, no inputs", CHAIN, {}),
    refused("A9 ensemble", CHAIN, {"X": f32(9, 2)}),
    refused("A10 ensemble", CHAIN, {"X": f32(1, 2).astype(np.int64)}),
    refused("A11 ensemble", CHAIN, {"X": f32(1, 3)}),
]  # fmt: skip

SCENARIOS = [*RESULTS, *FAILED, *ADMISSION, *BATCHING, *ENSEMBLES]
MODELS = list({m.name: m for s in SCENARIOS for m in s.models}.values())
# Composing models first: an ensemble is loaded after them.
MODELS.sort(key=lambda model: (model.source is None, model is NESTED))
# Of a server that completes configurations, also those that are complete.
COMPLETED = [AUTO, HALF_AUTO, ADD_SUB, OPTIONAL, PREF_4, TWO]
