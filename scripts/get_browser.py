"""Find a Chromium for the browser tests, or get one, and write its path into a file.

usage: get_browser.py FILE

In this order: $NBTRITON_CHROMIUM, a Chromium or Chrome on the PATH, Debian's package (as root or
with passwordless sudo), Playwright's own download. FILE is left empty where none of them works:
the tests that need a browser then skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from environment import as_root, quietly, say

NAMES = ("chromium", "google-chrome", "google-chrome-stable")


def works(path: str | None) -> bool:
    """Tell whether the program starts at all (Ubuntu's `chromium-browser` may be an empty shell)."""
    return bool(path) and quietly([str(path), "--version"])


def on_path() -> str:
    """Return the first working browser on the PATH, or an empty text."""
    return next((path for name in NAMES if works(path := shutil.which(name))), "") or ""


def from_debian() -> str:
    """Install Debian's chromium; Ubuntu's is a stub for snap, which `works` then refuses."""
    root = as_root()
    if root is None or not shutil.which("apt-get"):
        return ""
    say("Installing chromium with apt-get (about half a minute)")
    environment = [*root, "env", "DEBIAN_FRONTEND=noninteractive"]
    quietly([*environment, "apt-get", "update", "-qq"])
    quietly(
        [*environment, "apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    )
    return on_path()


def from_playwright() -> str:
    """Let Playwright download its own Chromium."""
    say("Installing Playwright's chromium")
    if not quietly([sys.executable, "-m", "playwright", "install", "chromium"]):
        return ""
    code = (
        "from playwright.sync_api import sync_playwright as s\n"
        "with s() as p: print(p.chromium.executable_path)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found if works(found) else ""


def main() -> None:
    """Write the path of a browser that starts, or nothing."""
    given = os.environ.get("NBTRITON_CHROMIUM", "")
    if given and not works(given):
        sys.exit(f"NBTRITON_CHROMIUM={given} does not start")
    path = given or on_path() or from_debian() or from_playwright()
    say(f"Browser: {path}" if path else "No browser could be had: the tests that need one skip")
    Path(sys.argv[1]).write_text(path)


if __name__ == "__main__":
    main()
