"""Verification against the real tritonserver: the same requests to it and to nbtriton."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nbtriton.common.checks import absolute
from nbtriton.common.errors import NotFoundError, TritonError, UnavailableError, UnsupportedError
from nbtriton.drawing.numbers import counted
from nbtriton.drawing.table import TableView
from nbtriton.extensions.verify.reference import Reference, RunningServer, default_directory, launch
from nbtriton.extensions.verify.traffic import BothServers, Difference, Inputs, Traffic
from nbtriton.model.config import ModelConfig, format_pbtxt, parse_pbtxt, to_reported_dict
from nbtriton.options.repository import EXPORT
from nbtriton.options.server import SERVER
from nbtriton.runtime.engine import Server
from nbtriton.serving.clients.http import HttpClient
from nbtriton.serving.repository.control import ModelControl
from nbtriton.serving.repository.export.modelfile import torch_file
from nbtriton.serving.repository.loader import in_parallel

if TYPE_CHECKING:
    import pandas as pd

# Concurrent loads in the reference: its default.
_LOADS = 4
_NO_BACKEND = "unable to find backend library for backend"


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
        # Not above: it is run by its name as well, and a module that is imported before is run twice.
        from nbtriton.extensions.verify.install import ensure_reference

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


@dataclass(frozen=True, slots=True)
class Checked:
    """Verdict on one model.

    Attributes
    ----------
    verdict : str
        ``"equal"`` bit by bit, ``"close"`` within the tolerances, ``"different"``, ``"not run"``
        (the reference lacks its backend; its configuration was accepted) or ``"failed"`` (the
        reference refused the model).
    requests : int
        Requests compared.
    max_abs, max_rel : float or None
        Largest differences of floating-point outputs; None without a comparison.
    note : str
        The first difference, or the reason why the model did not run.
    responses : int or None
        Number of nbtriton's responses, for a decoupled model.
    """

    name: str
    verdict: str
    requests: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    note: str = ""
    responses: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Verification(TableView):
    """Result of the verification of a repository; displayed as a table.

    Attributes
    ----------
    directory : Path
    reference : str
        Name and version of the real server.
    models : tuple of Checked
    """

    directory: Path
    reference: str
    models: tuple[Checked, ...]

    @property
    def ok(self) -> bool:
        """True if no model is different and none failed."""
        return all(model.verdict in ("equal", "close", "not run") for model in self.models)

    @property
    def frame(self) -> pd.DataFrame:
        """Table with one row per model."""
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(_COLUMNS))

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[object]], str]:
        return _COLUMNS, self._rows(), f"{self.directory} in nbtriton and in {self.reference}"

    def _rows(self) -> list[tuple[Any, ...]]:
        return [
            (m.name, m.verdict, m.requests or None, m.responses, m.max_abs, m.max_rel, m.note.strip())
            for m in self.models
        ]  # fmt: skip


_COLUMNS = ("model", "verdict", "requests", "responses", "max_abs", "max_rel", "note")


def verify_repository(
    directory: str | Path,
    *,
    server: Server | None = None,
    models: Sequence[str] | None = None,
    requests: Mapping[str, Sequence[Inputs]] | None = None,
    count: int = 6,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    reference: RealServer | Path | str | None = None,
    stand_in: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Compare the responses of a repository's models with the real tritonserver's.

    Parameters
    ----------
    directory : path
        The repository.
    server : Server, optional
        The server to compare; by default a new one with the models of the directory.
    models : sequence of str, optional
        All by default.
    requests : mapping of str to sequences of mappings, optional
        Recorded requests by model; other models get generated requests.
    count : int
        Number of generated requests for a model.
    rtol, atol : float
        Tolerances of floating-point outputs that are ``"close"``.
    reference : path, ``"install"`` or a server, optional
        The real server; see `find_server`.
    stand_in : bool
        If the reference lacks the backend of TorchScript files, run them in its python backend, so
        that all models can be compared. Their notes say so.
    on_progress : callable, optional
        Called with a line before each step that takes long.

    Raises
    ------
    UnsupportedError, UnavailableError
        The reference cannot run here, or did not start.
    """
    root = absolute(directory)
    found = find_server(reference)
    with contextlib.ExitStack() as stack:
        if server is None:
            server = stack.enter_context(Server())
            ModelControl(server, root)
        names = list(models or sorted(server.engine.inspection.model_names()))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nbtriton-verify-")))
        copied = scratch / "models"
        shutil.copytree(root, copied)
        on_progress("starting the real server")
        python = found.shared_python(scratch / "python") if isinstance(found, Reference) else None
        real = stack.enter_context(
            found.server(copied, "--model-control-mode=explicit", python=python)
        )
        client = stack.enter_context(HttpClient(real.http_url))
        both = BothServers(server, client, real.grpc_url)
        stack.callback(both.close)
        traffic = Traffic(server, requests or {}, count)
        comparison = _Comparison(server, client, copied, both, traffic, rtol, atol, stand_in)
        # All models first: a model may call another.
        loaded = comparison.load_all(names, on_progress)
        checked = []
        told = _steps("compared", len(names), on_progress)
        next(told)
        for name in names:
            note = loaded[name]
            checked.append(comparison.compare(name, note) if isinstance(note, str) else note)
            next(told)
        described = client.describe()
        on_progress("ending the real server")  # which takes seconds
        return Verification(root, described, tuple(checked))


def verifier(reference: RealServer | Path | str | None) -> Callable[..., Verification]:
    """Return `verify_repository` with a server, which is looked for now; see `find_server`."""
    return partial(verify_repository, reference=find_server(reference))


def _steps(what: str, total: int, on_progress: Callable[[str], None]) -> Iterator[None]:
    """Tell how many of equal steps are done and about how long the others take: first, and after each step."""
    began_s = time.monotonic()
    for done in range(total + 1):
        left = ""
        if 0 < done < total:
            each_s = (time.monotonic() - began_s) / done
            left = f", about {max(1, round(each_s * (total - done)))} s left"
        on_progress(f"{done} of {counted(total, 'model')} {what}{left}")
        yield


@dataclass(slots=True)
class _Comparison:
    """Comparison model by model; may change the reference's repository, which is a copy."""

    server: Server
    client: HttpClient
    directory: Path
    both: BothServers
    traffic: Traffic
    rtol: float
    atol: float
    stand_in: bool
    replaced: set[str] = field(default_factory=set)

    def load_all(
        self, names: Sequence[str], on_progress: Callable[[str], None]
    ) -> dict[str, Checked | str]:
        """Load models in the reference concurrently, then the ensembles."""
        told = _steps("loaded by the real server", len(names), on_progress)
        next(told)
        loaded: dict[str, Checked | str] = {}
        ensembles = [
            name
            for name in names
            if self.server.is_ready(name)
            and self.server.config(name).HasField("ensemble_scheduling")
        ]

        def load(name: str) -> None:
            loaded[name] = self.load(name)

        alone = [name for name in names if name not in ensembles]
        in_parallel(load, alone, _LOADS, lambda: next(told))
        for name in ensembles:
            load(name)
            next(told)
        return loaded

    def load(self, name: str) -> Checked | str:
        """Load a model in the reference; return a note, or a verdict if there is nothing to compare."""
        if not self.server.is_ready(name):
            return Checked(name, "failed", note="it is not loaded in nbtriton")
        lacking = f"the reference has no {self._backend(name)} backend"
        try:
            self._prepare(name)
            self.client.load(name)
        except TritonError as error:
            if _NO_BACKEND not in error.message:
                return Checked(name, "failed", note=f"the reference: {error.message}")
            if not self._replace(name):
                return Checked(name, "not run", note=f"{lacking}; it accepts the configuration")
        if name in self.replaced:
            return f"{lacking}; the file ran in its python backend"
        difference = _config_difference(self.server.config(name), self.client.config(name))
        return f"configurations differ: {difference}" if difference else ""

    def compare(self, name: str, note: str) -> Checked:
        """Compare the responses of a model that both have loaded."""
        found = Difference(self.rtol, self.atol)
        decoupled = self.server.engine.inspection.is_decoupled(name)
        sent = answered = 0
        for inputs, options in self.traffic.of(name):
            sent += 1
            if not decoupled:
                found.compare(f"request {sent}", *self.both.infer(name, inputs, options))
                continue
            try:
                ours, theirs = self.both.stream(name, inputs, options)
            except UnsupportedError as error:  # no grpcio
                return Checked(name, "not run", note=f"it loads; {error.message}")
            answered += sum(1 for part in ours if part.outputs or part.error)
            found.compare_streams(f"request {sent}", ours, theirs)
        nothing = "" if found.answers or found.first else "no outputs were compared"
        notes = "; ".join(filter(None, (found.first, nothing, note)))
        responses = answered if decoupled else None
        verdict = found.verdict if sent else "not run"
        return Checked(name, verdict, sent, found.max_abs, found.max_rel, notes, responses)

    def _backend(self, name: str) -> str:
        """Return the backend of the configuration file, or of completion."""
        file = self.directory / name / "config.pbtxt"
        config = parse_pbtxt(file.read_bytes()) if file.exists() else ModelConfig()
        return str(config.backend or self.server.config(name).backend)

    def _prepare(self, name: str) -> None:
        """Replace an ensemble's composing models by stand-ins before it is loaded."""
        for step in self.server.config(name).ensemble_scheduling.step:
            member = str(step.model_name)
            self._prepare(member)
            try:
                self.client.load(member)
            except TritonError as error:
                if _NO_BACKEND in error.message:
                    self._replace(member)

    def _replace(self, name: str) -> bool:
        """Make the python backend run a TorchScript file; False if that is impossible."""
        folder = self.directory / name
        files = list(folder.glob("[0-9]*/model.pt"))
        if not (self.stand_in and files):
            return False
        config = parse_pbtxt((folder / "config.pbtxt").read_bytes())
        config.backend = "python"
        config.ClearField("platform")
        config.ClearField("default_model_filename")
        for file in files:
            torch_file("model.pt").write(file.parent)
        (folder / "config.pbtxt").write_text(format_pbtxt(config), "utf-8")
        try:
            self.client.load(name)
        except TritonError:
            return False
        self.replaced.add(name)
        return True


# Fields that depend on the server: placement of instances, and paths.
_OWN = ("instance_group", "optimization", "default_model_filename", "cc_model_filenames")


def _config_difference(ours: ModelConfig, theirs: ModelConfig) -> str:
    """Return the fields in which the completed configurations differ, as text."""
    mine, other = to_reported_dict(ours), to_reported_dict(theirs)
    return ", ".join(
        key
        for key in mine
        if key not in _OWN and json.dumps(mine[key]) != json.dumps(other.get(key))
    )


# Not the variables of a notebook, and no objects.
_EXPORTED = tuple(name for name in EXPORT if name not in ("carry", "files", "requests"))


def add_export(export: argparse.ArgumentParser) -> None:
    """Write a completed repository, and verify it."""
    export.description = (
        "Load a repository and write a copy of it with completed configurations; --verify sends the "
        "same requests to this server and to the real tritonserver. Exit status 1 if they differ. "
        "The models are loaded, and their code runs with your rights."
    )
    add = export.add_argument
    add("repository", metavar="REPOSITORY", help="the model repository to read")
    add("directory", metavar="DIR", help="where to write")
    add("models", metavar="MODEL", nargs="*", default=[], help="by default all")
    for name in _EXPORTED:
        EXPORT[name].add(add)
    replace(SERVER["stand_in"], action="store_true").add(add)
    export.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from nbtriton.serving.server import Server

    with Server(stand_in=arguments.stand_in) as server:
        control = server.load_repository(arguments.repository)
        for name, error in control.errors.items():
            print(f"{name}: {error.message.strip()}", file=sys.stderr)
        options: dict[str, Any] = {name: getattr(arguments, name) for name in _EXPORTED}
        exported = server.export(
            arguments.directory,
            arguments.models or None,
            on_progress=lambda line: print(line, file=sys.stderr),
            **options,
        )
        print(exported)
        differs = arguments.verify and not getattr(exported, "ok", True)
    return int(differs or bool(control.errors))
