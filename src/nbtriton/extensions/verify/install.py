"""Installation of the reference from PyPI wheels and Debian packages, without root.

NVIDIA publishes both programs inside other wheels: ``nvidia-pytriton`` has tritonserver 2.51 (CPU,
python backend), ``tritonclient`` 2.50 the C++ perf_analyzer. They are installed into a folder outside
any environment.

    python -m nbtriton.extensions.verify.install [DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from nbtriton.common.errors import (
    AlreadyExistsError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.extensions.verify.reference import Reference, default_directory, environment_with
from nbtriton.serving.clients.http import HttpClient

SERVER_WHEEL = "nvidia-pytriton==0.7.0"
# Wheels up to 2.60 have perf_analyzer; from 2.52 on it needs glibc 2.38.
CLIENT_WHEEL = "tritonclient==2.50.0"
# The python backend's stub of 2.51 is built for numpy 1: with numpy 2 every output has 0 bytes.
# numpy 1.26 has no wheels beyond Python 3.12.
STUB_NUMPY = "numpy<2"
STUB_PYTHONS = ((3, 12), (3, 11), (3, 10), (3, 9))
MINIMUM_GLIBC = (2, 35)
# Debian packages of shared libraries that a minimal system lacks, newest name first.
DEBIAN_PACKAGES = {
    "libb64.so.0d": ("libb64-0d",),
    "libexpat.so.1": ("libexpat1",),
    "libssl.so.3": ("libssl3t64", "libssl3"),
    "libcrypto.so.3": ("libssl3t64", "libssl3"),
} | {f"libpython{a}.{b}.so.1.0": (f"libpython{a}.{b}",) for a, b in STUB_PYTHONS}
# No Python dependencies: only the binaries in the wheels are used.
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
_ONLY_BINARIES = ["--no-deps", "--only-binary=:all:"]
# Prints the version of an interpreter, its site-packages and the folder of its libpython.
_DESCRIBE = (
    "import json, sys, sysconfig; v = '%d.%d' % sys.version_info[:2]; "
    "print(json.dumps([v, sysconfig.get_path('purelib'), sysconfig.get_config_var('LIBDIR')]))"
)
_ECHO = """
import triton_python_backend_utils as u

class TritonPythonModel:
    def execute(self, requests):
        tensors = [u.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
        return [u.InferenceResponse([u.Tensor("OUT", tensor)]) for tensor in tensors]
"""
_ECHO_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [ 2 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 2 ] }
"""

Progress = Callable[[str], None]


def why_unavailable() -> str:
    """Return the reason why the reference cannot run on this machine; empty if there is none."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the wheels are for Linux x86-64, this is {platform.system()} {platform.machine()}"
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "no glibc").partition(" ")
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < MINIMUM_GLIBC:
        return f"tritonserver needs glibc 2.35 or newer, this is {name} {version}"
    if _stub_python() is None:
        return "the python-backend stub needs a Python 3.9 to 3.12, none is on the PATH"
    return ""


def ensure_reference(
    directory: Path | str | None = None, *, on_progress: Progress | None = None
) -> Reference:
    """Return the reference, installing it if it is missing.

    The installation takes about a minute, 150 MB of downloads and 300 MB of disk. A second process
    waits for the first.

    Parameters
    ----------
    directory : path, optional
        By default `default_directory`.
    on_progress : callable, optional
        Called with one line per step.

    Raises
    ------
    UnsupportedError
        This machine cannot run it (`why_unavailable`).
    UnavailableError
        A download failed, or a shared library was not found.
    AlreadyExistsError
        The folder has other contents.
    """
    place = Path(directory or default_directory()).absolute()
    report = on_progress or (lambda _: None)
    reference = Reference(place)
    if reference.is_installed:
        return reference
    reason = why_unavailable()
    if reason:
        raise UnsupportedError(f"the reference server cannot run here: {reason}")
    import fcntl  # not on Windows, where exports import this module

    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not reference.is_installed:
            _make_empty(place)
            reference.write_settings(*_install(place, report))
            try:
                report("checking that a model answers")
                _check(reference)
            except BaseException:
                reference.discard_settings()
                raise
    return reference


def _make_empty(place: Path) -> None:
    """Make the folder, or remove an incomplete installation from it."""
    mark = place / ".nbtriton"
    if place.exists() and any(place.iterdir()) and not mark.exists():
        raise AlreadyExistsError(
            f"'{place}' is not empty and was not made by nbtriton, so nothing is installed there",
            hint="name a new or an empty folder",
        )
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    mark.touch()


def _install(place: Path, report: Progress) -> tuple[Path, str]:
    """Install into the folder; return the stub's site-packages and the folder of its libpython."""
    python = _stub_python()
    assert python is not None  # see `why_unavailable`
    stub = place / "venv" / "bin" / "python"
    report("making an environment for the python backend's stub")
    _run([python, "-m", "venv", "--without-pip", str(place / "venv")])
    report(f"downloading tritonserver ({SERVER_WHEEL}, 60 MB) and {STUB_NUMPY}")
    _run([*_PIP, "--python", str(stub), "install", *_ONLY_BINARIES, SERVER_WHEEL, STUB_NUMPY])
    report(f"downloading perf_analyzer ({CLIENT_WHEEL}, 14 MB)")
    _unpack_perf_analyzer(place)

    description = subprocess.run([str(stub), "-c", _DESCRIBE], check=True, capture_output=True)
    version, site, libpython = json.loads(description.stdout)
    triton = Path(site) / "pytriton" / "tritonserver"
    backend = place / "backends" / "python"
    shutil.copytree(triton / "backends" / "python", backend)
    shutil.copy2(triton / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    libraries = place / "lib"
    libraries.mkdir()
    (cudart,) = (Path(site) / "nvidia_pytriton.libs").glob("libcudart-*.so.*")
    (libraries / "libcudart.so.12").symlink_to(os.path.relpath(cudart, libraries))
    for binary, path in (
        (place / "perf_analyzer", []),
        (backend / "triton_python_backend_stub", [str(cudart.parent), libpython]),
        (triton / "bin" / "tritonserver", [str(cudart.parent)]),
    ):
        _add_libraries(binary, [*path, str(libraries)], libraries, report)
    return Path(site), libpython


def _unpack_perf_analyzer(place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place) as wheels:
        _run(
            [*_PIP, "download", *_ONLY_BINARIES, "--platform", "manylinux1_x86_64",
             "--python-version", "3.10", "-d", wheels, CLIENT_WHEEL]
        )  # fmt: skip
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (n for n in archive.namelist() if n.endswith("/bin/perf_analyzer"))
            (place / "perf_analyzer").write_bytes(archive.read(member))
    (place / "perf_analyzer").chmod(0o755)


def _add_libraries(binary: Path, path: list[str], into: Path, report: Progress) -> None:
    """Install a binary's missing shared libraries from Debian packages."""
    for library in _missing_libraries(binary, path):
        for package in DEBIAN_PACKAGES.get(library, ()):
            report(f"getting {library} out of Debian's package {package}")
            if _unpack_debian(package, into):
                break
    missing = _missing_libraries(binary, path)
    if missing:
        packages = " ".join(DEBIAN_PACKAGES.get(name, (name,))[-1] for name in missing)
        raise UnavailableError(
            f"{binary.name} needs {', '.join(missing)}", hint=f"sudo apt-get install {packages}"
        )


def _missing_libraries(binary: Path, path: list[str]) -> list[str]:
    """Return the names of libraries that the dynamic loader does not find."""
    listing = subprocess.run(
        ["ldd", str(binary)],
        env=environment_with(*path), text=True, capture_output=True, check=False,
    )  # fmt: skip
    return [line.split()[0] for line in listing.stdout.splitlines() if line.endswith("not found")]


def _unpack_debian(package: str, into: Path) -> bool:
    """Download a Debian package and copy its shared libraries; False if that is impossible."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return False
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        download = ["apt-get", "download", "-q", package]
        try:
            _run(download, cwd=scratch)
        except UnavailableError:
            # A new container has no package lists; only root may download them.
            if os.geteuid() != 0:
                return False
            with contextlib.suppress(UnavailableError):
                _run(["apt-get", "update", "-qq"])
                _run(download, cwd=scratch)
        for archive in Path(scratch).glob("*.deb"):
            _run(["dpkg", "-x", str(archive), scratch])
        found = [f for f in Path(scratch).rglob("*.so*") if f.is_file() or f.is_symlink()]
        for file in found:
            shutil.move(file, into / file.name)
    return bool(found)


def _stub_python() -> str | None:
    """Return an interpreter for the stub: this one if it fits, else one on the PATH."""
    if sys.version_info[:2] in STUB_PYTHONS:
        return sys.executable
    names = (f"python{major}.{minor}" for major, minor in STUB_PYTHONS)
    found = (path for name in names if (path := shutil.which(name)))
    works = (p for p in found if subprocess.run([p, "-c", ""], check=False).returncode == 0)
    return next(works, None)


def _check(reference: Reference) -> None:
    """Send one request to a model of the python backend and compare its output."""
    with tempfile.TemporaryDirectory() as scratch:
        version = Path(scratch, "check", "1")
        version.mkdir(parents=True)
        (version / "model.py").write_text(_ECHO)
        (version.parent / "config.pbtxt").write_text(_ECHO_CONFIG)
        with reference.server(scratch) as server, HttpClient(server.http_url, 30) as client:
            response = client.infer("check", {"IN": np.array([7, 9], np.int32)})
    answer = response.outputs["OUT"].tolist()
    if answer != [7, 9]:
        raise UnavailableError(f"the reference server answered {answer} where [7, 9] was sent")


def _run(command: Sequence[str], cwd: str | None = None) -> None:
    """Run a command; the error has the last lines of its output."""
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        text = done.stdout.decode(errors="replace").strip().splitlines()[-8:]
        raise UnavailableError(f"`{' '.join(command)}` failed:\n" + "\n".join(text))


def main(argv: Sequence[str]) -> int:
    """Install the reference and print its folder; return 1 and print the reason if impossible."""
    parser = argparse.ArgumentParser(
        description="Install the real tritonserver, and print its folder."
    )
    parser.add_argument("directory", nargs="?", help="by default in the user's cache")
    directory = parser.parse_args(argv[1:]).directory
    start = time.monotonic()

    def report(text: str) -> None:
        print(f"reference server: {text}", flush=True)

    try:
        reference = ensure_reference(directory, on_progress=report)
    except TritonError as error:
        report(f"not available: {error.message}")
        if error.hint:
            report(f"to get it: {error.hint}")
        return 1
    report(f"ready in {reference.directory} ({time.monotonic() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
