"""Play every case to tritonserver and to nbtriton, and count where they agree.

    python -m tests.differential [--cases N] [--seed S] [--isolation process] [pytest flags]

N cases are generated from the seed, beside those written by hand. Ends with ``N agree, M differ (K
deliberate)``, and with status 0 if all that differ do so on purpose.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
DOING = {
    "test_differential.py": "by hand",
    "test_sequences.py": "sequences",
    "test_load_failures.py": "load failures",
    "test_updates.py": "instances and versions",
    "test_generated.py": "by hand, with a cache",
}


def family(nodeid: str) -> str:
    """Return the family of a test: of generated cases what their id says."""
    file, _, name = nodeid.partition("::")
    if re.search(r"config(?: of |\[)|metadata\[", name):
        return "configurations and metadata"
    found = re.search(r"\[([\w ]+): seed \d+", name)
    if found:
        return f"generated: {found.group(1)}"
    return DOING.get(Path(file).name, Path(file).stem)


class Tally:
    """A pytest plugin that counts cases instead of printing dots."""

    def __init__(self) -> None:
        self.agree: Counter[str] = Counter()
        self.differ: dict[str, list[str]] = {}
        self.on_purpose: Counter[str] = Counter()
        self.deliberate: Counter[str] = Counter()
        self.skipped = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give the first case of a server the time that it takes to start an actor for each instance."""
        if os.environ["NBTRITON_ISOLATION"] == "ray":
            for item in items:
                item.add_marker(pytest.mark.timeout(1800), append=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "reference" not in report.keywords:
            return
        where = family(report.nodeid)
        if report.failed:
            self.differ.setdefault(where, []).append(report.nodeid)
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            names = [value for key, value in report.user_properties if key == "deliberate"]
            self.deliberate.update(names)
            if names:
                self.on_purpose[where] += 1
            else:
                self.agree[where] += 1


def _counts(agree: int, failed: int, on_purpose: int) -> str:
    return f"{agree} agree, {failed + on_purpose} differ ({on_purpose} deliberate)"


def main(arguments: list[str]) -> int:
    """Run the suite; 0 if both servers agree wherever they are meant to."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--cases", type=int, default=300, help="how many to generate (300)")
    parser.add_argument("--seed", type=int, default=1, help="of the first lot of them (1)")
    parser.add_argument(
        "--isolation",
        choices=("thread", "process", "ray"),
        default="thread",
        help="where the instances of nbtriton's models live (thread); ray: in the cluster of RAY_ADDRESS",
    )
    options, flags = parser.parse_known_args(arguments)
    os.environ["NBTRITON_CASES"] = str(options.cases)
    os.environ["NBTRITON_SEED"] = str(options.seed)
    os.environ["NBTRITON_ISOLATION"] = options.isolation
    if options.isolation == "ray":
        # Hundreds of actors take a second of a processor each to start: no test hangs that waits for some.
        flags += ["-o", "faulthandler_timeout=1800"]
    tally = Tally()
    status = pytest.main(
        [str(FOLDER), "-m", "reference", "-q", "--no-header", "--tb=short", *flags], plugins=[tally]
    )
    print()
    for where in sorted({*tally.agree, *tally.on_purpose, *tally.differ}):
        failed = len(tally.differ.get(where, ()))
        print(f"{where:32} {_counts(tally.agree[where], failed, tally.on_purpose[where])}")
    print("\nDeliberate, as docs/differences.md explains:")
    for name, count in sorted(tally.deliberate.items()):
        print(f"    {name:32} {count:3}")
    if tally.skipped:
        print(f"{tally.skipped} skipped, for the reasons above")
    for nodeids in tally.differ.values():
        print(*nodeids, sep="\n")
    failed = sum(map(len, tally.differ.values()))
    print(_counts(tally.agree.total(), failed, tally.on_purpose.total()))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
