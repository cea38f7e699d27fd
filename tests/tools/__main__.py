"""Run tools of others with nbtriton, and print a line for each.

    python -m tests.tools [TOOL …] [--newest]

Each has an environment of its own in ``~/.cache/nbtriton/tools`` (``NBTRITON_TOOLS``), which is made where it
is missing; ``--newest`` makes it anew without the versions of the table. The status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.tools.environments import environment_of
from tests.tools.runs import RUNS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tools", nargs="*", metavar="TOOL", help=f"of {', '.join(RUNS)}; all by default"
    )
    parser.add_argument("--newest", action="store_true", help="install the newest versions")
    given = parser.parse_args()
    unknown = [name for name in given.tools if name not in RUNS]
    if unknown:
        parser.error(f"no tool {', '.join(unknown)}; there are {', '.join(RUNS)}")
    failed = False
    for name in given.tools or RUNS:
        environment = environment_of(name)
        if given.newest or not environment.is_installed:
            print(f"{name}: installing", flush=True)
            environment.install(newest=given.newest)
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                seen = RUNS[name](environment, Path(folder))
            except Exception as error:
                failed = True
                seen = f"FAILED: {type(error).__name__}: {error}"
        print(
            f"{name} {environment.version()}: {seen} ({time.monotonic() - begin:.0f} s)", flush=True
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
