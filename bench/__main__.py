"""Command line of the benches: ``python -m bench [BENCH ...]``; ``--list`` shows every figure."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import history
from bench.figures import Figure
from bench.harness import RESULTS, Options, listed, run, summary, table, write

__all__ = ["BENCHES", "figures", "main"]

# Each bench is a module with FIGURES; `make bench` runs them in this order.
BENCHES = {
    "kernel": "kernel",
    "ensemble": "ensemble",
    "bls": "bls",
    "recorder": "recorder",
    "live": "live",
    "compiled": "compiled",
    "large": "large",
    "http": "over_http",
    "grpc": "over_grpc",
    "strings": "strings",
    "torch": "pytorch",
    "backends": "backends",
    "batching": "batching",
    "readability": "readability.figures",
    "scale": "scale",
    "import": "imports",
    "install": "installing",
    "memory": "memory",
    "lessons": "lessons",
    "workers": "workers",
    "others": "others",
    "threads": "threads",
    "interpreters": "interpreters",
    "video": "video",
}


def figures(bench: str) -> Sequence[Figure]:
    """Return the figures of a bench."""
    found: Sequence[Figure] = importlib.import_module(f"bench.{BENCHES[bench]}").FIGURES
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run benches, and print the missed targets."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"of {', '.join(BENCHES)}; all by default")
    parser.add_argument("--list", action="store_true", help="show the figures and their targets")
    parser.add_argument(
        "--history", nargs="?", const="", metavar="PATTERN", help="show how figures developed"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of both sides in turn (5)")
    parser.add_argument("--interval-ms", type=int, default=400, help="length of a window (400)")
    parser.add_argument("--short", action="store_true", help="what takes minutes, in seconds")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only figures named so")
    parser.add_argument("--no-history", action="store_true", help="leave the history as it is")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.bench if name not in BENCHES]
    if unknown:
        parser.error(f"no bench '{unknown[0]}'; there are {', '.join(BENCHES)}")
    names = arguments.bench or list(BENCHES)
    if arguments.list:
        print("\n".join(listed(figures(name)) for name in names))
        return 0
    if arguments.history is not None:
        print(history.table(history.read(history.HISTORY), arguments.history))
        return 0
    options = Options(
        rounds=arguments.rounds,
        interval_ms=arguments.interval_ms,
        short=arguments.short,
        only=arguments.only,
        history=None if arguments.no_history else history.HISTORY,
        results=arguments.results,
    )
    everything = []
    for name in names:
        results = run(figures(name), options)
        if results:
            print(f"\n{table(results)}\n\nWritten to {write(name, results, options)}\n", flush=True)
        everything += results
    print(summary(everything))
    return 0


if __name__ == "__main__":
    sys.exit(main())
