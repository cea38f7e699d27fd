"""Shared parts of the fuzz runs over HTTP and gRPC: counting, a check for leaks, the command."""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.execution import Execution
from tests.frontends.models import MODELS, load_all, write_all
from tests.seeds import SEED, free_seed

__all__ = ["Part", "Tally", "fuzz", "load_models", "main", "scratched", "short_run"]

# The template cache has 256 requests with some outputs each.
KEPT = 2_000


@dataclass
class Tally:
    """Counts of outcomes, reported at intervals."""

    every: int
    done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    started_s: float = field(default_factory=time.monotonic)

    def count(self, codes: Sequence[str]) -> None:
        self.codes.update(codes)
        before, self.done = self.done, self.done + len(codes)
        if self.done // self.every > before // self.every:
            self.report()

    def report(self) -> None:
        rate = self.done / (time.monotonic() - self.started_s)
        codes = ", ".join(f"{code} {count:,}" for code, count in self.codes.most_common())
        print(f"{self.done:>10,} inputs, {rate:,.0f} a second: {codes}", flush=True)


Part = Callable[[Server, int, random.Random, Tally], None]


def memory() -> tuple[int, float]:
    """Return how many objects of ours are alive, and how many MiB this process takes."""
    gc.collect()
    # But for the last executions: the statistics of a model keep 4096 of them.
    kinds = [type(one) for one in gc.get_objects() if type(one) is not Execution]
    ours = sum(str(kind.__module__).startswith("nbtriton") for kind in kinds)
    (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in s)
    return ours, int(line.split()[1]) / 1024


def fuzz(
    server: Server, inputs: int, seed: int, *, handlers: Part, endpoint: Part, every: int = 50_000
) -> None:
    """Send that many inputs; raises AssertionError at the first wrong answer.

    One in twenty goes to the port, the others to what reads and answers them. Memory must not grow:
    a tenth of the inputs fills the caches.
    """
    print(f"seed {seed}, {inputs:,} inputs", flush=True)
    dice = random.Random(seed)
    tally = Tally(every)
    on_port = inputs // 20
    handlers(server, inputs // 10, dice, tally)
    objects, size_mib = memory()
    handlers(server, inputs - inputs // 10 - on_port, dice, tally)
    more, now_mib = memory()
    print(f"{more - objects:+,} of {more:,} objects, {now_mib - size_mib:+.1f} MiB", flush=True)
    assert more - objects < KEPT, "objects are kept"
    endpoint(server, on_port, dice, tally)
    if tally.done % every:
        tally.report()


def scratched(data: bytes, dice: random.Random, times: int, most: int) -> bytes:
    """Change a number of bytes at a number of places."""
    raw = bytearray(data)
    for _ in range(times):
        at = dice.randint(0, len(raw))
        raw[at : at + dice.randint(0, most)] = dice.randbytes(dice.randint(0, most))
    return bytes(raw)


def load_models(server: Server, folder: Path) -> None:
    """Load the models of the endpoints' tests; a stream ends after 20 responses, a sequence after 5 s of silence."""
    write_all(folder)
    source = folder / "stream" / "1" / "model.py"
    source.write_text(source.read_text().replace("100_000", "20"))
    config = folder / "sequence" / "config.pbtxt"
    config.write_text(config.read_text().replace("600000000", "5000000"))
    load_all(server, folder, tuple(MODELS))


def short_run(folder: Path, handlers: Part, endpoint: Part) -> None:
    """Run one of them as a test; ``NBTRITON_FUZZ`` sets another number of inputs."""
    with Server(gpus=()) as server:
        load_models(server, folder)
        inputs = int(os.environ.get("NBTRITON_FUZZ", "20000"))
        fuzz(server, inputs, SEED, handlers=handlers, endpoint=endpoint)


def main(what: str, handlers: Part, endpoint: Part) -> int:
    """Run one of them as a command; a warning that code of ours causes is an error, as in pytest."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=free_seed())
    arguments = parser.parse_args()
    warnings.filterwarnings("error", module="nbtriton")
    with tempfile.TemporaryDirectory() as folder, Server(gpus=()) as server:
        load_models(server, Path(folder))
        fuzz(server, arguments.inputs, arguments.seed, handlers=handlers, endpoint=endpoint)
    print("no crash, no hang, no leak, no fault of ours")
    return 0
