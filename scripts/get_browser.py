"""Find or install a Chromium for the browser tests, and write its path into a file.

usage: get_browser.py FILE

In this order: $NBTRITON_CHROMIUM, a Chromium or Chrome on the PATH, Debian's package (as root or with
passwordless sudo), Playwright's download. FILE is empty if none works; tests that need a browser then
skip.
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
    """Return whether the program starts (Ubuntu's `chromium-browser` may be a stub)."""
    return bool(path) and quietly([str(path), "--version"])


def on_path() -> str:
    """Return the first working browser on the PATH, or an empty text."""
    return next((path for name in NAMES if works(path := shutil.which(name))), "") or ""


def apt_install(package: str, why: str) -> bool:
    """Install a Debian package if that needs no password."""
    root = as_root()
    if root is None or not shutil.which("apt-get"):
        return False
    say(f"Installing {package} with apt-get ({why})")
    environment = [*root, "env", "DEBIAN_FRONTEND=noninteractive"]
    quietly([*environment, "apt-get", "update", "-qq"])
    return quietly(
        [*environment, "apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    )


def from_debian() -> str:
    """Install Debian's chromium; Ubuntu's is a stub for snap, which `works` then refuses."""
    apt_install("chromium", "about half a minute")
    return on_path()


def from_playwright() -> str:
    """Download Playwright's Chromium."""
    say("Installing Playwright's chromium")
    # With the Debian packages of its shared libraries.
    with_libraries = ["--with-deps"] if as_root() is not None else []
    if not quietly([sys.executable, "-m", "playwright", "install", *with_libraries, "chromium"]):
        return ""
    found = playwright("print(p.chromium.executable_path)").strip()
    return found if works(found) else ""


def playwright(code: str) -> str:
    """Run a line with Playwright as ``p``; return its output, empty if it failed."""
    program = f"from playwright.sync_api import sync_playwright as s\nwith s() as p: {code}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def drives(path: str) -> bool:
    """Return whether Playwright can control this browser."""
    launch = f"p.chromium.launch(executable_path={path!r}, args=['--no-sandbox'])"
    return bool(playwright(f"print({launch}.version)"))


def main() -> None:
    """Write the path of a working browser, or nothing."""
    given = os.environ.get("NBTRITON_CHROMIUM", "")
    if given and not works(given):
        sys.exit(f"NBTRITON_CHROMIUM={given} does not start")
    path = given or on_path() or from_debian() or from_playwright()
    if path and not drives(path):
        # For Playwright's node; missing from a minimal Debian.
        apt_install("libatomic1", "for Playwright")
        path = path if drives(path) else ""
    say(f"Browser: {path}" if path else "No browser could be had: the tests that need one skip")
    Path(sys.argv[1]).write_text(path)


if __name__ == "__main__":
    main()
