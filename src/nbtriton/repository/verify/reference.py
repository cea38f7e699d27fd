"""The real tritonserver and perf_analyzer, installed from PyPI wheels as a reference.

NVIDIA publishes both inside other wheels: ``nvidia-pytriton`` carries tritonserver 2.51 (CPU, python
backend), ``tritonclient`` 2.50 the C++ perf_analyzer. This module puts them into a folder of their
own, outside every environment, starts and stops them, and says why where that cannot be done.

    python -m nbtriton.repository.verify.reference [DIR]
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtriton.errors import (
    AlreadyExistsError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)

__all__ = [
    "Reference",
    "ReferenceServer",
    "default_directory",
    "ensure_reference",
    "launch",
    "why_unavailable",
]

SERVER_WHEEL = "nvidia-pytriton==0.7.0"
CLIENT_WHEEL = "tritonclient==2.50.0"  # the last one that carries perf_analyzer
# The python-backend stub of 2.51 is built against numpy 1: on numpy 2 every output has 0 bytes.
# numpy 1.26 has no wheels beyond Python 3.12.
STUB_NUMPY = "numpy<2"
STUB_PYTHONS = ((3, 12), (3, 11), (3, 10), (3, 9))
MINIMUM_GLIBC = (2, 35)
# Debian's packages of the shared libraries that a slim machine lacks, newest name first.
DEBIAN_PACKAGES = {
    "libb64.so.0d": ("libb64-0d",),
    "libexpat.so.1": ("libexpat1",),
    "libssl.so.3": ("libssl3t64", "libssl3"),
    "libcrypto.so.3": ("libssl3t64", "libssl3"),
} | {f"libpython{a}.{b}.so.1.0": (f"libpython{a}.{b}",) for a, b in STUB_PYTHONS}

Progress = Callable[[str], None]


def default_directory() -> Path:
    """Return ``$NBTRITON_REFERENCE``, or a folder in the user's cache."""
    given = os.environ.get("NBTRITON_REFERENCE")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "nbtriton" / "reference-2.51"


def why_unavailable() -> str:
    """Return why the reference cannot run on this machine; empty if nothing speaks against it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the wheels are for Linux x86-64, this is {platform.system()} {platform.machine()}"
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "no glibc").partition(" ")
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < MINIMUM_GLIBC:
        return f"tritonserver needs glibc 2.35 or newer, this is {name} {version}"
    if _stub_python() is None:
        return "the python-backend stub needs a Python 3.9 to 3.12, none is on the PATH"
    return ""


@dataclass(frozen=True, slots=True)
class ReferenceServer:
    """A running tritonserver.

    Attributes
    ----------
    http_port, grpc_port, metrics_port : int
        Free ports on 127.0.0.1.
    log : Path
        What the server wrote so far.
    """

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    metrics_port: int
    log: Path

    @property
    def grpc_url(self) -> str:
        """Address for ``tritonclient.grpc`` and ``perf_analyzer -i grpc -u``."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """Address for ``tritonclient.http`` and ``perf_analyzer -u``."""
        return f"127.0.0.1:{self.http_port}"

    def complaints(self) -> str:
        """Return the errors that the server logged, and its last line."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([*(line for line in lines if line.startswith("E")), *lines[-1:]])


@dataclass(frozen=True, slots=True)
class Reference:
    """An installed reference: `ensure_reference` returns it.

    Parameters
    ----------
    directory : Path
        Where it lives.
    """

    directory: Path

    @contextlib.contextmanager
    def server(
        self,
        repository: Path | str,
        *flags: str,
        log: Path | None = None,
        timeout_s: float = 90.0,
        python: Path | None = None,
    ) -> Iterator[ReferenceServer]:
        """Run tritonserver over a model repository until the block ends.

        Parameters
        ----------
        repository
            The model repository.
        *flags
            Further flags of tritonserver, such as ``"--model-control-mode=explicit"``.
        log
            File for the server's output; a temporary one by default, removed at the end.
        timeout_s
            How long to wait for the server to be ready.
        python
            An environment for the python backend's models, such as `shared_python` makes; the
            reference's own by default.

        Raises
        ------
        UnavailableError
            The server ended, or was not ready in time; carries the end of its log.
        """
        settings = json.loads((self.directory / "ready.json").read_text())
        triton = self.directory / settings["site"] / "pytriton" / "tritonserver"
        libraries = self.directory / settings["site"] / "nvidia_pytriton.libs"
        environment = _environment(
            str(libraries), str(self.directory / "lib"), settings["libpython"]
        )
        stub = python or self.directory / "venv"
        environment["PATH"] = f"{stub / 'bin'}:{environment.get('PATH', '')}"
        command = [
            str(triton / "bin" / "tritonserver"),
            f"--backend-directory={self.directory / 'backends'}",
            f"--cache-directory={triton / 'caches'}",
            "--exit-timeout-secs=5",
            *flags,
        ]
        with launch(command, repository, environment, log=log, timeout_s=timeout_s) as server:
            yield server

    def shared_python(self, directory: Path) -> Path | None:
        """Make an environment with this interpreter's packages, and the reference's numpy.

        A model that imports what the notebook imports then runs in the reference too.

        Returns
        -------
        Path or None
            For `server`; None if the reference was made for another version of Python.
        """
        settings = json.loads((self.directory / "ready.json").read_text())
        site = self.directory / settings["site"]
        if site.parent.name != f"python{sys.version_info[0]}.{sys.version_info[1]}":
            return None
        _run([sys.executable, "-m", "venv", "--without-pip", str(directory)], lambda _: None)
        here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (target,) = (directory / "lib").glob("python3*/site-packages")
        (target / "shared.pth").write_text("\n".join([str(site.resolve()), *here]))
        return directory

    def perf_analyzer(
        self, *args: str, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the real C++ perf_analyzer with these arguments; its exit status is not checked."""
        environment = _environment(str(self.directory / "lib"))
        return subprocess.run(
            [str(self.directory / "perf_analyzer"), *args],
            env=environment, text=True, capture_output=True, timeout=timeout_s, check=False,
        )  # fmt: skip


@contextlib.contextmanager
def launch(
    command: Sequence[str],
    repository: Path | str,
    environment: Mapping[str, str],
    *,
    log: Path | None = None,
    timeout_s: float = 90.0,
) -> Iterator[ReferenceServer]:
    """Run a tritonserver on free ports of 127.0.0.1 until the block ends; see `Reference.server`."""
    http, grpc, metrics = _free_ports(3)
    full = [
        *command,
        f"--model-repository={repository}",
        "--http-address=127.0.0.1", f"--http-port={http}",
        "--grpc-address=127.0.0.1", f"--grpc-port={grpc}",
        "--metrics-address=127.0.0.1", f"--metrics-port={metrics}",
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        if log is None:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                full, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        server = ReferenceServer(process, http, grpc, metrics, log)
        try:
            _wait_until_ready(server, timeout_s)
            yield server
        finally:
            _stop(process)


def ensure_reference(
    directory: Path | str | None = None, *, on_progress: Progress | None = None
) -> Reference:
    """Return the installed reference, installing it first where it is missing.

    Installing takes about a minute, 150 MB of downloads and 300 MB of disk. Two processes may ask
    at once; the second waits for the first.

    Parameters
    ----------
    directory
        Where to install; `default_directory` if not given.
    on_progress
        Called with one line per step.

    Raises
    ------
    UnsupportedError
        This machine cannot run it (`why_unavailable`).
    UnavailableError
        A download failed, or a shared library could not be had.
    AlreadyExistsError
        The folder holds something else.
    """
    place = Path(directory or default_directory()).absolute()
    say = on_progress or (lambda _: None)
    if (place / "ready.json").exists():
        return Reference(place)
    reason = why_unavailable()
    if reason:
        raise UnsupportedError(f"the reference server cannot run here: {reason}")
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready.json").exists():
            _make_empty(place)
            settings = _install(place, say)
            (place / "ready.json").write_text(json.dumps(settings))
            try:
                say("checking that a model answers")
                _check(Reference(place))
            except BaseException:
                (place / "ready.json").unlink()
                raise
    return Reference(place)


# --- installing --------------------------------------------------------------------------------


def _make_empty(place: Path) -> None:
    """Make the folder, or clear what an installation of ours left unfinished in it."""
    mark = place / ".nbtriton"
    if place.exists() and any(place.iterdir()) and not mark.exists():
        raise AlreadyExistsError(
            f"'{place}' is not empty and was not made by nbtriton, so nothing is installed there",
            hint="name a new or an empty folder",
        )
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    mark.touch()


def _install(place: Path, say: Progress) -> dict[str, str]:
    """Fill the folder; return what `Reference` must know about it."""
    python = _stub_python()
    assert python is not None  # why_unavailable was asked
    stub = place / "venv" / "bin" / "python"
    say("making an environment for the python backend's stub")
    _run([python, "-m", "venv", "--without-pip", str(place / "venv")], say)
    say(f"downloading tritonserver ({SERVER_WHEEL}, 60 MB) and {STUB_NUMPY}")
    # Only the binaries in the wheel are used, so none of its Python dependencies is.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    _run(
        [*pip, "--python", str(stub), "install", "--no-deps", "--only-binary=:all:",
         SERVER_WHEEL, STUB_NUMPY],
        say,
    )  # fmt: skip
    say(f"downloading perf_analyzer ({CLIENT_WHEEL}, 14 MB)")
    with tempfile.TemporaryDirectory(dir=place) as wheels:
        _run(
            [*pip, "download", "--no-deps", "--only-binary=:all:", "--platform",
             "manylinux1_x86_64", "--python-version", "3.10", "-d", wheels, CLIENT_WHEEL],
            say,
        )  # fmt: skip
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (n for n in archive.namelist() if n.endswith("/bin/perf_analyzer"))
            (place / "perf_analyzer").write_bytes(archive.read(member))
    (place / "perf_analyzer").chmod(0o755)

    code = (
        "import json, sys, sysconfig; v = '%d.%d' % sys.version_info[:2]; "
        "print(json.dumps([v, sysconfig.get_path('purelib'), sysconfig.get_config_var('LIBDIR')]))"
    )
    version, site, libpython = json.loads(
        subprocess.run([str(stub), "-c", code], check=True, capture_output=True).stdout
    )
    triton = Path(site) / "pytriton" / "tritonserver"
    backend = place / "backends" / "python"
    shutil.copytree(triton / "backends" / "python", backend)
    shutil.copy2(triton / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    libraries = place / "lib"
    libraries.mkdir()
    (cudart,) = (Path(site) / "nvidia_pytriton.libs").glob("libcudart-*.so.*")
    (libraries / "libcudart.so.12").symlink_to(os.path.relpath(cudart, libraries))
    own = str(libraries)
    _complete(place / "perf_analyzer", [own], libraries, say)
    _complete(
        backend / "triton_python_backend_stub", [str(cudart.parent), own, libpython], libraries, say
    )
    _complete(triton / "bin" / "tritonserver", [str(cudart.parent), own], libraries, say)
    return {"site": os.path.relpath(site, place), "libpython": libpython}


def _complete(binary: Path, path: list[str], into: Path, say: Progress) -> None:
    """Get the shared libraries that a binary misses out of Debian's packages, without root."""
    missing = _missing_libraries(binary, path)
    for library in missing:
        for package in DEBIAN_PACKAGES.get(library, ()):
            say(f"getting {library} out of Debian's package {package}")
            if _unpack_debian(package, into, say):
                break
    missing = _missing_libraries(binary, path)
    if missing:
        packages = " ".join(DEBIAN_PACKAGES.get(name, (name,))[-1] for name in missing)
        raise UnavailableError(
            f"{binary.name} needs {', '.join(missing)}", hint=f"sudo apt-get install {packages}"
        )


def _missing_libraries(binary: Path, path: list[str]) -> list[str]:
    """Return the names that the loader would not find."""
    listing = subprocess.run(
        ["ldd", str(binary)], env=_environment(*path), text=True, capture_output=True, check=False
    )
    return [line.split()[0] for line in listing.stdout.splitlines() if line.endswith("not found")]


def _unpack_debian(package: str, into: Path, say: Progress) -> bool:
    """Download a Debian package and move its shared libraries here; False if that cannot be."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return False
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        download = ["apt-get", "download", "-q", package]
        try:
            _run(download, say, cwd=scratch)
        except UnavailableError:
            # A fresh container has no package lists yet; only root may fetch them.
            if os.geteuid() != 0:
                return False
            with contextlib.suppress(UnavailableError):
                _run(["apt-get", "update", "-qq"], say)
                _run(download, say, cwd=scratch)
        for archive in Path(scratch).glob("*.deb"):
            _run(["dpkg", "-x", str(archive), scratch], say)
        found = [f for f in Path(scratch).rglob("*.so*") if f.is_file() or f.is_symlink()]
        for file in found:
            shutil.move(file, into / file.name)
    return bool(found)


def _stub_python() -> str | None:
    """Return an interpreter that the stub can embed: this one if it fits, else one on the PATH."""
    if sys.version_info[:2] in STUB_PYTHONS:
        return sys.executable
    names = (f"python{major}.{minor}" for major, minor in STUB_PYTHONS)
    found = (path for name in names if (path := shutil.which(name)))
    works = (p for p in found if subprocess.run([p, "-c", ""], check=False).returncode == 0)
    return next(works, None)


def _check(reference: Reference) -> None:
    """Run one request through a model of the python backend and look at the answer's bytes."""
    model = (
        "import triton_python_backend_utils as u\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [u.InferenceResponse([u.Tensor('OUT', u.get_input_tensor_by_name(r, 'IN')"
        ".as_numpy())]) for r in requests]\n"
    )
    tensor = "{ name: '%s' data_type: TYPE_INT32 dims: [ 2 ] }"
    config = f"backend: 'python' input [ {tensor % 'IN'} ] output [ {tensor % 'OUT'} ]"
    body = {"inputs": [{"name": "IN", "shape": [2], "datatype": "INT32", "data": [7, 9]}]}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "check", "1")
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(model)
        (folder.parent / "config.pbtxt").write_text(config)
        with reference.server(scratch) as server:
            request = urllib.request.Request(
                f"http://{server.http_url}/v2/models/check/infer", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request, timeout=30) as reply:
                answer = json.load(reply)["outputs"][0]["data"]
    if answer != [7, 9]:
        raise UnavailableError(f"the reference server answered {answer} where [7, 9] was sent")


# --- processes ---------------------------------------------------------------------------------


def _environment(*library_path: str) -> dict[str, str]:
    """Return our environment without what would leak into another interpreter."""
    environment = {
        k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    environment["LD_LIBRARY_PATH"] = ":".join(library_path)
    return environment


def _run(command: Sequence[str], say: Progress, cwd: str | None = None) -> None:
    """Run a step of the installation; say every ten seconds that it still runs."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        while True:
            try:
                status = process.wait(timeout=10)
                break
            except subprocess.TimeoutExpired:
                say(f"... {time.monotonic() - start:.0f} s")
        if status:
            output.seek(0)
            text = output.read().decode(errors="replace").strip().splitlines()[-8:]
            raise UnavailableError(f"`{' '.join(command)}` failed:\n" + "\n".join(text))


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_until_ready(server: ReferenceServer, timeout_s: float) -> None:
    """Ask its health endpoint until it says yes; it has no other way to tell."""
    url = f"http://{server.http_url}/v2/health/ready"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise UnavailableError(
                f"tritonserver ended with status {server.process.returncode}:\n{server.complaints()}"
            )
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.05)
    raise UnavailableError(
        f"tritonserver was not ready after {timeout_s:.0f} s:\n{server.complaints()}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop, then make it and its stubs stop."""
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()


def main(argv: Sequence[str]) -> int:
    """Install the reference and say where it is; 1 with the reason where that cannot be."""
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"reference server: {text}", flush=True)

    try:
        reference = ensure_reference(argv[1] if len(argv) > 1 else None, on_progress=say)
    except TritonError as error:
        say(f"not available: {error.message}")
        if error.hint:
            say(f"to get it: {error.hint}")
        return 1
    say(f"ready in {reference.directory} ({time.monotonic() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
