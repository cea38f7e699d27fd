"""The reference, tritonserver 2.51 and perf_analyzer, installed into a folder by `install`; and any tritonserver process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtriton.common.errors import UnavailableError
from nbtriton.runtime.interrupts import interrupts_deferred


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running tritonserver.

    Attributes
    ----------
    http_port, grpc_port, metrics_port : int
        Ports on 127.0.0.1.
    log : Path
        File with the server's output.
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

    def logged_errors(self) -> str:
        """Return the logged errors and the last line of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([*(line for line in lines if line.startswith("E")), *lines[-1:]])

    def wait_until_ready(self, timeout_s: float) -> None:
        """Poll the health endpoint until the server is ready, then the metrics endpoint.

        The metrics endpoint starts last, and a server that cannot start it exits even though it was
        healthy (`StartEndpoints` in Triton's ``main.cc``).

        Raises
        ------
        UnavailableError
            The server exited, or was not ready in time; with its logged errors.
        """
        url = f"http://{self.http_url}/v2/health/ready"
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self.process.poll()
            if status is not None:
                raise UnavailableError(
                    f"tritonserver ended with status {status}:\n{self.logged_errors()}"
                )
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(url, timeout=2),
                socket.create_connection(("127.0.0.1", self.metrics_port), timeout=2),
            ):
                return
            time.sleep(0.05)
        raise UnavailableError(
            f"tritonserver was not ready after {timeout_s:.0f} s:\n{self.logged_errors()}"
        )

    def stop(self) -> None:
        """Terminate the server; after 15 s kill it with the processes of its models."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()


@contextlib.contextmanager
def launch(
    command: Sequence[str],
    repository: Path | str,
    environment: Mapping[str, str],
    *,
    log: Path | None = None,
    timeout_s: float = 90.0,
    starts: int = 1,
) -> Iterator[RunningServer]:
    """Run a tritonserver over a model repository until the block ends.

    Parameters
    ----------
    command : sequence of str
        The executable and its flags; ports and the repository are added.
    repository : path
    environment : mapping of str to str
    log : Path, optional
        File for the server's output; by default a temporary one.
    timeout_s : float
        Timeout for the server to be ready, in seconds.
    starts : int
        How often a server is started that a signal ends before it is ready.

    Raises
    ------
    UnavailableError
        The server exited, or was not ready in time.
    """
    with contextlib.ExitStack() as stack:
        http, grpc, metrics = stack.enter_context(reserved_ports(3))
        full = [
            *command,
            f"--model-repository={repository}",
            "--http-address=127.0.0.1", f"--http-port={http}",
            "--grpc-address=127.0.0.1", f"--grpc-port={grpc}",
            "--metrics-address=127.0.0.1", f"--metrics-port={metrics}",
        ]  # fmt: skip
        if log is None:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.log"
        for left in reversed(range(starts)):
            # Ctrl-C behind the start would leave it running: it is in a session of its own.
            with log.open("wb") as output, interrupts_deferred():
                process = subprocess.Popen(
                    full, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                server = RunningServer(process, http, grpc, metrics, log)
                stack.callback(server.stop)
            try:
                server.wait_until_ready(timeout_s)
                break
            except UnavailableError:
                if not left or (process.returncode or 0) >= 0:
                    raise
        yield server


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserve free ports of 127.0.0.1 for a server until the block ends.

    A free port may be in use by another process before the server binds it. A port that is bound with
    ``SO_REUSEADDR`` is not assigned to a process that binds port 0, but a server with the same option can
    bind it while nothing listens there.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in sockets]


# tritonserver 2.51 loads models in threads that share one unlocked generator of names for shared memory
# (GenerateUUID, pb_utils.cc): two python models may get one region. On a busy machine a server was seen to abort
# with boost::interprocess::lock_exception while it loaded models, and two of their processes with it.
_STARTS = 3


def default_directory() -> Path:
    """Return ``$NBTRITON_REFERENCE``, or a folder in the user's cache."""
    configured = os.environ.get("NBTRITON_REFERENCE")
    if configured:
        return Path(configured)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "nbtriton" / "reference-2.51"


def environment_with(*libraries: str) -> dict[str, str]:
    """Return this environment with a library path, without variables that affect another Python."""
    environment = {
        k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    return environment | {"LD_LIBRARY_PATH": ":".join(libraries)}


@dataclass(frozen=True, slots=True)
class Reference:
    """An installed reference; `nbtriton.extensions.verify.install.ensure_reference` returns it.

    Parameters
    ----------
    directory : Path
    """

    directory: Path

    @property
    def is_installed(self) -> bool:
        """True if the installation is complete."""
        return self._settings_file.exists()

    @property
    def _settings_file(self) -> Path:
        return self.directory / "ready.json"

    def write_settings(self, site: Path, libpython: str) -> None:
        """Complete the installation: store the paths of the wheel's packages and of libpython."""
        settings = {"site": os.path.relpath(site, self.directory), "libpython": libpython}
        self._settings_file.write_text(json.dumps(settings))

    def discard_settings(self) -> None:
        """Mark the installation as incomplete."""
        self._settings_file.unlink()

    def _settings(self) -> tuple[Path, str]:
        settings = json.loads(self._settings_file.read_text())
        return self.directory / settings["site"], settings["libpython"]

    @contextlib.contextmanager
    def server(
        self,
        repository: Path | str,
        *flags: str,
        log: Path | None = None,
        timeout_s: float = 90.0,
        python: Path | None = None,
    ) -> Iterator[RunningServer]:
        """Run tritonserver over a model repository until the block ends.

        Parameters
        ----------
        repository : path
        *flags : str
            Further flags of tritonserver, such as ``"--model-control-mode=explicit"``.
        log, timeout_s
            As in `nbtriton.extensions.verify.reference.launch`.
        python : Path, optional
            Environment of the python backend's models, such as from `shared_python`; by default the
            reference's own.

        Raises
        ------
        UnavailableError
            The server exited, or was not ready in time; with the end of its log.
        """
        site, libpython = self._settings()
        triton = site / "pytriton" / "tritonserver"
        environment = environment_with(
            str(site / "nvidia_pytriton.libs"), str(self.directory / "lib"), libpython
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
        with launch(
            command, repository, environment, log=log, timeout_s=timeout_s, starts=_STARTS
        ) as server:
            yield server

    def shared_python(self, directory: Path) -> Path | None:
        """Make an environment with this interpreter's packages and the reference's numpy.

        With it models that import the notebook's packages run in the reference.

        Returns
        -------
        Path or None
            For `server`; None if the reference is for another version of Python.
        """
        site, _ = self._settings()
        if site.parent.name != f"python{sys.version_info[0]}.{sys.version_info[1]}":
            return None
        import venv  # Pyodide has none

        venv.create(directory, symlinks=True)
        here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (target,) = (directory / "lib").glob("python3*/site-packages")
        # Byte code beside a model.py would be a change of the version's files: the next request to load the model, or
        # an ensemble of it, would start its processes again. They look at no variable of the environment.
        without = "import sys; sys.dont_write_bytecode = True"
        (target / "shared.pth").write_text("\n".join([str(site.resolve()), *here, without]))
        return directory

    def perf_analyzer(
        self, *args: str, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the real C++ perf_analyzer with these arguments; its exit status is not checked."""
        return subprocess.run(
            [str(self.directory / "perf_analyzer"), *args],
            env=environment_with(str(self.directory / "lib")),
            text=True, capture_output=True, timeout=timeout_s, check=False,
        )  # fmt: skip
