"""Export of a server's models as a model repository that the real Triton runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from nbtriton.backends.python.predictors import is_pipeline, is_predictor
from nbtriton.config import ModelConfig, format_pbtxt, is_ensemble
from nbtriton.drawing import TableView
from nbtriton.engine import Server
from nbtriton.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    nearest,
)
from nbtriton.repository.export.modelfile import (
    ModelFile,
    check_carry,
    class_file,
    estimator_file,
    function_file,
    torch_file,
)
from nbtriton.repository.export.onnxfiles import external_files

__all__ = ["TORCH_FORMATS", "ExportWarning", "Exported", "ExportedModel", "export_repository"]

TORCH_FORMATS = ("torchscript", "export", "python")

# The names of the models that an export wrote, so that the next one may replace them.
_MARK = ".nbtriton.json"

# Fields that completion adds and a file may have; the rest is Triton's defaults.
_COMPLETED = (
    "backend", "max_batch_size", "dynamic_batching", "sequence_batching",
    "model_transaction_policy",
)  # fmt: skip


# In the text of every model that calls others (business logic scripting).
_BLS_CALL = "InferenceRequest("


class ExportWarning(UserWarning):
    """An exported file will not behave as the notebook does."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """One exported model.

    Attributes
    ----------
    kind : str
        ``"class"``, ``"function"``, ``"estimator"``, ``"TorchScript"``, ``"ONNX"``, ``"files"``, ``"configuration"``
        (a backend that runs no code) or ``"ensemble"``.
    carried, missing : mapping of str to str
        Notebook variables that the files have, and those that they use and lack.
    notes : tuple of str
    """

    name: str
    versions: tuple[int, ...]
    kind: str
    carried: Mapping[str, str]
    missing: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user."""
        lines = list(self.notes)
        if self.missing:
            names = ", ".join(f"'{name}' ({what})" for name, what in self.missing.items())
            lines.append(
                f"the file of model '{self.name}' will not have {names}: define "
                f"{'it' if len(self.missing) == 1 else 'them'} in the model's cell, or carry "
                f"{'it' if len(self.missing) == 1 else 'them'} along with carry="
                f"{list(self.missing)!r}"
            )
        return tuple(lines)


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
            _write_model(server, name, names, Path(scratch), carry, extra.get(name, {}), torch)
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


def _call_notes(server: Server, name: str, names: Collection[str], folder: Path) -> list[str]:
    """Return notes about the models that a model calls by business logic scripting, as far as known."""
    calls = server.engine.model_server.called_by(name)
    if calls:
        brought = [callee for callee in calls if callee in names]
        missing = [callee for callee in calls if callee not in names]
        notes = []
        if brought:
            notes.append(
                f"model '{name}' called {_quoted(brought)} when it ran here: written along"
            )
        if missing:
            notes.append(
                f"model '{name}' called {_quoted(missing)} when it ran here, which is not loaded now "
                "and not written"
            )
        return notes
    if any(_BLS_CALL in file.read_text(errors="replace") for file in folder.glob("*/model.py")):
        text = "can call other models and called none here so far: name those that it needs, or run it first"
        return [f"model '{name}' {text}"]
    return []


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


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


def _write_model(
    server: Server,
    name: str,
    names: Collection[str],
    scratch: Path,
    carry: Collection[str] | bool,
    extra: Mapping[str, str | bytes | Path],
    torch: str,
) -> ExportedModel:
    folder = scratch / name
    folder.mkdir()
    versions = sorted(m.version for m in server.models() if m.name == name and m.state == "READY")
    given, completed = server.engine.inspection.user_config(name), server.config(name)
    config = _sensible(given, completed)
    carried: dict[str, str] = {}
    missing: dict[str, str] = {}
    notes: list[str] = []
    kind = ""
    for version in versions:
        place = folder / str(version)
        place.mkdir()
        kind, file = _write_version(server, name, version, place, config, carry, torch, notes)
        carried |= file.carried
        missing |= file.missing
    for path, content in extra.items():
        _write_extra(folder, path, content)
    config_text = format_pbtxt(config)
    (folder / "config.pbtxt").write_text(config_text, encoding="utf-8")
    notes += _missing_files(completed, folder)
    notes += _call_notes(server, name, names, folder)
    return ExportedModel(name, tuple(versions), kind, carried, missing, tuple(dict.fromkeys(notes)))


def _write_version(
    server: Server,
    name: str,
    version: int,
    place: Path,
    config: ModelConfig,
    carry: Collection[str] | bool,
    torch: str,
    notes: list[str],
) -> tuple[str, ModelFile]:
    if is_ensemble(config):
        (place / ".keep").touch()  # git and zip forget an empty directory
        return "ensemble", ModelFile()
    if server.engine.inspection.forms_own_batches(name, version):
        notes.append(
            f"model '{name}' has custom batching in Python, which Triton takes as a C library only: "
            "there its batches are those of the dynamic batcher"
        )
    source = server.engine.inspection.served(name, version)
    if isinstance(source, Path):
        if server.config(name, version).runtime == "model.py":
            notes.append(
                f"model '{name}' runs the code of the Python-based backend '{config.backend}', "
                "which is not written: Triton needs its folder among its backends"
            )
        _copy_files(source, place, config)
        return "files", ModelFile()
    if source is None:
        (place / ".keep").touch()
        return "configuration", ModelFile()
    if isinstance(source, bytes):
        (place / "model.onnx").write_bytes(source)
        config.ClearField("default_model_filename")
        return "ONNX", ModelFile()
    if isinstance(source, FunctionType | type):
        if isinstance(source, type):
            file = class_file(source, carry=carry)
        else:
            streams = server.config(name, version).model_transaction_policy.decoupled
            file = function_file(source, streams=streams, carry=carry)
        _write_python(file, place, config)
        if len(config.batch_input) and isinstance(source, FunctionType):
            notes.append(
                f"model '{name}' has batch inputs, which Triton's python backend does not make: "
                "its function will not get them there"
            )
        return ("class" if isinstance(source, type) else "function"), file
    if is_predictor(source) and not is_pipeline(source):
        completed = server.config(name, version)
        outputs = [tensor.name for tensor in completed.output]
        file = estimator_file(source, outputs, completed.input[0].name)
        _write_python(file, place, config)
        package = type(source).__module__.partition(".")[0]
        notes.append(f"model '{name}' is pickled: the server needs the same version of {package}")
        return "estimator", file
    return _write_module(source, server.config(name, version), place, config, torch, notes)


def _write_python(file: ModelFile, place: Path, config: ModelConfig) -> None:
    file.write(place)
    config.backend = "python"
    config.ClearField("default_model_filename")


def _write_module(
    module: object,
    completed: ModelConfig,
    place: Path,
    config: ModelConfig,
    torch: str,
    notes: list[str],
) -> tuple[str, ModelFile]:
    if not hasattr(module, "forward"):
        raise UnsupportedError(
            f"model '{completed.name}' is a {type(module).__name__}, which has no file",
            hint="a class, a function, an estimator, a torch module or a file can be written: make "
            "the object in the initialize of a class TritonPythonModel",
        )
    from nbtriton.repository.export.torchfiles import save_program, save_torchscript

    config.ClearField("platform")
    config.ClearField("default_model_filename")
    config.backend = "pytorch"
    if torch == "export":
        save_program(module, completed, place / "model.pt2")
        config.default_model_filename = "model.pt2"
        return "torch.export", ModelFile()
    notes += save_torchscript(module, completed, place / "model.pt")
    if torch == "torchscript":
        return "TorchScript", ModelFile()
    config.backend = "python"
    file = torch_file("model.pt")
    file.write(place)
    return "TorchScript in model.py", file


def _sensible(given: ModelConfig, completed: ModelConfig) -> ModelConfig:
    """Return a configuration as a person would write it: the given one, with fields of completion."""
    config = ModelConfig()
    config.CopyFrom(given)
    for field in _COMPLETED:
        descriptor = ModelConfig.DESCRIPTOR.fields_by_name[field]
        message = descriptor.message_type is not None
        absent = not config.HasField(field) if message else not getattr(config, field)
        completes = completed.HasField(field) if message else bool(getattr(completed, field))
        if absent and completes and not (message and _has_other_scheduler(config, field)):
            if message:
                getattr(config, field).CopyFrom(getattr(completed, field))
            else:
                setattr(config, field, getattr(completed, field))
    for field in ("input", "output"):
        config.ClearField(field)
        getattr(config, field).extend(getattr(completed, field))
    if is_ensemble(completed):
        config.platform = "ensemble"
        config.ClearField("backend")
    return config


def _has_other_scheduler(config: ModelConfig, field: str) -> bool:
    chosen = config.WhichOneof("scheduling_choice")
    return field in ("dynamic_batching", "sequence_batching") and chosen is not None


def _copy_files(source: Path, place: Path, config: ModelConfig) -> None:
    """Copy the files of a model: in a repository everything in its directory."""
    ignored = shutil.ignore_patterns("__pycache__")
    if not source.exists():
        raise UnsupportedError(
            f"the file '{source}' of model '{config.name}' is not there any more"
        )
    version = source if source.is_dir() and source.name == place.name else source.parent
    if version.name != place.name:  # in no repository
        if source.is_dir():
            shutil.copytree(source, place / source.name, ignore=ignored)
        else:
            shutil.copyfile(source, place / source.name)
        for name in external_files(source):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.parent / name, place / name)
        defaults = {"python": "model.py", "pytorch": "model.pt", "onnxruntime": "model.onnx"}
        if defaults.get(config.backend) != source.name:
            config.default_model_filename = source.name
        return
    shutil.copytree(version, place, dirs_exist_ok=True, ignore=ignored)
    for path in version.parent.iterdir():
        target = place.parent / path.name
        if path.name in ("config.pbtxt", "configs", "__pycache__") or target.exists():
            continue
        if path.is_dir() and not path.name.isdigit():
            shutil.copytree(path, target, ignore=ignored)
        elif path.is_file():
            shutil.copyfile(path, target)


def _write_extra(folder: Path, path: str, content: str | bytes | Path) -> None:
    target = (folder / path).resolve()
    if not target.is_relative_to(folder.resolve()) or target == folder.resolve():
        raise InvalidArgumentError(
            f"file '{path}' is outside the directory of model '{folder.name}'"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, target)
    else:
        target.write_bytes(content.encode() if isinstance(content, str) else content)


def _missing_files(config: ModelConfig, folder: Path) -> list[str]:
    """Return notes about files that the configuration names and the directory lacks."""
    wanted = [str(output.label_filename) for output in config.output if output.label_filename]
    for sample in config.model_warmup:
        wanted += [
            f"warmup/{spec.input_data_file}"
            for spec in sample.inputs.values()
            if spec.input_data_file
        ]
    for state in config.sequence_batching.state:
        wanted += [f"initial_state/{i.data_file}" for i in state.initial_state if i.data_file]
    return [
        f"model '{folder.name}' refers to {path}, which was not given with files="
        for path in dict.fromkeys(wanted)
        if not (folder / path).exists()
    ]
