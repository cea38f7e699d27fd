"""Make a virtual environment and install nbtriton into it, pinned by constraints.txt.

usage: environment.py DIRECTORY EXTRA[,EXTRA...]

Runs on the bare system Python (standard library only). Prints what it does; a step of more than a
few seconds shows how far it is. Without ``ensurepip`` (Debian and Ubuntu leave it out of their
``python3``) it uses virtualenv or another pip if it finds one, else Debian's own package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A line this often without a terminal to rewrite one on.
HEARTBEAT_S = 10.0
# The lines of pip's output that say how far it is.
STEPS = ("Collecting ", "Downloading ", "Installing collected packages")


def say(text: str) -> None:
    """Print one line now."""
    print(text, flush=True)


def quietly(command: Sequence[str]) -> bool:
    """Run a command and drop its output; return True if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def as_root() -> list[str] | None:
    """Return the prefix that makes a command run as root without asking, None if there is none."""
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


def install(directory: Path, extras: str) -> None:
    """Install the package and its extras, with the pinned versions only."""
    command = [
        str(directory / "bin" / "python"), "-m", "pip", "install",
        "--disable-pip-version-check", "--no-input", "--progress-bar", "off",
        "-c", "constraints.txt", "-e", f".[{extras}]",
    ]  # fmt: skip
    start = shown = time.monotonic()
    collected, log = 0, []
    terminal = sys.stdout.isatty()
    say(f"Installing nbtriton[{extras}] into {directory.name}")
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            step = line.strip()
            if not step.startswith(STEPS):
                continue
            unpacking = step.startswith("Installing")
            collected += step.startswith("Collecting")
            now = time.monotonic()
            if terminal or unpacking or now - shown > HEARTBEAT_S:
                shown = now
                what = "unpacking" if unpacking else step[:60]
                text = f"  {now - start:4.0f} s  {collected} packages  {what}"
                print(
                    f"\r{text:<100}" if terminal else text, end="" if terminal else "\n", flush=True
                )
    if terminal:
        print()
    if process.returncode:
        sys.exit(
            "".join(log[-40:]) + "\npip could not install the packages (its last lines are above)"
        )
    say(f"Installed in {time.monotonic() - start:.0f} s")


def main(argv: Sequence[str]) -> None:
    """Make the environment, then fill it."""
    directory, extras = Path(argv[1]).absolute(), argv[2]
    make_venv(directory)
    install(directory, extras)


if __name__ == "__main__":
    main(sys.argv)
