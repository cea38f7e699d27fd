"""Sequences: the same traffic through nbtriton and through the real tritonserver.

The models say in SEEN what they were given: the execution and the row, flags and correlation id,
the control tensors, and the READY control of every row of the batch, padding included.

Not compared, as nbtriton does it differently on purpose: what padding rows hold (garbage in
tritonserver, zeros here: DI3), string controls of correlation ids (unusable in 2.51: C4), ids of
another type than the control's (accepted in 2.51: C5), implicit states (the python backend cannot
write them: I1), RESCHEDULE in models that are not iterative (no answer at all: IT6). And
tritonserver frees the slot of an iterative sequence by a cancelled request of its own, which it
counts as a failed one (IT3); nbtriton counts the requests of clients.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.differential.harness import (
    ANSWER_S,
    UNANSWERED,
    Answer,
    Model,
    OurSide,
    Outcome,
    RealSide,
    Scenario,
    Send,
    write,
)

pytestmark = [pytest.mark.reference, pytest.mark.slow]

LOOKS = """
import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.instance = args["model_instance_name"].split("_")[-1]
        self.executions = 0
        self.sums = {}

    def execute(self, requests):
        self.executions += 1
        rows = [{t.name(): t.as_numpy() for t in r.inputs()} for r in requests]
        ready = "".join(str(row["READY"].item()) for row in rows)
        responses = []
        for position, (request, row) in enumerate(zip(requests, rows)):
            if not row["READY"].item():
                responses.append(pb_utils.InferenceResponse([]))
                continue
            gate = json.loads(request.parameters() or "{}").get("gate")
            if gate:
                open(gate + ".entered", "w").close()
                deadline = time.monotonic() + 30
                while not os.path.exists(gate + ".open") and time.monotonic() < deadline:
                    time.sleep(0.002)
            flags, sequence = request.flags(), request.correlation_id()
            total = row["IN"].sum() + (0 if flags & 1 else self.sums.get(sequence, 0))
            self.sums[sequence] = total
            controls = [
                "%s %s %s %s" % (name, row[name].dtype, row[name].shape, row[name].item())
                for name in ("START", "END", "ID")
            ]
            seen = [self.instance, self.executions, position, ready, flags, sequence, *controls]
            shape = [1, 1] if row["READY"].ndim == 2 else [1]
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor(
                            "SEEN", np.array("; ".join(map(str, seen)), dtype=object).reshape(shape)
                        ),
                        pb_utils.Tensor("SUM", np.full(shape, total, np.float32)),
                    ]
                )
            )
        return responses
"""

# Wants to see a request as often as IN says, and answers with the flags of all passes.
PASSES = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.passes = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            wanted = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().sum()
            sequence = request.correlation_id()
            flags = self.passes.setdefault(sequence, [])
            flags.append(request.flags())
            if len(flags) < wanted:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            seen = np.array([["%s %s" % (sequence, flags)]], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", seen)]))
        return responses
"""


# A busy machine may take longer between two requests than the second after which Triton gives a sequence up.
LONG = "max_sequence_idle_microseconds: 30000000"


def model(
    name: str,
    batching: str = "",
    *,
    mbs: int = 4,
    rest: str = "",
    corrid: str = "UINT64",
    dims: str = "1",
) -> Model:
    controls = "".join(
        f'control_input {{ name: "{tensor}" control {{ kind: CONTROL_SEQUENCE_{kind} {value} }} }}\n'
        for tensor, kind, value in (
            ("START", "START", "fp32_false_true: [ 0, 1 ]"),
            ("END", "END", "bool_false_true: [ false, true ]"),
            ("READY", "READY", "int32_false_true: [ 0, 1 ]"),
            ("ID", "CORRID", f"data_type: TYPE_{corrid}"),
        )
    )
    return Model(
        name,
        f"""
name: "{name}"
backend: "python"
max_batch_size: {mbs}
input {{ name: "IN" data_type: TYPE_FP32 dims: {dims} }}
output {{ name: "SEEN" data_type: TYPE_STRING dims: 1 }}
output {{ name: "SUM" data_type: TYPE_FP32 dims: 1 }}
sequence_batching {{
{controls}
{"" if "idle" in batching else LONG}
{batching}
}}
{rest}
""",
        LOOKS,
    )


def iterative(name: str, strategy: str) -> Model:
    return Model(
        name,
        f"""
name: "{name}"
backend: "python"
max_batch_size: 4
input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "SEEN" data_type: TYPE_STRING dims: 1 }}
sequence_batching {{ iterative_sequence: true {strategy} }}
""",
        PASSES,
    )


DIRECT = model("direct")
FLAT = model("flat", mbs=0)
SHAPES = model("shapes", dims="-1")
OLDEST = model("oldest", "oldest { }")
CANDIDATES = model("candidates", "oldest { max_candidate_sequences: 2 }")
# A full batch waits: no request can join it, in any order of the threads.
OLDEST_FIVE = model("oldest_five", "oldest { max_candidate_sequences: 5 }")
SINGLE = model("single", mbs=1)
IDLE = model("idle", "max_sequence_idle_microseconds: 1500000", mbs=1)
IDLE_OLDEST = model(
    "idle_oldest", "max_sequence_idle_microseconds: 1500000 oldest { max_candidate_sequences: 1 }"
)
LASTS = model("lasts", mbs=1)
LASTS_OLDEST = model("lasts_oldest", "oldest { max_candidate_sequences: 1 }")
TWO = model("two", mbs=2, rest="instance_group { count: 2 kind: KIND_CPU }")
DELAY = model(
    "delay",
    "direct { max_queue_delay_microseconds: 400000 minimum_slot_utilization: 0.5 }",
)
# Longer than a test waits for an answer.
NEVER = model(
    "never",
    "direct { max_queue_delay_microseconds: 100000000 minimum_slot_utilization: 0.5 }",
)
TYPES = [model(f"id_{name.lower()}", corrid=name) for name in ("INT64", "UINT32", "INT32")]
ITERATIVE = iterative("iterative", "")
ITERATIVE_OLDEST = iterative("iterative_oldest", "oldest { }")
MODELS = (
    DIRECT,
    FLAT,
    SHAPES,
    OLDEST,
    OLDEST_FIVE,
    CANDIDATES,
    SINGLE,
    IDLE,
    IDLE_OLDEST,
    LASTS,
    LASTS_OLDEST,
    TWO,
    DELAY,
    NEVER,
    *TYPES,
    ITERATIVE,
    ITERATIVE_OLDEST,
)


def ask(
    of: int | str,
    flags: str = "",
    value: float = 1.0,
    *,
    flat: bool = False,
    length: int = 1,
    **more: Any,
) -> Send:
    """One request: flags are of S (start), E (end) and G (a gate holds its execution)."""
    shape = (length,) if flat else (1, length)
    return Send(
        {"IN": np.full(shape, value, np.float32)},
        correlation_id=of,  # type: ignore[arg-type]
        sequence_start="S" in flags,
        sequence_end="E" in flags,
        gate="G" in flags,
        **more,
    )


def asks(text: str, **options: Any) -> tuple[Send, ...]:
    """Write requests as ``"1SG 2S 2 2E"``: sequence and flags."""
    sends = []
    for number, word in enumerate(text.split()):
        digits = word.rstrip("SEG")
        sends.append(ask(int(digits), word[len(digits) :], 1.0 + number, **options))
    return tuple(sends)


def one_by_one(name: str, target: Model, *traffic: Send) -> Scenario:
    return Scenario(name, (target,), traffic, one_by_one=True)


def held(name: str, target: Model, *traffic: Send) -> Scenario:
    return Scenario(name, (target,), traffic)


SCENARIOS = [
    *[
        one_by_one(f"{rule} {target.name}", target, *asks(text, flat=target is FLAT))
        for target in (DIRECT, FLAT, OLDEST, CANDIDATES, SINGLE)
        for rule, text in (
            ("C2 flags and controls of one sequence", "7S 7 7 7E"),
            ("SQ8 a whole sequence in one request", "7SE 8SE"),
            ("SQ6 the same id once more", "7S 7E 7S 7E"),
            ("SQ6 nothing after END", "7SE 7 7E"),
            ("SQ3 no START", "7 7E 8S 8E"),
            ("SQ7 START in the middle", "7S 7 7S 7 7E"),
            ("SQ7 START with the END", "7S 7 7SE 7"),
        )
    ],
    *[
        one_by_one(f"SQ4 interleaved {target.name}", target, *asks("1S 2S 1 2 2 1 1E 2E"))
        for target in (DIRECT, OLDEST, CANDIDATES, TWO)
    ],
    *[
        one_by_one(
            f"{rule} {target.name}",
            target,
            *[replace(send, correlation_id=of) for of in ids for send in asks("1S 1 1E")],
        )
        for target, rule, ids in (
            (DIRECT, "C3 ids", (2**63 - 1, 2**63, 2**64 - 1)),
            (OLDEST, "C3 ids", (2**63 - 1, 2**63, 2**64 - 1)),
            (TYPES[0], "C3 ids", (5, 2**33 + 5, 2**62, 2**63, 2**64 - 1)),
            (TYPES[1], "C3 ids", (5, 2**33 + 5, 2**32 - 1)),
            (TYPES[2], "C3 ids", (5, 2**33 + 5, 2**31 + 5, 2**32 - 1)),
        )
    ],
    *[
        one_by_one(f"{rule} {target.name}", target, send)
        for target in (DIRECT, OLDEST)
        for rule, send in (
            ("SQ2 no id", ask(0, "S")),
            ("SQ2 no id, no flags", ask(0)),
            (
                "SQ1 batch of two",
                Send({"IN": np.ones((2, 1), np.float32)}, correlation_id=3, sequence_start=True),
            ),
            ("SQ1 batch of two goes before the rest", Send({"IN": np.ones((2, 1), np.float32)})),
            ("SQ3 with timeout", ask(9, "", timeout_us=5)),
        )
    ],
    # Batches: the first request keeps the instance busy until all others have arrived.
    held("DI2 rows are slots", DIRECT, *asks("1SG 2S 3S 4S 4E 3E 2E 1E")),
    held("DI2 padding below the highest slot", DIRECT, *asks("1SG 2SE 3S 3 3E 1E")),
    held("DI2 nothing above the highest slot", DIRECT, *asks("1SEG 2S 2 2E")),
    held("DI7 many of one sequence", DIRECT, *asks("1SG 1 1 1 1 1E")),
    held("SQ5 backlog", DIRECT, *asks("1SG 2S 3S 4S 5S 6SE 5 5E 4E 3E 2E 1E")),
    held("SQ5 backlog of one slot", SINGLE, *asks("1SG 2S 3S 3E 2 2E 4SE 1 1E")),
    held("SQ6 the same id in the backlog twice", SINGLE, *asks("1SG 2S 2E 2S 2E 1E")),
    held("SQ6 the same id again while its END waits", DIRECT, *asks("1SG 1E 1S 1E")),
    held("SQ7 START in the backlog twice", SINGLE, *asks("1SG 2S 2S 2E 1E")),
    held("SQ3 in the backlog after END", SINGLE, *asks("1SG 2SE 2 1E")),
    held(
        "DI5 another shape waits",
        SHAPES,
        ask(1, "SG"),
        ask(2, "S"),
        ask(3, "S", length=2),
        ask(3, "E", length=2),
        ask(2, "E", length=2),
        ask(1, "E", length=3),
    ),
    held(
        "DI5 the first row's shape counts",
        SHAPES,
        ask(1, "SEG"),
        ask(2, "S", length=2),
        ask(3, "S"),
        ask(2, "E"),
        ask(3, "E", length=2),
    ),
    held("OL1 sequences share a batch", OLDEST_FIVE, *asks("1SG 2S 3S 4S 5S")),
    held("OL1 one at a time of a sequence", OLDEST, *asks("1SG 1 1 1E")),
    held("OL3 candidates", CANDIDATES, *asks("1SEG 2S 2 2E")),
    held("OL4 one after the other", CANDIDATES, *asks("1SEG 1S 1 1E")),
    # Time.
    one_by_one(
        "DI6 one of four waits for the delay",
        DELAY,
        ask(1, "S", takes_s=(0.39, ANSWER_S)),
        ask(1, "E", takes_s=(0.39, ANSWER_S)),
    ),
    held(
        "DI6 two of four are enough",
        NEVER,
        *asks("1SE 2SE"),
    ),
    held(
        "SQ11 the backlog times out",
        SINGLE,
        *asks("1SG"),
        ask(2, "S", takes_s=(0.19, ANSWER_S)),
        ask(2, timeout_us=200_000, takes_s=(0.19, ANSWER_S)),
        ask(2, takes_s=(0.15, ANSWER_S)),
        ask(1, "E"),
    ),
    held(
        "SQ11 no timeout in a slot",
        DIRECT,
        *asks("1SG"),
        ask(1, timeout_us=1),
        ask(1, "E", timeout_us=1),
    ),
    *[
        one_by_one(f"IT1 IT4 passes {target.name}", target, *[ask(0, "", n) for n in (3, 1, 2)])
        for target in (ITERATIVE, ITERATIVE_OLDEST)
    ],
    *[
        one_by_one(f"IT1 an id of one's own {target.name}", target, ask(77, "S", 3), ask(78, "", 1))
        for target in (ITERATIVE, ITERATIVE_OLDEST)
    ],
]


def random_life(random: Random, sequences: int, *, again: bool = True) -> tuple[Send, ...]:
    """Sequences that begin, go on and end in a random order, behind one that holds the instance."""
    left = {of: random.randint(1, 5) for of in range(1, sequences + 1)}
    begun: set[int] = set()
    words = ["1SG" if left[1] > 1 else "1SEG"]
    begun.add(1)
    left[1] -= 1
    while any(left.values()):
        of = random.choice([of for of, count in left.items() if count])
        left[of] -= 1
        start = of not in begun or random.random() < 0.1  # also of an active sequence: SQ7
        words.append(f"{of}{'S' if start else ''}{'' if left[of] else 'E'}")
        begun.add(of)
        if again and not left[of] and random.random() < 0.2:  # the id once more: SQ6
            left[of] = random.randint(1, 2)
            begun.discard(of)
    return asks(" ".join(words))


SCENARIOS += [
    held(f"seed {seed} {target.name}", target, *random_life(Random(seed), sequences))
    for target, sequences in ((DIRECT, 4), (DIRECT, 8), (SINGLE, 3))
    for seed in range(100 * sequences, 100 * sequences + 15)
]
# Whether a request joins the batch that waits or the one after is a race in tritonserver: of the
# oldest strategy, each request is compared for itself, and no id comes twice.
SCENARIOS += [
    replace(
        held(
            f"seed {seed} {target.name}", target, *random_life(Random(seed), sequences, again=False)
        ),
        statistics=False,
    )
    for target, sequences in ((OLDEST, 4), (CANDIDATES, 5))
    for seed in range(10)
]


def hold_long(scenario: Scenario) -> Scenario:
    return replace(scenario, hold_s=0.4) if scenario.id.startswith("SQ11 the backlog") else scenario


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences")
    write(folder, MODELS)
    return folder


@pytest.fixture(scope="module")
def ours(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurSide]:
    side = OurSide(repository, MODELS, tmp_path_factory.mktemp("gates"))
    yield side
    side.close()


def named(scenario: Scenario, outcome: Outcome) -> list[Answer]:
    """Number equal instances in their order of appearance: no rule says which is the first.

    So are executions, and without statistics no batches are compared at all.
    """
    instances: dict[str, int] = {}
    executions: dict[str, int] = {}
    answers = []
    for answer in outcome.answers:
        if "SEEN" in answer.outputs and scenario.models[0].source == LOOKS:
            datatype, shape, (seen,) = answer.outputs["SEEN"]
            text = seen.decode() if isinstance(seen, bytes) else seen
            instance, execution, *rest = text.split("; ")
            words = [instances.setdefault(instance, len(instances)), *rest[2:]]
            if scenario.statistics:
                first = executions.setdefault(instance, int(execution))
                words += [int(execution) - first, *rest[:2]]
            answer.outputs["SEEN"] = (datatype, shape, ["; ".join(map(str, words))])
        answers.append(answer)
    return answers


def decided(scenario: Scenario, statistics: dict[str, Any]) -> dict[str, Any]:
    """Take tritonserver's own requests out of its count of failures (IT3)."""
    if scenario.target not in (ITERATIVE.name, ITERATIVE_OLDEST.name):
        return statistics
    counts = dict(statistics[scenario.target])
    assert counts.pop("fail") == sum(
        send.sequence_start or not send.correlation_id for send in scenario.traffic
    )
    return {scenario.target: counts}


def without_rows(scenario: Scenario, statistics: dict[str, Any]) -> dict[str, Any]:
    """Leave out how many rows the batches of an iterative sequence had.

    tritonserver ends such a sequence by a request of its own, some time after the answer: until
    then its slot is taken, and the next request runs in the second row, behind a padded one.
    """
    if scenario.target != ITERATIVE.name:
        return statistics
    return {
        name: {key: count for key, count in counts.items() if not key.startswith("batch ")}
        for name, counts in statistics.items()
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_same_traffic_same_outcome(real: RealSide, ours: OurSide, scenario: Scenario) -> None:
    theirs = real.play(hold_long(scenario))
    mine = ours.play(hold_long(scenario))
    for side, outcome in (("tritonserver", theirs), ("nbtriton", mine)):
        for number, (send, answer) in enumerate(
            zip(scenario.traffic, outcome.answers, strict=True)
        ):
            low, high = send.takes_s
            assert low <= answer.took_s <= high, f"{side}: {number} took {answer.took_s:.3f} s"
    assert named(scenario, mine) == named(scenario, theirs)
    assert without_rows(scenario, mine.statistics) == without_rows(
        scenario, decided(scenario, theirs.statistics)
    )


@pytest.mark.parametrize(
    ("target", "silence_s"),
    [(LASTS, 0.2), (LASTS_OLDEST, 0.2), (IDLE, 2.0), (IDLE_OLDEST, 2.0)],
    ids=lambda value: getattr(value, "name", value),
)
def test_SQ9_idle_sequences_end(
    real: RealSide, ours: OurSide, target: Model, silence_s: float
) -> None:
    def play(side: RealSide | OurSide) -> list[Answer]:
        answers = side.play(one_by_one("begin", target, ask(1, "S"))).answers
        time.sleep(silence_s)
        return answers + side.play(one_by_one("go on", target, *asks("1 1E"))).answers

    assert play(ours) == play(real)


@pytest.mark.parametrize("target", [IDLE, IDLE_OLDEST], ids=lambda target: target.name)
def test_SQ9_idle_sequences_give_their_slot_to_the_backlog(
    real: RealSide, ours: OurSide, target: Model
) -> None:
    scenario = Scenario("idle", (target,), (*asks("1S 2S"), ask(2, "E"), ask(1)), statistics=False)

    def play(side: RealSide | OurSide) -> list[Answer]:
        answers = side.play(replace(scenario, traffic=scenario.traffic[:3])).answers
        assert 1.0 <= answers[1].took_s <= 20.0
        return answers + side.play(replace(scenario, traffic=scenario.traffic[3:])).answers

    assert play(ours) == play(real)


@pytest.mark.parametrize("target", [ITERATIVE, ITERATIVE_OLDEST], ids=lambda target: target.name)
def test_IT8_an_iterative_request_that_ends_its_sequence(
    real: RealSide, ours: OurSide, target: Model
) -> None:
    """A deliberate difference (`iterative-end`), and the same where nothing is rescheduled."""

    def play(side: RealSide | OurSide, passes: int, patience_s: float) -> str:
        send = ask(90 + passes, "SE", passes, patience_s=patience_s)
        (answer,) = side.play(replace(one_by_one("", target, send), statistics=False)).answers
        return answer.status

    assert [play(ours, passes, ANSWER_S) for passes in (1, 3)] == ["OK", "OK"]
    assert play(real, 1, ANSWER_S) == "OK"
    assert play(real, 3, 3.0) == UNANSWERED
