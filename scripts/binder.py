"""Make Binder's environment as repo2docker does, and run the first lesson in it: ``make binder``.

Without Docker: a new environment of this Python in ``build/binder``, then ``binder/postBuild``, then the notebook
through ``binder/start``. Exit status 1 if a step fails or the environment exceeds its limit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from environment import make_venv

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "build" / "binder"
FIRST = "notebooks/01_five_cells.ipynb"
MOST_MB = 1500


def run(*command: str) -> None:
    """Run a command in the checkout, with the environment's programs (``pip``, ``python``) first."""
    print("$", *command, flush=True)
    path = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "PATH": path})
    if done.returncode:
        sys.exit(f"{command[0]} ended with status {done.returncode}")


def size_mb(folder: Path) -> float:
    """Return the disk use of a folder's files without links, in megabytes (1e6 bytes)."""
    files = (path.lstat() for path in folder.rglob("*") if not path.is_dir())
    return sum(512 * found.st_blocks for found in files) / 1e6


def main() -> None:
    """Make the environment, run the lesson, measure the size."""
    wanted = (ROOT / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here != wanted:
        print(f"Binder has Python {wanted}, this is {here}: wheels may differ")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    make_venv(ENVIRONMENT)
    run("binder/postBuild")
    run("binder/start", "python", "scripts/run_notebook.py", FIRST, "--out", "build/binder-run")
    size = size_mb(ENVIRONMENT)
    print(f"the environment has {size:.0f} MB, of {MOST_MB} that it may have")
    if size > MOST_MB:
        sys.exit(1)


if __name__ == "__main__":
    main()
