"""Build the pages that run in a browser alone: ``make lite``, or ``scripts/lite.py [OUTPUT]``.

JupyterLite with Python as WebAssembly (Pyodide), this package, and the notebooks of ``lite/``. The folder has all that
the pages load: Pyodide's core from npm, and packages from PyPI in the versions of Pyodide's list, checked by hash.
Neither has compiled packages for a browser (NumPy, pandas), so the pages do without.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "lite"
KERNEL = Path(sys.prefix, "share/jupyter/labextensions/@jupyterlite/pyodide-kernel-extension")
# The version for the kernel of constraints.txt (jupyterlite-pyodide-kernel).
PYODIDE = "314.0.6"
PYODIDE_SHA512 = (
    "BKDTJyIqFxC4BExLqeRS3f5xvXZIjOt8C3zGLN/Cc7tFxSwvKVhVkchQQ2AGLOtR4YrVOIFxbV8poyDOOmWwxQ=="
)
PYODIDE_FILES = (
    "pyodide-lock.json", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide.mjs", "python_stdlib.zip",
)  # fmt: skip
# Imports of the kernel and nbtriton; their dependencies are added by Pyodide's list.
PACKAGES = ("ipython", "jedi", "micropip", "packaging", "protobuf")
# Required by the kernel and missing from Pyodide's list.
MORE = ("comm==0.2.3",)


def fetch_pyodide(folder: Path) -> dict[str, Any]:
    """Unpack Pyodide's core from npm; return its list of packages."""
    archive = BUILD / "cache" / f"pyodide-{PYODIDE}.tgz"
    if not archive.is_file():
        if shutil.which("npm") is None:
            raise SystemExit("the pages need npm (Debian: npm), which fetches Pyodide")
        archive.parent.mkdir(parents=True, exist_ok=True)
        print(f"Fetching pyodide {PYODIDE} by npm", flush=True)
        command = ["npm", "pack", "--silent", f"pyodide@{PYODIDE}"]
        subprocess.run(command, cwd=archive.parent, check=True, stdout=subprocess.DEVNULL)
    data = archive.read_bytes()
    if base64.b64encode(hashlib.sha512(data).digest()).decode() != PYODIDE_SHA512:
        archive.unlink()
        raise SystemExit(f"pyodide {PYODIDE} has not the hash that it should have")
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for name in PYODIDE_FILES:
            member = tar.extractfile(f"package/{name}")
            assert member is not None, name
            (folder / name).write_bytes(member.read())
    found: dict[str, Any] = json.loads((folder / "pyodide-lock.json").read_text("utf-8"))
    return found


def closure(packages: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """Return packages with all their dependencies."""
    found: list[str] = []
    front = list(names)
    while front:
        name = re.sub("[-_.]+", "-", front.pop()).lower()
        if name not in found:
            found.append(name)
            front += packages[name]["depends"]
    return sorted(found)


def fetch_wheels(requirements: list[str], folder: Path) -> list[Path]:
    """Download pure Python wheels from PyPI."""
    folder.mkdir(parents=True)
    cache = BUILD / "cache" / "wheels"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
         "--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi", "none",
         "--python-version", "3.14", "--find-links", cache, "-d", cache, *requirements],
        check=True,
    )  # fmt: skip
    found = []
    for requirement in requirements:
        name, _, version = requirement.partition("==")
        stem = f"{name.replace('-', '_')}-{version}-".lower()
        (wheel,) = (path for path in cache.glob("*.whl") if path.name.lower().startswith(stem))
        found.append(Path(shutil.copy(wheel, folder)))
    return found


def build_wheel(folder: Path) -> Path:
    """Build this package, pure Python."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "-w", folder, ROOT],
        check=True, env={**os.environ, "NBTRITON_COMPILED": "0"},
    )  # fmt: skip
    (wheel,) = folder.glob("nbtriton-*.whl")
    return wheel


def entry(
    wheel: Path, name: str, known: dict[str, Any] | None, depends: list[str]
) -> dict[str, Any]:
    """Return a package as an entry of Pyodide's list."""
    own = {
        "depends": depends,
        "imports": [name.replace("-", "_")],
        "install_dir": "site",
        "name": name,
        "package_type": "package",
        "unvendored_tests": False,
        "version": wheel.name.split("-")[1],
    }
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {**(known or own), "file_name": wheel.name, "sha256": digest}


def lay_out(source: Path) -> None:
    """Write the sources of JupyterLite's build: Pyodide with a list of the present packages."""
    shutil.rmtree(source, ignore_errors=True)
    pyodide = source / "static" / "pyodide"
    lock = fetch_pyodide(pyodide)
    known = lock["packages"]
    names = closure(known, PACKAGES)
    wheels = fetch_wheels([f"{n}=={known[n]['version']}" for n in names], source / "wheels")
    packages = {n: entry(w, n, known[n], []) for n, w in zip(names, wheels, strict=True)}
    for requirement, wheel in zip(MORE, fetch_wheels(list(MORE), source / "more"), strict=True):
        name = requirement.partition("==")[0]
        packages[name] = entry(wheel, name, None, ["traitlets"])
        wheels.append(wheel)
    own = build_wheel(source / "own")
    packages["nbtriton"] = entry(own, "nbtriton", None, ["ipython", "protobuf"])
    for wheel in [*wheels, own]:
        shutil.move(wheel, pyodide / wheel.name)
    for folder in ("wheels", "more", "own"):
        (source / folder).rmdir()
    lock["packages"] = packages
    (pyodide / "pyodide-lock.json").write_text(json.dumps(lock, indent=1), "utf-8")
    shutil.copy(ROOT / "lite" / "jupyter-lite.json", source)


def main() -> int:
    """Lay out and build the pages; return JupyterLite's exit status."""
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILD / "html"
    source = BUILD / "source"
    lay_out(source)
    shutil.rmtree(output, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "jupyterlite_core", "build", "--lite-dir", source, "--output-dir", output,
         "--contents", ROOT / "lite" / "contents", "--apps", "lab", "--apps", "notebooks", "--apps", "tree",
         "--no-sourcemaps", "--no-unused-shared-packages", "--no-libarchive",
         # Not the JupyterLab extensions of this environment.
         "--ignore-sys-prefix", f"--LiteBuildConfig.federated_extensions={KERNEL}"],
        cwd=source, check=False, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode == 0:
        print(f"Serve it and look: {sys.executable} -m http.server -d {output}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
