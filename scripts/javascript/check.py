"""Check the widgets' scripts: types by TypeScript with anywidget's types, and style by Biome.

    python scripts/javascript/check.py

npm installs both into ``build/javascript`` in the versions of ``package-lock.json``. The functions of `shared.js` are
global, as its text is put before each widget's script.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "javascript"
SCRIPTS = ROOT / "src" / "nbtriton"


def install() -> str:
    """Install missing tools; return the error, empty for none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "there is no node with npm on the PATH"
    BUILD.mkdir(parents=True, exist_ok=True)
    lock, done = HERE / "package-lock.json", BUILD / "installed.json"
    if done.is_file() and done.read_bytes() == lock.read_bytes():
        return ""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, BUILD / name)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
               "--fetch-retries=0"]  # fmt: skip
    made = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    if made.returncode:
        return f"npm could not install the tools: {made.stderr.strip()[-500:]}"
    shutil.copy(lock, done)
    return ""


def findings() -> str:
    """Return the tools' findings; empty for none."""
    modules = BUILD / "node_modules"
    commands = (
        ["node", modules / "typescript/bin/tsc", "--project", HERE / "tsconfig.json"],
        ["node", modules / "@biomejs/biome/bin/biome", "lint", "--error-on-warnings", "--colors=off",
         "--config-path", HERE, *sorted(SCRIPTS.rglob("*.js"))],
    )  # fmt: skip
    found = ""
    for command in commands:
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            found += done.stdout + done.stderr
    return found


if __name__ == "__main__":
    sys.exit(install() or findings() or 0)
