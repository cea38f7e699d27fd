"""Make a virtual environment and install packages into it, pinned by constraints.txt.

usage: environment.py DIRECTORY PACKAGE...

Runs on the system's Python (standard library only) and prints its steps, with the progress of long
ones. Without ``ensurepip`` (Debian and Ubuntu leave it out of their ``python3``) it uses virtualenv
or another pip if there is one, else Debian's package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
# Interval of progress lines without a terminal.
HEARTBEAT_S = 10.0
# Beginnings of pip's output lines, and the text shown for each; by default the line itself.
STEPS = {
    "Collecting ": "",
    "Downloading ": "",
    "Installing build dependencies": "build dependencies of nbtriton",
    "Installing collected packages": "unpacking",
    "WARNING: Retrying": "an index does not answer; pip asks again",
}


def say(text: str) -> None:
    """Print one line at once."""
    print(text, flush=True)


def quietly(command: Sequence[str]) -> bool:
    """Run a command without its output; return True if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def as_root() -> list[str] | None:
    """Return the prefix that runs a command as root without a password; None if there is none."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and quietly(["sudo", "-n", "true"]):
        return ["sudo", "-n"]
    return None


def make_venv(directory: Path) -> None:
    """Create the environment with pip in it."""
    if quietly([str(directory / "bin" / "python"), "-m", "pip", "--version"]):
        return
    shutil.rmtree(directory, ignore_errors=True)
    say(f"Creating {directory.name} with Python {sys.version.split()[0]}")
    if quietly([sys.executable, "-m", "venv", str(directory)]):
        return
    for tool in ([sys.executable, "-m", "virtualenv"], ["virtualenv", "-p", sys.executable]):
        if shutil.which(tool[0]) and quietly([*tool, str(directory)]):
            return
    # Another pip, but no ensurepip: it can install itself into a bare environment.
    bare = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(directory)]
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
    if quietly(bare) and quietly([*pip, "install", "-q", "pip"]):
        return
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    root = as_root()
    if root is not None and shutil.which("apt-get"):
        say(f"Installing {package} (this Python comes without ensurepip)")
        quietly([*root, "apt-get", "update", "-qq"])
        install = [*root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if quietly(install):
            shutil.rmtree(directory, ignore_errors=True)
            if quietly([sys.executable, "-m", "venv", str(directory)]):
                return
    shutil.rmtree(directory, ignore_errors=True)
    sys.exit(
        f"This Python cannot make virtual environments. Install {package}:\n"
        f"  sudo apt-get install {package}"
    )


def install(directory: Path, packages: Sequence[str]) -> None:
    """Install packages in the pinned versions; a folder as one that follows its sources."""
    # Byte code of all that is installed takes as much of a processor as the rest; an import writes what it needs.
    command = [
        str(directory / "bin" / "python"), "-m", "pip", "install",
        "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-compile",
        "-c", "constraints.txt",
    ]  # fmt: skip
    # The one that Python brings may read what is known of each package again for each other package.
    quietly([*command, "pip>=26"])
    for package in packages:
        command += ["-e", package] if package.startswith(".") else [package]
    log: list[str] = []
    named = " ".join(packages).replace(".[", "nbtriton[")
    say(f"Installing {named} into {directory.name}")
    with (
        Progress() as progress,
        subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            progress.read(line.strip())
    if process.returncode:
        sys.exit(
            "".join(log[-40:]) + "\npip could not install the packages (its last lines are above)"
        )
    say(f"Installed in {progress.elapsed_s:.0f} s")


class Progress:
    """Prints pip's progress, also while pip prints nothing: unpacking or waiting for an index takes minutes."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._collected, self._step = 0, "pip starts"
        self._terminal = sys.stdout.isatty()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._terminal:
            print()

    def read(self, line: str) -> None:
        """Process one line of pip's output."""
        self._collected += line.startswith("Collecting ")
        for start, step in STEPS.items():
            if line.startswith(start):
                self._step = step or line

    def _run(self) -> None:
        while not self._ended.wait(1.0 if self._terminal else HEARTBEAT_S):
            text = f"  {self.elapsed_s:4.0f} s  {self._collected} packages  {self._step[:60]}"
            line, end = (f"\r{text:<100}", "") if self._terminal else (text, "\n")
            print(line, end=end, flush=True)


def main(argv: Sequence[str]) -> None:
    """Make the environment, then fill it."""
    directory = Path(argv[1]).absolute()
    make_venv(directory)
    install(directory, argv[2:])


if __name__ == "__main__":
    main(sys.argv)
