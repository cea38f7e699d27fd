"""The reference: tritonserver 2.51 and perf_analyzer, installed into a folder by `install`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbtriton.extensions.verify.running import RunningServer, launch

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
            As in `nbtriton.extensions.verify.running.launch`.
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
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (target,) = (directory / "lib").glob("python3*/site-packages")
        (target / "shared.pth").write_text("\n".join([str(site.resolve()), *here]))
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
