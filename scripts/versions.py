"""Run tests with the lowest or the newest versions of the dependencies: ``make test-lowest``, ``make test-newest``.

usage: scripts/versions.py lowest|newest [OPTION OF PYTEST ...]

Makes build/lowest or build/newest with uv, as pip's resolver takes half an hour for the lowest versions. If PyTorch's
index cannot be reached, torch has the version of constraints.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from environment import make_venv

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
WANTED = (
    "-e.[fil,grpc,lab,onnx,plot,torch]", "h2", "hatchling", "hpack", "hypothesis", "nbclient", "openai",
    "packaging", "pytest", "pytest-timeout", "pytest-xdist", "pyyaml",
)  # fmt: skip
# tritonclient's stubs need a newer grpcio than nbtriton: tests that use the client are skipped without it.
ONLY_NEWEST = ("ml-dtypes", "tritonclient[grpc,http]")
TESTS = (
    "config",
    "scheduling",
    "tensors",
    "engine",
    "frontends",
    "perf",
    "magics",
    "widgets",
    "cli",
)
# Settings of pip, which uv does not read, as options of uv.
SETTINGS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
}


def reached(url: str) -> bool:
    """Return whether a server responds."""
    try:
        with urllib.request.urlopen(url, timeout=20):
            return True
    except OSError:
        return False


def constraints(which: str, *, cpu_index: bool) -> list[str]:
    """Return the versions to install, as lines of a constraints file."""
    lowest = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    kept = [line for line in lowest if line and not line.startswith("#")]
    lines = kept if which == "lowest" else []
    if cpu_index:
        return lines
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    torch = [line for line in pinned if line.startswith("torch==")]
    return [line for line in lines if not line.startswith("torch==")] + torch


def pip_settings(python: Path) -> list[str]:
    """Return pip's settings of indexes as options of uv."""
    done = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    options: list[str] = []
    for name, values in re.findall(r"^[:\w]+\.([\w-]+)='(.*)'$", done.stdout, re.MULTILINE):
        if name in SETTINGS:
            options += [part for value in values.split() for part in (SETTINGS[name], value)]
    return options


def install(folder: Path, which: str) -> Path:
    """Make the environment; return its Python."""
    python = folder / "bin" / "python"
    make_venv(folder)
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv"], check=True
    )
    cpu_index = reached(f"{CPU_INDEX}/torch/")
    options = pip_settings(python)
    if cpu_index:
        options += ["--index", CPU_INDEX]
    else:
        print(f"{CPU_INDEX} cannot be reached: torch is that of constraints.txt", flush=True)
    pins = folder / "constraints.txt"
    pins.write_text("\n".join(constraints(which, cpu_index=cpu_index)) + "\n")
    wanted = [*WANTED, *(ONLY_NEWEST if which == "newest" else ())]
    # The best version of all indexes, as in pip.
    subprocess.run(
        [folder / "bin" / "uv", "pip", "install", "--upgrade", "--python", python, "--constraints", pins,
         "--index-strategy", "unsafe-best-match", *options, *wanted],
        cwd=ROOT, check=True,
    )  # fmt: skip
    return python


def main(argv: Sequence[str]) -> int:
    """Install the versions and run the tests."""
    if len(argv) < 2 or argv[1] not in ("lowest", "newest"):
        sys.exit((__doc__ or "").partition("\n\n")[2])
    which = argv[1]
    if which == "lowest" and sys.version_info[:2] != (3, 11):
        sys.exit(
            "The lowest versions have no builds for a Python above 3.11: make test-lowest PYTHON=python3.11"
        )
    try:
        python = install(ROOT / "build" / which, which)
    except subprocess.CalledProcessError as error:
        sys.exit(f"The {which} versions could not be installed ({error.cmd[0]} says why, above)")
    return subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", "--hypothesis-profile=fast",
         "-m", "not (slow or reference or browser or lab)", *(f"tests/{one}" for one in TESTS), *argv[2:]],
        cwd=ROOT, check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv))
