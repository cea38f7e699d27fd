"""Loads, unloads and looks under a garbage collector that never rests: ``python -m tests.engine.storm``.

Models of every kind come and go under new names and under old ones, each is asked once, and a cell that
looks is never far. Run it on the compiled build (``PYTHONPATH=build/compiled``), where an object that the
collector takes for garbage by mistake ends the process.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import TritonError
from nbtriton.lab.explain.timeline import read_timeline
from nbtriton.runtime.engine import Server
from tests.engine.heap import overcounted
from tests.engine.sequence_models import accumulator, config, passing, pieces
from tests.engine.soak import calling
from tests.engine.support import WAIT_S, echo, ensemble_text, row, streaming

__all__ = ["KINDS", "Kind", "storm"]

# Names that are used again: more than the recorder keeps histories of unloaded models.
_NAMES = 400
# What the ensembles and the callers call.
BASE = "batched"
_LOADED = 12
_LEARNING = 0.2  # of the operations, before memory is measured
_MOST_GROWN_MIB = 32  # measured: 3 in 1,000 operations, 1 in 100,000
_STATE = (
    'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: 1 '
    'initial_state { name: "zero" data_type: TYPE_FP32 dims: 1 zero_data: true } }'
)
_PROCESS = 'parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }'


def plus_one(IN):  # noqa: N803 - a model function names its tensors
    return {"OUT": IN + 1}


def _ask(server: Server, name: str) -> None:
    assert (server.infer(name, {"IN": row(1)})["OUT"] == 2).all()


def _ask_caller(server: Server, name: str) -> None:
    assert (server.infer(name, {"IN": row(1)})["OUT"] == 3).all()


def _ask_ensemble(server: Server, name: str) -> None:
    assert (server.infer(name, {"X": row(1)})["Y"] == 3).all()


def _ask_sequence(server: Server, name: str) -> None:
    for value, total in ((1, 1), (2, 3)):
        found = server.infer(
            name, {"IN": np.array([[value]], np.float32)}, sequence_id=7,
            sequence_start=value == 1, sequence_end=False,
        )  # fmt: skip
        assert found["OUT"] == total


def _ask_iterative(server: Server, name: str) -> None:
    found = server.infer(
        name, {"IN": np.full((1, 3), 2, np.float32)}, sequence_id=7, sequence_start=True
    )
    assert found["OUT"].shape[-1] == 2


def _ask_decoupled(server: Server, name: str) -> None:
    assert len(list(server.stream(name, {"IN": row(3)}))) == 3


def _cancel(server: Server, name: str) -> None:
    future = server.submit(name, {"IN": row(1)})
    future.cancel()
    future.exception(WAIT_S)


class Kind:
    """A kind of model: its configuration, its code, what is asked of it, and how often it comes."""

    def __init__(
        self, text: str, model: Callable[[], Any], ask: Callable[[Server, str], None], weight: int
    ) -> None:
        self.text, self.model, self.ask, self.weight = text, model, ask, weight


WHOLE = ensemble_text(
    (BASE, {"IN": "X"}, {"OUT": "m"}),
    (BASE, {"IN": "m"}, {"OUT": "Y"}),
    inputs={"X": "FP32[4]"},
    outputs={"Y": "FP32[4]"},
)
KINDS = {
    "function": Kind(echo("dynamic_batching {}"), lambda: plus_one, _ask, 40),
    "cancelled": Kind(echo("dynamic_batching {}"), lambda: plus_one, _cancel, 5),
    "cached": Kind(echo("response_cache { enable: true }"), lambda: plus_one, _ask, 5),
    "ordered": Kind(
        echo("dynamic_batching { preserve_ordering: true } instance_group { count: 2 }"),
        lambda: plus_one, _ask, 5,
    ),
    "calling": Kind(echo(), calling, _ask_caller, 10),
    "ensemble": Kind(WHOLE, lambda: None, _ask_ensemble, 15),
    "decoupled": Kind(
        echo("model_transaction_policy { decoupled: true }"), streaming, _ask_decoupled, 5
    ),
    "sequence": Kind(config(_STATE), accumulator, _ask_sequence, 5),
    "iterative": Kind(pieces("iterative_sequence: true"), passing, _ask_iterative, 5),
    "process": Kind(echo(_PROCESS), lambda: plus_one, _ask, 1),
}  # fmt: skip


class Refusing:
    """A model that cannot be loaded."""

    def initialize(self, args: dict[str, str]) -> None:
        raise ValueError(args["model_name"])

    def execute(self, requests: Sequence[Any]) -> None: ...


LOOKS: tuple[Callable[[Server, str], object], ...] = (
    lambda server, _: nt.status(server),
    lambda server, _: nt.events(server),
    lambda server, name: nt.events(server, name, by="batch"),
    nt.why,
    read_timeline,
    lambda server, _: server.statistics(),
    lambda server, _: server.models(),
    lambda server, _: server.snapshot(),
)


def _memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class _Storm:
    """A server in a storm: what is loaded, under which name, and what was done so far."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self._loaded: dict[str, Kind] = {}
        self._used: list[str] = []
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """Load a model and ask it, unload one, or look."""
        what = self._chance.choices(("load", "unload", "look"), (4, 3, 3))[0]
        if what == "look" or (what == "unload" and not self._loaded):
            self._look()
        elif what == "unload" or len(self._loaded) >= _LOADED:
            name = self._chance.choice([*self._loaded])
            del self._loaded[name]
            self.done["unload"] += 1
            assert self._server.unload(name, timeout_s=WAIT_S)
        else:
            self._load()

    def unload_all(self) -> None:
        for name in self._loaded:
            assert self._server.unload(name, timeout_s=WAIT_S)
        self._loaded.clear()

    def _load(self) -> None:
        self.done["load"] += 1
        name = self._name()
        if self._chance.random() < 0.02:
            try:
                self._server.load(echo(), Refusing, name=name)
            except TritonError:
                self.done["refused"] += 1
                return
            raise AssertionError("a model was loaded whose initialize raises")
        weights = [kind.weight for kind in KINDS.values()]
        kind = KINDS[self._chance.choices([*KINDS], weights)[0]]
        self._server.load(kind.text, kind.model(), name=name)
        self._loaded[name] = kind
        kind.ask(self._server, name)

    def _name(self) -> str:
        """Return a new name, one that was used before, or that of a loaded model."""
        if len(self._used) < _NAMES and self._chance.random() < 0.5:
            self._used.append(f"storm{len(self._used)}")
            return self._used[-1]
        return self._chance.choice(self._used or ["storm"])

    def _look(self) -> None:
        self.done["look"] += 1
        name = self._chance.choice([*self._loaded, BASE])
        self._chance.choice(LOOKS)(self._server, name)


def storm(
    operations: int,
    thresholds: Sequence[int],
    seed: int = 0,
    report: Callable[[str], object] | None = None,
) -> Counter[str]:
    """Count the operations by kind; with them the growth of memory, in MiB, once all has been seen.

    Raises
    ------
    AssertionError
        A wrong answer, an object that the collector finds more often than it is referred to, or memory that grows.
    """
    install_pb_utils()
    before = gc.get_threshold()
    with Server(gpus=(), cache_bytes=1 << 20, recorder=200) as server:
        server.load(echo("dynamic_batching {}"), plus_one, name=BASE)
        storming = _Storm(server, seed)
        for kind in KINDS.values():  # imports
            server.load(kind.text, kind.model(), name="first")
            kind.ask(server, "first")
            server.unload("first", timeout_s=WAIT_S)
        for look in LOOKS:
            look(server, BASE)
        gc.collect()
        gc.freeze()  # a collection looks at what comes and goes, not at the imported modules
        gc.set_threshold(*thresholds)
        learned_mib, began = 0.0, monotonic()
        try:
            for number in range(operations):
                storming.step()
                if number == int(_LEARNING * operations):
                    learned_mib = _memory_mib()
                if report is not None and number % max(1, operations // 20) == 0:
                    report(
                        f"{number} in {monotonic() - began:.0f} s, {_memory_mib():.0f} MiB: "
                        f"{dict(storming.done)}"
                    )
            wrong, _ = overcounted()
            assert not wrong, wrong
            storming.unload_all()
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()
        storming.done["grown_mib"] = grown = round(_memory_mib() - learned_mib)
        assert grown <= _MOST_GROWN_MIB, f"memory has grown by {grown} MiB"
    return storming.done


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.storm", description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--thresholds", type=int, nargs=3, default=(50, 2, 2))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter(
        "ignore", nt.errors.ConfigWarning
    )  # what its models have that works here alone
    done = storm(arguments.operations, arguments.thresholds, arguments.seed, print)
    print(f"{'compiled' if nt.compiled else 'pure Python'}, {arguments.thresholds}: {dict(done)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
