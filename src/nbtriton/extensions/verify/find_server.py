"""Search for a real tritonserver: on the PATH, at a path, in a package, or installed on request."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nbtriton.common.errors import NotFoundError, UnavailableError
from nbtriton.extensions.verify.install import ensure_reference
from nbtriton.extensions.verify.reference import Reference, RunningServer, default_directory, launch


@dataclass(frozen=True, slots=True)
class Executable:
    """A tritonserver installed by the user.

    Parameters
    ----------
    path : Path
    """

    path: Path

    @contextlib.contextmanager
    def server(
        self, repository: Path | str, *flags: str, python: Path | None = None
    ) -> Iterator[RunningServer]:
        """Run it until the block ends; see `Reference.server`."""
        environment = dict(os.environ)
        if python is not None:
            environment["PATH"] = f"{python / 'bin'}:{environment.get('PATH', '')}"
        with launch([str(self.path), *flags], repository, environment) as server:
            yield server

    def shared_python(self, directory: Path) -> Path | None:  # noqa: ARG002 - another kind has one
        """Return None: it has its own Python."""
        return None


RealServer: TypeAlias = Executable | Reference


def find_server(where: RealServer | Path | str | None = None) -> RealServer:
    """Return a tritonserver to compare with.

    Parameters
    ----------
    where : path, ``"install"``, or a server, optional
        A ``tritonserver`` executable, or a directory of `ensure_reference`; ``"install"`` installs
        one (150 MB of downloads, once). By default the one on the PATH, else one installed before.

    Raises
    ------
    UnavailableError
        None was found.
    NotFoundError
        `where` is not a server.
    UnsupportedError
        ``"install"`` on a machine that cannot run it.
    """
    if where == "install":
        return ensure_reference()
    if isinstance(where, str | Path):
        return _server_at(Path(where).expanduser())
    if where is not None:
        return where
    on_path = shutil.which("tritonserver")
    if on_path:
        return Executable(Path(on_path))
    reference = Reference(default_directory())
    if reference.is_installed:
        return reference
    raise UnavailableError(
        "no tritonserver was found: not on the PATH, and none was set up before",
        hint='reference="install" sets one up (a minute, 150 MB), or give its path',
    )


def _server_at(path: Path) -> RealServer:
    if path.is_file() and os.access(path, os.X_OK):
        return Executable(path)
    if Reference(path).is_installed:
        return Reference(path)
    raise NotFoundError(
        f"'{path}' is neither a tritonserver executable nor a directory where one was set up"
    )
