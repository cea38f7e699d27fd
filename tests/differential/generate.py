"""Cases from a seed: random models, and random traffic for them.

Each family makes scenarios about one part of Triton. Randomness stays where the outcome is certain:
order of arrival (gates), far-apart times, one failing step at a time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tests.differential import actors, sources
from tests.differential.harness import Model, Scenario, Send
from tests.differential.scenarios import batcher, ensemble, f32, python, sized, text

__all__ = ["CACHE_BYTES", "FAMILIES", "generate", "models_of"]

Rng = random.Random
CACHE_BYTES = 1 << 20

FAR_US = 25_000_000
SOON_US = 150_000

NUMPY_NAMES = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "STRING": "object",
}  # fmt: skip


def array_of(rng: Rng, datatype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    if datatype == "STRING":
        values = [bytes(rng.randrange(256) for _ in range(rng.randrange(6))) for _ in range(count)]
        return text(*values, shape=shape)
    if datatype == "BOOL":
        return np.array([rng.random() < 0.5 for _ in range(count)], bool).reshape(shape)
    if datatype.startswith("FP"):
        values = [
            rng.choice((0.0, -0.0, 1.5, -7.25, np.inf, rng.uniform(-9, 9))) for _ in range(count)
        ]
        return np.array(values, NUMPY_NAMES[datatype]).reshape(shape)
    limits = np.iinfo(NUMPY_NAMES[datatype])
    drawn = [rng.randint(int(limits.min), int(limits.max)) for _ in range(count)]
    return np.array(drawn, NUMPY_NAMES[datatype]).reshape(shape)


def some(rng: Rng, low: int, high: int, largest: int) -> list[int]:
    """Return batch sizes, small ones more often."""
    return [
        min(rng.randint(1, largest), rng.randint(1, largest)) for _ in range(rng.randint(low, high))
    ]


def spread(rng: Rng, models: list[Model], count: int) -> Iterator[tuple[int, Model]]:
    """Give each of `count` cases a model, in turn."""
    for number in range(count):
        yield number, models[number % len(models)]


def gates(count: int) -> tuple[Send, ...]:
    return tuple(sized(1, gate=True) for _ in range(count))


# --- batching ----------------------------------------------------------------------------------


def dynamic(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """D1 to D14 without delay: busy instances, random sizes and preferred sizes."""
    made = []
    for number in range((count + 2) // 3):
        mbs, instances = rng.choice((3, 4, 6, 8)), rng.choice((1, 1, 2))
        preferred = sorted(rng.sample(range(2, mbs + 1), rng.randint(0, 2)))
        rest = (
            "dynamic_batching { "
            + (f"preferred_batch_size: {preferred} " if preferred else "")
            + "}"
        )
        rest += f" instance_group {{ count: {instances} kind: KIND_CPU }}"
        made.append((batcher(f"dynamic_{tag}_{number}", rest, mbs), mbs, instances))
    for number in range(count):
        model, mbs, instances = made[number % len(made)]
        sends = (sized(size) for size in some(rng, 3, 11, mbs))
        yield Scenario("", (model,), (*gates(instances), *sends), batches=True)


def delay(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """D6 to D10, P5: idle instances whose batches wait for company, busy ones that merge late."""
    preferred = rng.choice(([4], [5], [3, 6]))
    timing = f"preferred_batch_size: {preferred} max_queue_delay_microseconds: "
    waits = batcher(f"delay_{tag}_0", f"dynamic_batching {{ {timing} 1500000 }}")
    merges = batcher(f"delay_{tag}_1", f"dynamic_batching {{ {timing} 100000 }}")
    for number in range(count):
        if number % 2:
            sends = tuple(sized(size) for size in some(rng, 3, 8, 4))
            yield Scenario("", (merges,), (*gates(1), *sends), batches=True, hold_s=0.6)
            continue
        traffic: list[Send] = []
        for _ in range(2):
            # Without a preferred size below it, so no batch is sent before its end.
            total = rng.choice((preferred[0], rng.randint(1, preferred[0] - 1)))
            sizes = []
            while sum(sizes) < total:
                sizes.append(rng.randint(1, total - sum(sizes)))
            at_once = total == preferred[0]
            bounds = (0.0, 1.4) if at_once else (1.4, 30.0)
            before = len(traffic)
            for place, size in enumerate(sizes):
                takes = bounds if at_once or place == 0 else (0.0, 30.0)
                traffic.append(sized(size, after_answers=before, takes_s=takes))
        yield Scenario("", (waits,), tuple(traffic), batches=True)


def priorities(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """Q1 to Q4: levels, their order, and how many each of them holds."""
    made = []
    for number in range((count + 2) // 3):
        levels, mbs = rng.randint(1, 4), rng.choice((1, 2, 4))
        rest = f"priority_levels: {levels} default_priority_level: {rng.randint(1, levels)} "
        if rng.random() < 0.5:
            rest += f"default_queue_policy {{ max_queue_size: {rng.randint(1, 3)} }} "
        if rng.random() < 0.5:
            rest += (
                f"priority_queue_policy {{ key: {rng.randint(1, levels)} "
                f"value: {{ max_queue_size: {rng.randint(1, 3)} }} }} "
            )
        name = f"priorities_{tag}_{number}"
        made.append((batcher(name, f"dynamic_batching {{ {rest} }}", mbs), mbs, levels))
    for number in range(count):
        model, mbs, levels = made[number % len(made)]
        sends = (sized(size, priority=rng.randint(0, levels + 1)) for size in some(rng, 4, 10, mbs))
        yield Scenario("", (model,), (*gates(1), *sends), batches=True)


def timeouts(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """Q5 to Q9: what expired is refused or comes last; a request can only shorten its time."""
    made = []
    for number in range((count + 2) // 3):
        action = rng.choice(("REJECT", "DELAY"))
        override = rng.choice(("true", "false"))
        timeout = rng.choice((0, SOON_US, FAR_US, FAR_US))
        rest = (
            f"default_queue_policy {{ timeout_action: {action} allow_timeout_override: {override} "
            f"default_timeout_microseconds: {timeout} }}"
        )
        mbs = rng.choice((1, 2))
        made.append(
            (batcher(f"timeouts_{tag}_{number}", f"dynamic_batching {{ {rest} }}", mbs), mbs)
        )
    for number in range(count):
        model, mbs = made[number % len(made)]
        sends = (
            sized(size, timeout_us=rng.choice((0, SOON_US, FAR_US)))
            for size in some(rng, 3, 7, mbs)
        )
        yield Scenario("", (model,), (*gates(1), *sends), batches=True, hold_s=0.9)


def ordering(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """D12: with preserve_ordering answers wait for each other, without it they come as they are."""
    two = "instance_group { count: 2 kind: KIND_CPU }"
    kept = batcher(f"ordering_{tag}", f"dynamic_batching {{ preserve_ordering: true }} {two}", 1)
    free = batcher(f"ordering_{tag}_free", f"dynamic_batching {{ }} {two}", 1)
    for number in range(count):
        # The first keeps one instance busy, the others run on the other one, each alone.
        slow = {"pace_ms": 400}
        sends = (Send({"IN": f32(1, 1)}, parameters=slow) for _ in range(rng.randint(2, 4)))
        yield Scenario(
            "", (free if number % 3 == 2 else kept,), (*gates(1), *sends),
            batches=True, ordered=True, settle_s=0.2, hold_s=2.0,
        )  # fmt: skip


def shapes(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """G1 to G6: what may share a batch."""
    inputs = (
        ("IN FP32 [-1]",),
        ("IN FP32 [-1] allow_ragged_batch: true",),
        ("IN FP32 [-1]", "B FP32 [2] optional: true"),
        ("IN FP32 [2]", "B FP32 [-1] optional: true", "C FP32 [1] optional: true"),
        ("IN FP32 [-1] allow_ragged_batch: true", "B FP32 [-1]"),
    )
    made = [
        (batcher(f"shapes_{tag}_{number}", "dynamic_batching { }", 8, *each), each)
        for number, each in enumerate(inputs)
    ]
    rng.shuffle(made)
    for number in range(count):
        model, specs = made[number % min(len(made), (count + 1) // 2)]
        traffic = []
        for place in range(rng.randint(4, 10)):
            given = {}
            batch = 1 if place == 0 else rng.choice((1, 1, 2))
            for spec in specs:
                name, _, dims, *extra = spec.split(" ", 3)
                if "optional" in "".join(extra) and rng.random() < 0.5:
                    continue
                width = rng.choice((2, 2, 3)) if dims == "[-1]" else int(dims[1:-1])
                given[name] = f32(batch, width)
            traffic.append(Send(given, gate=place == 0, parameters={"pace_ms": 30}))
        yield Scenario("", (model,), tuple(traffic), batches=True)


def default_scheduler(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """S2 to S4: requests are never merged."""
    made = []
    for number in range((count + 2) // 3):
        instances = rng.randint(1, 3)
        group = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
        made.append((batcher(f"default_{tag}_{number}", group), instances))
    for number in range(count):
        model, instances = made[number % len(made)]
        sends = (sized(size) for size in some(rng, 2, 6, 8))
        yield Scenario("", (model,), (*gates(instances), *sends), batches=True)


# --- one request -------------------------------------------------------------------------------


def signature(rng: Rng) -> list[tuple[str, str, list[int], bool]]:
    """Draw inputs: name, datatype, dims, optional."""
    return [
        (
            f"I{number}",
            rng.choice(list(NUMPY_NAMES)),
            [rng.choice((-1, 1, 2, 3)) for _ in range(rng.randint(1, 3))],
            number > 0 and rng.random() < 0.3,
        )
        for number in range(rng.randint(1, 4))
    ]


def identity(name: str, drawn: list[tuple[str, str, list[int], bool]], mbs: int) -> Model:
    return python(
        name, sources.IDENTITY,
        tuple(f"{n} {t} {d!s}".replace(", ", ",") + (" optional: true" if o else "") for n, t, d, o in drawn),
        tuple(f"OUT_{n} {t} {d!s}".replace(", ", ",") for n, t, d, _ in drawn),
        mbs=mbs,
    )  # fmt: skip


def good_inputs(
    rng: Rng, drawn: list[tuple[str, str, list[int], bool]], mbs: int
) -> dict[str, Any]:
    batch = (rng.randint(1, mbs),) if mbs else ()
    return {
        name: array_of(
            rng, datatype, (*batch, *(rng.randint(0, 3) if d == -1 else d for d in dims))
        )
        for name, datatype, dims, optional in drawn
        if not (optional and rng.random() < 0.5)
    }


def values(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """Tensors of every datatype and shape come back as they went."""
    for number in range(count):
        drawn, mbs = signature(rng), rng.choice((0, 4))
        model = identity(f"values_{tag}_{number}", drawn, mbs)
        sends = tuple(Send(good_inputs(rng, drawn, mbs), request_id=f"r{n}") for n in range(4))
        yield Scenario("", (model,), sends, one_by_one=True)


def admission(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """A3 to A14: one thing is wrong with a request."""
    made = []
    for number in range((count + 4) // 5):
        drawn, mbs = signature(rng), rng.choice((0, 4))
        drawn[0] = (*drawn[0][:3], False)
        made.append((identity(f"admission_{tag}_{number}", drawn, mbs), drawn, mbs))
    for number in range(count):
        model, drawn, mbs = made[number % len(made)]
        request_id = rng.choice(("", "some id"))
        yield Scenario("", (model,), (_spoilt(rng, drawn, mbs, request_id),), statistics=True)


def _spoilt(
    rng: Rng, drawn: list[tuple[str, str, list[int], bool]], mbs: int, request_id: str
) -> Send:
    batch = (2,) if mbs else ()
    inputs = {
        name: array_of(rng, datatype, (*batch, *(2 if d == -1 else d for d in dims)))
        for name, datatype, dims, _ in drawn
    }
    send = Send(inputs, request_id=request_id)
    name, datatype, dims, _ = rng.choice(drawn)
    value = inputs[name]
    wrongs: dict[str, Callable[[], Send]] = {
        "datatype": lambda: _with(
            send,
            name,
            array_of(rng, rng.choice([t for t in NUMPY_NAMES if t != datatype]), value.shape),
        ),
        "rank": lambda: _with(send, name, value.reshape((*value.shape, 1))),
        "output": lambda: replace(send, outputs=(f"OUT_{name}", "NOPE")),
        "more": lambda: _with(send, "MORE", value),
        "none": lambda: replace(send, inputs={}),
        "version": lambda: replace(send, version=rng.choice((0, 2, 99))),
        "model": lambda: replace(send, model="no_such_model"),
    }
    fixed = [place for place, d in enumerate(dims) if d != -1]
    if fixed:
        wrongs["shape"] = lambda: _with(
            send, name, np.repeat(value, 2, axis=rng.choice(fixed) + len(batch))
        )
    required = [n for n, _, _, optional in drawn if not optional]
    if len(required) == len(drawn):
        wrongs["missing"] = lambda: replace(
            send, inputs={n: v for n, v in inputs.items() if n != rng.choice(required)} or {}
        )
        wrongs["renamed"] = lambda: replace(
            send, inputs={("X" + n if n == name else n): v for n, v in inputs.items()}
        )
    if mbs:
        wrongs["batch"] = lambda: replace(
            send, inputs={n: np.concatenate([v, v, v]) for n, v in inputs.items()}
        )
        wrongs["flat"] = lambda: _with(
            send, name, np.zeros((), value.dtype) if datatype != "STRING" else value[:1]
        )
        if len(inputs) > 1:
            wrongs["uneven"] = lambda: _with(send, name, value[:1])
    return wrongs[rng.choice(sorted(wrongs))]()


def _with(send: Send, name: str, value: np.ndarray[Any, Any]) -> Send:
    return replace(send, inputs={**send.inputs, name: value})


def faults(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """Y2: a batch in which the model fails, as a whole or for some of its requests."""
    some_fail = python(
        f"faults_{tag}_some",
        sources.ANSWERS,
        ("IN FP32 [1]",),
        ("OUT FP32 [1]",),
        "dynamic_batching { }",
    )
    all_fail = python(
        f"faults_{tag}_all",
        sources.FAILURES,
        ("IN FP32 [1]",),
        ("OUT FP32 [1]",),
        "dynamic_batching { }",
    )
    for number in range(count):
        model, codes = (some_fail, (0, 0, *range(10, 25))) if number % 2 else (all_fail, range(11))
        sends = tuple(
            Send({"IN": f32(rng.randint(1, 2), 1, start=rng.choice(codes))}, request_id=f"f{n}")
            for n in range(rng.randint(2, 5))
        )
        yield Scenario("", (model,), sends, one_by_one=True)


# --- ensembles ---------------------------------------------------------------------------------


def steps(tag: str) -> dict[str, tuple[Model, tuple[str, ...], tuple[str, ...]]]:
    """Return the composing models: inputs and outputs of each, all FP32 [2].

    They do not batch: whether two steps of one request meet in a batch is a matter of chance.
    """

    def made(kind: str, source: str, inputs: str, outputs: str) -> Any:
        optional = {"B": " optional: true"} if kind == "maybe" else {}
        names, results = tuple(inputs.split()), tuple(outputs.split())
        model = python(
            f"{kind}_{tag}", source,
            tuple(f"{n} FP32 [2]{optional.get(n, '')}" for n in names),
            tuple(f"{n} FP32 [2]" for n in results),
        )  # fmt: skip
        return model, names, results

    return {
        "double": made("double", sources.DOUBLE, "IN", "OUT"),
        "add": made("add", actors.ADD, "A B", "OUT"),
        "split": made("split", actors.SPLIT, "IN", "LOW HIGH"),
        "maybe": made("maybe", actors.MAYBE, "A B", "OUT SUM"),
        "answers": made("answers", sources.ANSWERS, "IN", "OUT"),
    }


def dag(
    rng: Rng, name: str, kinds: Mapping[str, Any], *, inputs: int, length: int
) -> tuple[Model, list[str], dict[str, set[str]]]:
    """Draw an ensemble; returns it with its inputs, and its outputs with the inputs they need."""
    given = [f"X{n}" for n in range(inputs)]
    unread, read, lines = list(given), [], []
    needs = {tensor: {tensor} for tensor in given}
    for number in range(length):
        kind = rng.choice([k for k in kinds if k not in ("answers", "nested")])
        model, names, results = kinds[kind]
        feeds = []
        for place, port in enumerate(names):
            if unread and (place == 0 or rng.random() < 0.6):
                tensor = unread.pop(rng.randrange(len(unread)))
                read.append(tensor)
            else:
                tensor = rng.choice(read)
            feeds.append(f"{port}={tensor}")
        # Any of its outputs, at least the first; all of an ensemble's (see `pruned`).
        kept = [
            out
            for place, out in enumerate(results)
            if place == 0 or kind == "inner" or rng.random() < 0.7
        ]
        produced = [f"T{number}{out}" for out in kept]
        needed = set().union(*(needs[feed.partition("=")[2]] for feed in feeds))
        needs.update(dict.fromkeys(produced, needed))
        unread += produced
        pairs = ",".join(f"{out}={tensor}" for out, tensor in zip(kept, produced, strict=True))
        lines.append(f"{model.name}: {','.join(feeds)} -> {pairs}")
    for tensor in [t for t in unread if t in given]:  # every input is read
        model, names, _ = kinds["double"]
        lines.append(f"{model.name}: {names[0]}={tensor} -> OUT=Z{tensor}")
        needs[f"Z{tensor}"] = {tensor}
        unread.remove(tensor)
        unread.append(f"Z{tensor}")
    config = ensemble(
        name, tuple(f"{n} FP32 [2]" for n in given), tuple(f"{n} FP32 [2]" for n in unread), *lines
    )
    return config, given, {tensor: needs[tensor] for tensor in unread}


def pruned(rng: Rng, given: list[str], outputs: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Draw outputs that need every input: tritonserver fails otherwise (ensemble-pruned-inputs)."""
    wanted = rng.sample(list(outputs), len(outputs))
    while len(wanted) > 1 and set().union(*(outputs[name] for name in wanted[1:])) == set(given):
        wanted = wanted[1:]
        if rng.random() < 0.4:
            break
    return tuple(wanted)


def ensembles(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """E1 to E11: random graphs, some inside another, with pruned outputs."""
    kinds = steps(tag)
    members = tuple(kind[0] for kind in kinds.values())
    made: list[tuple[tuple[Model, ...], list[str], dict[str, set[str]]]] = []
    for number in range((count + 1) // 2):
        inputs = rng.randint(1, 3)
        inner, given, out = dag(
            rng, f"dag_{tag}_{number}", kinds, inputs=inputs, length=rng.randint(2, 6)
        )
        made.append(((*members, inner), given, out))
        if rng.random() < 0.4:
            nested = {**kinds, "inner": (inner, tuple(given), tuple(out))}
            outer, *names = dag(
                rng, f"dag_{tag}_{number}_outer", nested, inputs=1, length=rng.randint(2, 4)
            )
            made.append(((*members, inner, outer), *names))
    for number in range(count):
        models, given, outputs = made[number % len(made)]
        sends = []
        for place in range(rng.randint(1, 3)):
            batch = rng.randint(1, 3)
            wanted = pruned(rng, given, outputs) if rng.random() < 0.5 else ()
            sends.append(
                Send(
                    {n: f32(batch, 2, start=rng.randint(-9, 9)) for n in given},
                    outputs=wanted, request_id=rng.choice(("", f"e{place}")),
                    correlation_id=rng.choice((0, 0, 0, 7, 1 << 63, (1 << 64) - 1)), sequence_start=rng.random() < 0.2,
                )
            )  # fmt: skip
        yield Scenario("", models, tuple(sends), one_by_one=True)


def failing_steps(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """E10 to E13, T4: a step fails, refuses, or leaves something out, in a chain of any depth."""
    answers = python(f"failing_{tag}_answers", sources.ANSWERS, ("IN FP32 [1]",), ("OUT FP32 [1]",))
    raises = python(
        f"failing_{tag}_raises", sources.FAILURES, ("IN FP32 [1]",), ("OUT FP32 [1]",),
        "dynamic_batching { }",
    )  # fmt: skip
    wider = python(
        f"failing_{tag}_wider", sources.DOUBLE, ("IN FP32 [1]",), ("OUT FP32 [1]",), mbs=2
    )
    kinds = (answers, raises, wider)
    made: list[tuple[Model, ...]] = []
    for number in range((count + 2) // 3):
        chain = [rng.choice(kinds[:2]) for _ in range(rng.randint(1, 3))]
        names = ["X", *(f"m{n}" for n in range(len(chain) - 1)), "Y"]
        lines = (
            f"{model.name}: IN={a} -> OUT={b}"
            for model, a, b in zip(chain, names, names[1:], strict=False)
        )
        name = f"failing_{tag}_{number}"
        inner = ensemble(name, ("X FP32 [1]",), ("Y FP32 [1]",), *lines)
        made.append((*kinds, inner))
        if rng.random() < 0.6:
            outer = ensemble(
                f"{name}_outer", ("X FP32 [1]",), ("Y FP32 [1]",), f"{name}: X=X -> Y=q",
                f"{answers.name}: IN=q -> OUT=Y",
            )  # fmt: skip
            made.append((*kinds, inner, outer))
    for number in range(count):
        how = rng.choice((0, *range(1, 11), *range(10, 19), 20, 22, 23, 24))
        models = made[number % len(made)]
        sends = (Send({"X": f32(1, 1, start=how)}, request_id=rng.choice(("", "e"))),)
        yield Scenario("", models, sends)


# --- decoupled models and calls between models ---------------------------------------------------


def stream_model(tag: str, rest: str = "") -> Model:
    return python(
        f"stream_{tag}", actors.STREAM, ("PLAN INT32 [-1]", "HOW INT32 [1]"), ("OUT INT32 [1]",),
        "model_transaction_policy { decoupled: true } " + rest,
    )  # fmt: skip


def plan_of(rng: Rng) -> list[int]:
    plan = [
        rng.choice((rng.randint(0, 99), rng.randint(0, 99), -1, -2))
        for _ in range(rng.randint(0, 5))
    ]
    return plan if rng.random() < 0.85 else [*plan, -3]


def planned(plan: list[int], how: int) -> dict[str, Any]:
    return {"PLAN": np.array([plan], np.int32).reshape(1, -1), "HOW": np.array([[how]], np.int32)}


def decoupled(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """Y2, Y4, PB30, PB32 to PB34, E14: any number of responses, errors between them, behind an ensemble too."""
    model = stream_model(f"{tag}_plain")
    twice = python(
        f"stream_{tag}_twice", actors.ADD, ("A INT32 [1]", "B INT32 [1]"), ("OUT INT32 [1]",)
    )
    behind = ensemble(
        f"stream_{tag}_ensemble", ("P INT32 [-1]", "H INT32 [1]"), ("Y INT32 [1]",),
        f"{model.name}: PLAN=P,HOW=H -> OUT=m", f"{twice.name}: A=m,B=m -> OUT=Y",
    )  # fmt: skip
    for number in range(count):
        plan, how = plan_of(rng), rng.choice((0, 1, 2))
        if how == 2:
            plan = [n for n in plan if n != -3]  # an error of a model's thread is not visible
        if number % 4 == 3:  # an error may overtake what runs behind it (E15)
            plan = [n for n in plan if n >= 0]
            given = planned(plan, how)
            given = {"P": given["PLAN"], "H": given["HOW"]}
            yield Scenario("", (model, twice, behind), (Send(given, stream=True),))
        elif number % 4 == 2:
            yield Scenario("", (model,), (Send(planned(plan, how)),))  # Y5
        else:
            more = [planned(plan_of(rng), 0) for _ in range(rng.randint(0, 2))]
            sends = tuple(Send(g, stream=True, request_id="s") for g in (planned(plan, how), *more))
            yield Scenario("", (model,), sends, one_by_one=True)


def calls(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """B1 to B6: scripts of calls, one after the other, at once, and with many responses."""
    caller = python(
        f"calls_{tag}", actors.CALLS, ("SCRIPT STRING [1]",), ("REPORT STRING [1]",), mbs=0
    )
    kinds = steps(tag)
    stream = stream_model(f"{tag}_plain")
    reporting = python(
        f"reporting_{tag}",
        sources.REQUEST,
        ("IN FP32 [2]",),
        ("REPORT STRING [1]", "OUT FP32 [2]"),
        mbs=0,
    )
    chain = ensemble(
        f"chain_{tag}_called", ("X FP32 [2]",), ("Y FP32 [2]",),
        f"{kinds['split'][0].name}: IN=X -> LOW=m", f"{kinds['double'][0].name}: IN=m -> OUT=Y",
    )  # fmt: skip
    members = tuple(kind[0] for kind in kinds.values())

    def call(how: str) -> dict[str, Any]:
        kind = rng.choice(
            ("double", "add", "split", "answers", "stream", "reporting", "chain", "wrong")
        )
        pair = [[float(rng.randint(-9, 9)), 2.0]]
        if kind == "stream":
            # Without errors: tritonserver loses them (bls-stream-errors in cases.py).
            plan = [n for n in plan_of(rng) if n >= 0]
            return {
                "model": stream.name,
                "inputs": [["PLAN", "int32", [plan]], ["HOW", "int32", [[0]]]],
            }
        if kind == "reporting":
            more = {
                "request_id": rng.choice(("", "b")),
                "parameters": {"k": rng.choice((1, "t", True))},
            }
            return {"model": reporting.name, "inputs": [["IN", "float32", pair[0]]], "more": more}
        if kind == "chain":
            return {"model": chain.name, "inputs": [["X", "float32", pair]]}
        if kind == "answers":
            code = [[float(rng.choice((0, *range(10, 19), 20, 22)))] * 2]
            return {"model": kinds[kind][0].name, "inputs": [["IN", "float32", code]]}
        if kind == "wrong":
            wrong = rng.choice(("model", "output", "dtype", "inputs", "shape"))
            return {
                "model": "unknown" if wrong == "model" else kinds["double"][0].name,
                "inputs": []
                if wrong == "inputs"
                else [
                    [
                        "IN",
                        "int32" if wrong == "dtype" else "float32",
                        [[1]] if wrong == "shape" else pair,
                    ]
                ],
                "outputs": ["NOPE"] if wrong == "output" else [],
            }
        model, names, outputs = kinds[kind]
        wanted = rng.sample(outputs, rng.randint(0, len(outputs)))
        return {
            "model": model.name,
            "inputs": [[n, "float32", pair] for n in names],
            "outputs": wanted,
        }

    for _ in range(count):
        script = []
        for how in rng.choices(("exec", "async", "stream", "streams"), k=rng.randint(1, 3)):
            script.append(
                {
                    "how": how,
                    "calls": [
                        call(how) for _ in range(1 if how == "streams" else rng.randint(1, 3))
                    ],
                }
            )
        # An empty list of inputs is refused by the constructor: not a call.
        for stage in script:
            stage["calls"] = [c for c in stage["calls"] if c["inputs"]]
        send = Send({"SCRIPT": text(json.dumps(script).encode())})
        yield Scenario("", (*members, stream, reporting, chain, caller), (send,))


# --- cache, warmup, versions ---------------------------------------------------------------------


def cancelled(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """X6: the client of an ensemble leaves while its first step runs; what the schedulers of others do."""
    rests = [
        "", "dynamic_batching { }", "response_cache { enable: true }",
        "dynamic_batching { } response_cache { enable: true }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
        "dynamic_batching { preserve_ordering: true }", "sequence_batching { }",
        "sequence_batching { oldest { } }",
    ]  # fmt: skip
    rng.shuffle(rests)
    for number in range(count):
        name = f"cancelled_{tag}_{number}"
        first = batcher(f"{name}_first", "", 4)
        specs = ("S STRING [1]",), ("OUT_S STRING [1]",)
        last = python(f"{name}_last", sources.IDENTITY, *specs, rests[number % len(rests)], 4)
        around = ensemble(
            name, ("IN FP32 [1]",), ("OUT STRING [1]",),
            f"{first.name}: IN=IN -> SEEN=t", f"{last.name}: S=t -> OUT_S=OUT", mbs=4,
        )  # fmt: skip
        # The one that runs, perhaps also others, which wait for it.
        leaving = [True, *(rng.random() < 0.5 for _ in range(rng.randint(1, 3)))]
        sends = tuple(
            sized(
                1, gate=place == 0, cancelled=leaves, correlation_id=1 + place % 2,
                sequence_start=True, sequence_end=rng.random() < 0.5,
            )
            for place, leaves in enumerate(leaving)
        )  # fmt: skip
        # tritonserver reads that a client has left on one thread and acts on it on another.
        yield Scenario("", (first, last, around), sends, waits_on=first.name, hold_s=0.2)


def cached(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """K1 to K9: what was asked before is not executed again."""
    specs = ("IN FP32 [2]",), ("OUT FP32 [2]", "TIMES INT32 [1]")
    for number in range(count):
        rest = rng.choice(("", "dynamic_batching { } ")) + "response_cache { enable: true }"
        model = python(f"cached_{tag}_{number}", actors.COUNTING, *specs, rest)
        models: tuple[Model, ...] = (model,)
        name = "IN"
        if number % 3 == 2:
            name = "X"
            behind = ensemble(
                f"cached_{tag}_{number}_e", ("X FP32 [2]",), ("OUT FP32 [2]", "TIMES INT32 [1]"),
                f"{model.name}: IN=X -> OUT=OUT,TIMES=TIMES",
            )  # fmt: skip
            if rng.random() < 0.5:
                behind = replace(behind, config=behind.config + "\nresponse_cache { enable: true }")
            models = (model, behind)
        sends = tuple(
            Send({name: f32(rng.randint(1, 2), 2, start=rng.randint(0, 2))}, request_id=f"k{n}")
            for n in range(rng.randint(4, 9))
        )
        yield Scenario("", models, sends, one_by_one=True)


def warmup(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """W1 to W5: samples run before the model is ready, and they count."""
    for number in range(count):
        mbs = rng.choice((0, 4))
        samples, files = [], {}
        for place in range(rng.randint(1, 3)):
            size = rng.randint(0, 3) if mbs else rng.randint(0, 1)
            kind = rng.choice(("zero_data: true", "input_data_file: 'data'"))
            if "file" in kind:
                files["warmup/data"] = f32(2, start=3).tobytes()
            samples.append(
                f"model_warmup {{ name: 's{place}' batch_size: {size} count: {rng.randint(0, 3)} "
                f"inputs {{ key: 'IN' value {{ data_type: TYPE_FP32 dims: [2] {kind} }} }} "
                "inputs { key: 'NOISE' value { data_type: TYPE_INT8 dims: [3] random_data: true } } "
                "inputs { key: 'TEXT' value { data_type: TYPE_STRING dims: [1] zero_data: true } } }"
            )
        rest = "\n".join(samples)
        if rng.random() < 0.3:
            rest += "\ninstance_group { count: 2 kind: KIND_CPU }"
        inputs = ("IN FP32 [2]", "NOISE INT8 [3]", "TEXT STRING [1]")
        model = python(
            f"warmup_{tag}_{number}", actors.WARM, inputs, ("REPORT STRING [1]",), rest, mbs
        )
        model = replace(model, files=files)
        batch = (1,) if mbs else ()
        given = {
            "IN": f32(*batch, 2), "NOISE": np.zeros((*batch, 3), np.int8),
            "TEXT": text(b"x", shape=(*batch, 1)),
        }  # fmt: skip
        yield Scenario("", (model,), (Send(given),), since_load=True)


def versions(rng: Rng, tag: str, count: int) -> Iterator[Scenario]:
    """A1, A2, L2: existing versions, and the one that answers."""
    made = []
    for number in range((count + 1) // 2):
        existing = tuple(sorted(rng.sample(range(1, 12), rng.randint(1, 4))))
        policies = (
            "", "version_policy { all { } }",
            f"version_policy {{ latest {{ num_versions: {rng.randint(1, 3)} }} }}",
            f"version_policy {{ specific {{ versions: [{existing[-1]}, {existing[0]}, 50] }} }}",
        )  # fmt: skip
        model = python(
            f"versions_{tag}_{number}", actors.VERSION, ("IN FP32 [1]",), ("VERSION INT32 [1]",),
            rng.choice(policies), mbs=0,
        )  # fmt: skip
        made.append(replace(model, versions=existing))
    for _, model in spread(rng, made, count):
        asked = [-1, *model.versions, rng.randint(1, 14)]
        sends = tuple(Send({"IN": f32(1)}, version=v) for v in rng.sample(asked, len(asked)))
        yield Scenario("", (model,), sends, one_by_one=True)


# Family -> (its cases, its share).
FAMILIES: dict[str, tuple[Callable[[Rng, str, int], Iterator[Scenario]], int]] = {
    "dynamic": (dynamic, 6),
    "delay": (delay, 2),
    "priorities": (priorities, 6),
    "timeouts": (timeouts, 3),
    "ordering": (ordering, 3),
    "shapes": (shapes, 5),
    "default": (default_scheduler, 3),
    "values": (values, 3),
    "admission": (admission, 10),
    "faults": (faults, 4),
    "ensembles": (ensembles, 6),
    "failing steps": (failing_steps, 5),
    "decoupled": (decoupled, 6),
    "calls": (calls, 6),
    "cancelled": (cancelled, 4),
    "cache": (cached, 3),
    "warmup": (warmup, 2),
    "versions": (versions, 3),
}


def generate(seed: int, count: int) -> list[Scenario]:
    """Return `count` scenarios; the same ones for the same seed and count."""
    total = sum(share for _, share in FAMILIES.values())
    scenarios: list[Scenario] = []
    shares = 0
    for family, (make, share) in FAMILIES.items():
        shares += share
        wanted = round(count * shares / total) - len(scenarios)
        rng = random.Random(f"{seed} {family}")
        for number, scenario in enumerate(make(rng, str(seed), wanted)):
            scenarios.append(replace(scenario, id=f"{family}: seed {seed} case {number}"))
    return scenarios


def models_of(scenarios: list[Scenario]) -> list[Model]:
    """Return the models of scenarios; an ensemble comes after what it is made of."""
    return list({model.name: model for s in scenarios for model in s.models}.values())
