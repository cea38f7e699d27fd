"""Export of a server's models as a model repository that the real Triton runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

from nbtriton.common.checks import DIRECTORY, NAMES, absolute, check, optional
from nbtriton.common.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, nearest
from nbtriton.drawing.table import TableView
from nbtriton.options.repository import COPY, CopySettings
from nbtriton.options.table import read_settings
from nbtriton.runtime.engine import Server
from nbtriton.runtime.interrupts import interrupts_deferred
from nbtriton.serving.repository.export.model_writer import ExportedModel, ModelWriter
from nbtriton.serving.repository.export.modelfile import check_carry
from nbtriton.serving.repository.reader import is_folder_name

if TYPE_CHECKING:
    import pandas as pd

# File with the names of what an export wrote, so that the next export may replace them.
_MARK = ".nbtriton.json"


class ExportWarning(UserWarning):
    """An exported file does not behave as the notebook."""


class Verified(Protocol):
    """Result of the comparison of an export with the real server, by an entry of ``nbtriton.verifiers``."""

    @property
    def ok(self) -> bool:
        """True if no model is different and none failed."""

    @property
    def frame(self) -> pd.DataFrame:
        """Table with one row per model."""


@dataclass(frozen=True, slots=True, repr=False)
class Exported(TableView):
    """An exported repository; displayed as a table."""

    directory: Path
    models: tuple[ExportedModel, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user about all models."""
        return tuple(line for model in self.models for line in model.warnings)

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[object]], str]:
        rows = [
            (
                model.name,
                ", ".join(map(str, model.versions)),
                model.kind,
                ", ".join(f"{name}: {how}" for name, how in model.carried.items()),
                ", ".join(model.missing),
            )
            for model in self.models
        ]
        return _COLUMNS, rows, str(self.directory)


_COLUMNS = ("model", "version", "written from", "carried along", "missing")


def export_repository(
    server: Server,
    directory: str | Path,
    models: Sequence[str] | None = None,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
    **options: Unpack[CopySettings],
) -> Exported:
    r"""Write models as a repository.

    Parameters
    ----------
    server : Server
    directory : path
        Created if it does not exist.
    models : sequence of str, optional
        By default all ready models. Composing models of ensembles are included, and models called by
        business logic scripting so far.
    on_progress : callable, optional
        Called with a description of a long step, such as packing an environment.
    **options
        See `nbtriton.options.repository.CopySettings`.

    Raises
    ------
    NotFoundError
        No such model.
    AlreadyExistsError
        The directory has other contents.
    InvalidArgumentError
        The name of a model cannot be that of a folder, or a directory cannot be made.
    UnsupportedError
        The text of a model's code is unknown, or a torch module cannot be written.
    """
    if isinstance(models, str):
        models = [models]
    elif isinstance(models, Iterator):
        models = list(models)
    given = read_settings("an export", COPY, options)
    carry, files, overwrite = given["carry"], given["files"], given["overwrite"]
    check(
        {"directory": directory, "models": models},
        {"directory": DIRECTORY, "models": optional(NAMES)},
    )
    names = _selected(server, models)
    extra = files or {}
    for name in extra:
        if name not in names:
            raise NotFoundError(f"files for model '{name}'", hint=nearest(name, names))
    for name in names:
        # Hidden folders are not part of a repository.
        if name.startswith(".") or not is_folder_name(name):
            raise InvalidArgumentError(f"model '{name}': its name cannot be that of a folder")
    root = absolute(directory)
    ours = _ours(root)
    if root.exists() and not root.is_dir():
        raise AlreadyExistsError(f"'{root}' is a file")
    if not overwrite:
        _check_foreign(root, ours)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot make the directory '{root}': {error.strerror}"
        ) from None
    # Written to a directory beside it first, so that a failed export does not change the repository.
    with tempfile.TemporaryDirectory(dir=root, prefix=".export-") as scratch:
        written = tuple(
            ModelWriter(
                server,
                name,
                Path(scratch) / name,
                carry,
                given["torch"],
                given["python_prefix"],
                on_progress,
            ).write(names, extra.get(name, {}))
            for name in names
        )
        if not isinstance(carry, bool):
            used = [name for model in written for name in (*model.carried, *model.missing)]
            check_carry(carry, used)
        with interrupts_deferred():  # Ctrl-C in between would lose a model of the export before
            _remember(root, names)
            for name in names:
                shutil.rmtree(root / name, ignore_errors=True)
                (Path(scratch) / name).rename(root / name)
    return Exported(root, written)


def write_beside(root: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files beside the models of an export, which the next export may replace; return their paths."""
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
    _remember(root, texts)
    return [root / name for name in texts]


def _remember(root: Path, names: Iterable[str]) -> None:
    (root / _MARK).write_text(json.dumps(sorted({*_ours(root), *names})))


def _selected(server: Server, models: Sequence[str] | None) -> list[str]:
    ready = dict.fromkeys(model.name for model in server.models() if model.state == "READY")
    front = list(ready if models is None else models)
    found: dict[str, None] = {}
    while front:
        name = front.pop(0)
        if name not in ready:
            raise NotFoundError(
                f"Request for unknown model: '{name}' is not found", hint=nearest(name, ready)
            )
        if name not in found:
            found[name] = None
            front += [step.model_name for step in server.config(name).ensemble_scheduling.step]
            front += [
                callee for callee in server.engine.model_server.called_by(name) if callee in ready
            ]
    return list(found)


def _ours(root: Path) -> list[str]:
    try:
        found = json.loads((root / _MARK).read_text())
    except (OSError, ValueError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def _check_foreign(root: Path, ours: Collection[str]) -> None:
    if not root.is_dir():
        return
    # Hidden files, such as those of git, are not models and stay.
    foreign = sorted(p.name for p in root.iterdir() if p.name not in ours and p.name[0] != ".")
    if foreign:
        raise AlreadyExistsError(
            f"'{root}' holds what no export has written: {', '.join(foreign[:5])}"
            + (", …" if len(foreign) > 5 else ""),
            hint="choose an empty directory, or overwrite=True to replace models of these names",
        )
