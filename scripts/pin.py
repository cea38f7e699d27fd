"""Resolve constraints.txt again from pyproject.toml: today's versions for tests and documentation.

Resolved for Debian 12's Python, the oldest for `make test`: some packages need a later patch release of 3.11.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = "3.11.2"
ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# The set that nbtriton is tested with: every install of the Makefile, of CI and of Binder uses it
# (pip install -c constraints.txt). `make pin` resolves it anew after a change of pyproject.toml.
"""


def main() -> None:
    """Write the versions that pip would install, without local version labels."""
    kept = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if "torch==" in line
    ]
    with tempfile.TemporaryDirectory() as scratch:
        report, pins = Path(scratch, "report.json"), Path(scratch, "torch.txt")
        # torch is pinned by hand: its wheels are gigabytes, and a new version is tested separately.
        pins.write_text("\n".join(kept))
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q",
             "--python-version", OLDEST, "--only-binary", ":all:", "--target", scratch,
             "--report", str(report), "-c", str(pins), f"{ROOT}[docs,lite,test]"],
            check=True,
        )  # fmt: skip
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    lines = sorted(
        (f"{m['name']}=={m['version'].split('+')[0]}" for m in found if m["name"] != "nbtriton"),
        key=str.lower,
    )
    (ROOT / "constraints.txt").write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
