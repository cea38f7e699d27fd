"""Export of a server's models as a model repository that the real Triton runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtriton.drawing import TableView
from nbtriton.engine import Server
from nbtriton.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    nearest,
)
from nbtriton.repository.export.model_writer import TORCH_FORMATS, ExportedModel, ModelWriter
from nbtriton.repository.export.modelfile import check_carry

__all__ = ["ExportWarning", "Exported", "export_repository"]

# The names of the models that an export wrote, so that the next one may replace them.
_MARK = ".nbtriton.json"


class ExportWarning(UserWarning):
    """An exported file will not behave as the notebook does."""


@dataclass(frozen=True, slots=True, repr=False)
class Exported(TableView):
    """An exported repository; shows itself as a table."""

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
    carry: Collection[str] | bool = (),
    files: Mapping[str, Mapping[str, str | bytes | Path]] | None = None,
    torch: str = "torchscript",
    overwrite: bool = False,
    python_prefix: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    r"""Write models as a repository.

    Parameters
    ----------
    server : Server
    directory : path
        Created if it does not exist.
    models : sequence of str, optional
        By default all that are ready; an ensemble brings its composing models, and a model those
        that it was seen to call by business logic scripting.
    carry : collection of str or True
        Notebook variables to write along: numbers, strings and lists into ``model.py``, arrays as
        ``.npy`` and other objects as ``.pkl`` beside it, functions and classes as their source.
        True for all that are used.
    files : mapping, optional
        Further files by model and path within its directory, such as
        ``{"m": {"labels.txt": "cat\ndog\n", "warmup/raw": b"..."}}``; a `Path` is copied.
    torch : {"torchscript", "export", "python"}
        The form of a torch module: a TorchScript or ``torch.export`` file for Triton's pytorch
        backend, or TorchScript and a ``model.py`` that runs it in the python backend.
    overwrite : bool
        Replace models of the same names that no export has written.
    python_prefix : str, optional
        Where the server has the Python of virtual environments, such as ``"/usr"``; by default where
        it is here.
    on_progress : callable, optional
        Called with what takes long: an environment is packed.

    Raises
    ------
    NotFoundError
        No such model.
    AlreadyExistsError
        The directory holds other things.
    UnsupportedError
        A model whose code has no text, or a torch module that cannot be written.
    """
    if torch not in TORCH_FORMATS:
        raise InvalidArgumentError(
            f"unknown torch format '{torch}'", hint=nearest(torch, TORCH_FORMATS)
        )
    names = _wanted(server, models)
    extra = files or {}
    for name in extra:
        if name not in names:
            raise NotFoundError(f"files for model '{name}'", hint=nearest(name, names))
    root = Path(directory).absolute()
    ours = _ours(root)
    if root.exists() and not root.is_dir():
        raise AlreadyExistsError(f"'{root}' is a file")
    if not overwrite:
        _check_foreign(root, ours)
    root.mkdir(parents=True, exist_ok=True)
    # In a directory beside it first: a failed export leaves the repository as it was.
    with tempfile.TemporaryDirectory(dir=root, prefix=".export-") as scratch:
        written = tuple(
            ModelWriter(
                server, name, Path(scratch) / name, carry, torch, python_prefix, on_progress
            ).write(names, extra.get(name, {}))
            for name in names
        )
        if not isinstance(carry, bool):
            used = [name for model in written for name in (*model.carried, *model.missing)]
            check_carry(carry, used)
        for name in names:
            shutil.rmtree(root / name, ignore_errors=True)
            (Path(scratch) / name).rename(root / name)
    (root / _MARK).write_text(json.dumps(sorted({*ours, *names})))
    return Exported(root, written)


def _wanted(server: Server, models: Sequence[str] | None) -> list[str]:
    ready = dict.fromkeys(model.name for model in server.models() if model.state == "READY")
    if isinstance(models, str):
        models = [models]
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
