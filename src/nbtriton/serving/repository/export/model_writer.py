"""Writing of one model into a repository: versions, files, configuration and environment."""

from __future__ import annotations

import mmap
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

from nbtriton.backends.base import Backend
from nbtriton.backends.python.predictors import is_pipeline, is_predictor
from nbtriton.backends.registry import find_backend
from nbtriton.common.errors import InvalidArgumentError, TritonError, UnsupportedError
from nbtriton.common.packages import needed
from nbtriton.common.running import run_step
from nbtriton.model.config import (
    EXECUTION_ENV_PATH,
    ModelConfig,
    copy_config,
    differences,
    format_pbtxt,
    is_ensemble,
    stand_in_reason,
)
from nbtriton.model.config.normalize import FAMILIES
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.lifecycle.loading import model_directory
from nbtriton.runtime.workers import environment
from nbtriton.serving.repository.export import modelfile

# Fields of completion that a file keeps; the others are Triton's defaults.
_COMPLETED = (
    "backend", "max_batch_size", "dynamic_batching", "sequence_batching",
    "model_transaction_policy",
)  # fmt: skip

# Occurs in the text of every model that calls others (business logic scripting).
_BLS_CALL = "InferenceRequest("


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """One exported model.

    Attributes
    ----------
    kind : str
        ``"class"``, ``"function"``, ``"estimator"``, ``"TorchScript"``, ``"ONNX"``, ``"treelite checkpoint"``,
        ``"OpenVINO"``, ``"files"``, ``"configuration"`` (a backend that runs no code), ``"stand-in"`` or
        ``"ensemble"``.
    carried, missing : mapping of str to str
        Notebook variables in the files, and variables that the files use and lack.
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


@dataclass
class ModelWriter:
    """Writer of one model.

    Parameters
    ----------
    server : Server
    name : str
    folder : Path
        The model's directory, to be created.
    carry, torch, python_prefix, on_progress
        As in `nbtriton.serving.repository.export.writer.export_repository`.
    """

    server: Server
    name: str
    folder: Path
    carry: Collection[str] | bool
    torch: str
    python_prefix: str | None
    on_progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self._inspection = self.server.engine.inspection
        self._completed = self.server.config(self.name)
        self._config = _sensible(self._inspection.user_config(self.name), self._completed)
        self._notes: list[str] = []

    def write(
        self, names: Collection[str], extra: Mapping[str, str | bytes | Path]
    ) -> ExportedModel:
        """Write versions, further files and configuration.

        Parameters
        ----------
        names : collection of str
            All models of the export.
        extra : mapping
            Further files by path.
        """
        self.folder.mkdir()
        versions = sorted(
            model.version
            for model in self.server.models()
            if model.name == self.name and model.state == "READY"
        )
        carried: dict[str, str] = {}
        missing: dict[str, str] = {}
        kind = ""
        for version in versions:
            place = self.folder / str(version)
            place.mkdir()
            kind, file = self._write_version(version, place)
            carried |= file.carried
            missing |= file.missing
        for path, content in extra.items():
            _write_extra(self.folder, path, content)
        self._notes += write_environment(
            self._config,
            model_directory(self._inspection.served(self.name, versions[-1])),
            self.folder,
            python_prefix=self.python_prefix,
            on_progress=self.on_progress,
        )
        text = format_pbtxt(self._config)
        (self.folder / "config.pbtxt").write_text(text, encoding="utf-8")
        notes = self._notes + _missing_files(self._completed, self.folder)
        notes += self._call_notes(names)
        written = copy_config(self._completed)
        written.backend = self._config.backend
        notes += [f"model '{self.name}': {difference}" for difference in differences(written)]
        return ExportedModel(
            self.name, tuple(versions), kind, carried, missing, tuple(dict.fromkeys(notes))
        )

    def _write_version(self, version: int, place: Path) -> tuple[str, modelfile.ModelFile]:
        """Write one version; return its kind, and its ``model.py`` if it has one."""
        name, config = self.name, self._config
        if is_ensemble(config):
            (place / ".keep").touch()  # git and zip skip an empty directory
            return "ensemble", modelfile.ModelFile()
        if self._inspection.forms_own_batches(name, version):
            self._notes.append(
                f"model '{name}' has custom batching in Python, which Triton takes as a C library only: "
                "there its batches are those of the dynamic batcher"
            )
        completed = self.server.config(name, version)
        reason = stand_in_reason(completed)
        source = self._inspection.served(name, version)
        if reason:
            return self._write_stand_in(reason, source, version, place), modelfile.ModelFile()
        if isinstance(source, Path):
            if completed.runtime == "model.py":
                self._notes.append(
                    f"model '{name}' runs the code of the Python-based backend '{config.backend}', "
                    "which is not written: Triton needs its folder among its backends"
                )
            _copy_files(source, place, config)
            return "files", modelfile.ModelFile()
        if source is None:
            (place / ".keep").touch()
            return "configuration", modelfile.ModelFile()
        backend = _backend_of(completed)
        native = backend.export(source, place)
        if native:
            config.ClearField("default_model_filename")
            for key in backend.object_parameters:
                if key in completed.parameters:
                    config.parameters[key].CopyFrom(completed.parameters[key])
            return native, modelfile.ModelFile()
        if isinstance(source, type):
            file = modelfile.class_file(source, carry=self.carry)
            return "class", self._write_python(file, place)
        if isinstance(source, FunctionType):
            if len(config.batch_input):
                self._notes.append(
                    f"model '{name}' has batch inputs, which Triton's python backend does not make: "
                    "its function will not get them there"
                )
            streams = completed.model_transaction_policy.decoupled
            file = modelfile.function_file(source, streams=streams, carry=self.carry)
            return "function", self._write_python(file, place)
        if is_pipeline(source):
            raise UnsupportedError(
                f"model '{name}' is a pipeline of transformers, which has no file",
                hint="write its weights with its save_pretrained('FOLDER'), and a class TritonPythonModel "
                f"whose initialize makes pipeline('{getattr(source, 'task', '')}', 'FOLDER'); models that are named are "
                "exported without the others",
            )
        if is_predictor(source):
            outputs = [tensor.name for tensor in completed.output]
            file = modelfile.estimator_file(source, outputs, completed.input[0].name)
            package = type(source).__module__.partition(".")[0]
            self._notes.append(
                f"model '{name}' is pickled: the server needs the same version of {package}"
            )
            return "estimator", self._write_python(file, place)
        return self._write_module(source, completed, place)

    def _write_python(self, file: modelfile.ModelFile, place: Path) -> modelfile.ModelFile:
        file.write(place)
        self._config.backend = "python"
        self._config.ClearField("default_model_filename")
        return file

    def _write_module(
        self, module: object, completed: ModelConfig, place: Path
    ) -> tuple[str, modelfile.ModelFile]:
        if not hasattr(module, "forward"):
            raise UnsupportedError(
                f"model '{completed.name}' is a {type(module).__name__}, which has no file",
                hint="a class, a function, an estimator, a torch module or a file can be written: make "
                "the object in the initialize of a class TritonPythonModel",
            )
        backend: Any = find_backend("pytorch")
        config = self._config
        config.ClearField("platform")
        config.ClearField("default_model_filename")
        config.backend = "pytorch"
        if self.torch == "export":
            backend.save(module, completed, place / "model.pt2")
            config.default_model_filename = "model.pt2"
            return "torch.export", modelfile.ModelFile()
        self._notes += backend.save(module, completed, place / "model.pt")
        if self.torch == "torchscript":
            return "TorchScript", modelfile.ModelFile()
        return "TorchScript in model.py", self._write_python(
            modelfile.torch_file("model.pt"), place
        )

    def _write_stand_in(self, reason: str, source: object, version: int, place: Path) -> str:
        """Copy the files of a stand-in's directory, including the model's file if only its backend is missing."""
        name = self.name
        has_file = False
        if isinstance(source, Path):
            is_there = source.exists()
            if is_there or source.parent.name == place.name:
                _copy_files(source if is_there else source.parent, place, self._config)
            has_file = is_there and any(place.iterdir())
        if not any(place.iterdir()):
            (place / ".keep").touch()
        self._notes.append(
            f"model '{name}' is a stand-in here ({reason}): "
            + (
                "its files are written as they are"
                if has_file
                else f"its file is not written, put it into '{name}/{version}'"
            )
        )
        return "stand-in"

    def _call_notes(self, names: Collection[str]) -> list[str]:
        """Return notes about known calls to other models by business logic scripting."""
        name = self.name
        calls = self.server.engine.model_server.called_by(name)
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
        if any(
            _BLS_CALL in file.read_text("utf-8", errors="replace")
            for file in self.folder.glob("*/model.py")
        ):
            text = "can call other models and called none here so far: name those that it needs, or run it first"
            return [f"model '{name}' {text}"]
        return []


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _sensible(given: ModelConfig, completed: ModelConfig) -> ModelConfig:
    """Return a concise configuration: the given one, with some fields of completion."""
    config = copy_config(given)
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
    """Copy the files of a model; in a repository its whole directory."""
    ignored = shutil.ignore_patterns("__pycache__")
    if not source.exists():
        raise UnsupportedError(
            f"the file '{source}' of model '{config.name}' is not there any more"
        )
    version = source if source.is_dir() and source.name == place.name else source.parent
    numbered = version.name.isdigit() and (version.parent / "config.pbtxt").is_file()
    if version.name != place.name and not numbered:  # not in a repository
        if source.is_dir():
            shutil.copytree(source, place / source.name, ignore=ignored)
        else:
            shutil.copyfile(source, place / source.name)
        for name in (*_external_files(source), *_backend_of(config).files_beside(source)):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.parent / name, place / name)
        if _default_file(config) != source.name:
            config.default_model_filename = source.name
        return
    shutil.copytree(version, place, dirs_exist_ok=True, ignore=ignored)
    for path in version.parent.iterdir():
        target = place.parent / path.name
        if path.name in ("config.pbtxt", "configs", "__pycache__") or target.exists():
            continue
        if path.is_dir() and not path.name.isdigit() and not is_environment(path):
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
    named_files = [str(output.label_filename) for output in config.output if output.label_filename]
    for sample in config.model_warmup:
        named_files += [
            f"warmup/{spec.input_data_file}"
            for spec in sample.inputs.values()
            if spec.input_data_file
        ]
    for state in config.sequence_batching.state:
        named_files += [f"initial_state/{i.data_file}" for i in state.initial_state if i.data_file]
    return [
        f"model '{folder.name}' refers to {path}, which was not given with files="
        for path in dict.fromkeys(named_files)
        if not (folder / path).exists()
    ]


_PACK = "import sys, {package}; {package}.pack(prefix=sys.argv[1], output=sys.argv[2], force=True{more})"


def is_environment(folder: Path) -> bool:
    """Return True for a valid folder of ``EXECUTION_ENV_PATH``."""
    return (folder / "bin" / "activate").is_file()


def write_environment(
    config: ModelConfig,
    source: object,
    folder: Path,
    *,
    python_prefix: str | None,
    on_progress: Callable[[str], None],
) -> list[str]:
    """Pack the environment of a model into its directory, and set it in the configuration.

    Parameters
    ----------
    config : ModelConfig
        Of the exported model; modified.
    source : Path or None
        Source directory of the model.
    folder : Path
        Directory of the exported model.
    python_prefix : str or None
        Prefix of the virtual environment's Python on the server; by default as here.
    on_progress : callable
        Called with a description of the current step.

    Returns
    -------
    list of str
        Notes for the user.

    Raises
    ------
    InternalError
        The environment no longer exists.
    UnsupportedError
        The folder is not a virtual or conda environment, or the package that packs it is missing.
    UnavailableError
        Packing failed, with the last lines of output.
    """
    path = environment.environment_path(config, source if isinstance(source, Path) else None)
    if path is None:
        return []
    if path.is_dir():
        archive = folder / f"{path.name}.tar.gz"
        on_progress(f"packing the environment of model '{config.name}' from {path}")
        _pack(path, archive, python_prefix)
        notes = _notes(config.name, path, archive, python_prefix)
    else:
        archive = folder / path.name
        if not archive.exists():
            shutil.copyfile(path, archive)
        notes = []
    place = f"{environment.MODEL_DIRECTORY}/{archive.relative_to(folder)}"
    config.parameters[EXECUTION_ENV_PATH].string_value = place
    return notes


def _pack(folder: Path, archive: Path, python_prefix: str | None) -> None:
    conda = (folder / "conda-meta").is_dir()
    if not conda and not (folder / "pyvenv.cfg").is_file():
        raise UnsupportedError(
            f"'{folder}' is neither a virtual environment nor one of conda's",
            hint="pack it yourself, and let EXECUTION_ENV_PATH name the archive",
        )
    package = "conda_pack" if conda else "venv_pack"
    with needed("packing an environment", package=package):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    more = "" if conda or python_prefix is None else f", python_prefix={python_prefix!r}"
    command = [sys.executable, "-c", _PACK.format(package=package, more=more), str(folder)]
    # The temporary folder is removed even after an error.
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".pack-") as scratch:
        run_step(
            f"environment '{folder}' cannot be packed, {package} says",
            [*command, str(archive)], lambda _: None, {"TMPDIR": scratch},
        )  # fmt: skip


def _notes(model: str, folder: Path, archive: Path, python_prefix: str | None) -> list[str]:
    python = environment.interpreter_of(folder)
    version, numpy = environment.describe(folder, python, {})
    minor = ".".join(version.split(".")[:2])
    notes = [
        (
            f"model '{model}' runs in {archive.name}: Python {version}, NumPy {numpy}. Triton needs a "
            f"triton_python_backend_stub for Python {minor} (that of 24.10's image is for 3.10; "
            "docs/differences.md: environments)"
        )
    ]
    if not (folder / "conda-meta").is_dir():
        base = Path(python_prefix) if python_prefix else python.resolve().parents[1]
        notes.append(
            f"{archive.name} is a virtual environment: its Python is expected in {base} on the server"
            + ("" if python_prefix else " (python_prefix='/usr' for Triton's images)")
        )
    if int(numpy.partition(".")[0]) >= 2:
        notes.append(
            f"{archive.name} has NumPy {numpy}: the stub of Triton 2.51 needs numpy<2, with others "
            "its outputs are empty"
        )
    return notes


# StringStringEntryProto { key: "location", value: a path of up to 127 bytes } as protobuf writes it.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])")


def _backend_of(config: ModelConfig) -> type[Backend]:
    """Return a model's backend; the interface itself for a stand-in's, and for a Python-based one."""
    try:
        return find_backend(config.backend)
    except TritonError:
        return Backend


def _default_file(config: ModelConfig) -> str:
    """Return the name of a model's file without ``default_model_filename``; empty if there is none (N2)."""
    named = (family.filename for family in FAMILIES if family.backend == config.backend)
    return _backend_of(config).default_file(config) or next(named, "")


def _external_files(path: Path) -> list[str]:
    """Return the existing files that an ONNX file refers to, relative to its folder.

    Parameters
    ----------
    path : Path
        Other files and directories refer to none.
    """
    if path.suffix != ".onnx" or not path.is_file() or not path.stat().st_size:
        return []
    locations: dict[str, None] = {}
    folder = path.parent.resolve()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _LOCATION.finditer(data):
            name = data[match.end() : match.end() + match[1][0]].decode(errors="replace")
            # ONNX Runtime refuses files outside the model's folder, too.
            if "\0" not in name and (folder / name).resolve().is_relative_to(folder):
                locations[name] = None
    return [name for name in locations if (folder / name).is_file()]
