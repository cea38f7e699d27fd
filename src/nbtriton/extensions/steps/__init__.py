"""Ready steps of a pipeline: each is a folder of a model repository, which the real Triton runs as it is."""

from __future__ import annotations

import ast
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, overload

from nbtriton.common.closing import ScratchFolder
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError, nearest
from nbtriton.common.packages import needed
from nbtriton.extensions.steps.pictures import in_and_out
from nbtriton.extensions.steps.shared.parameters import read_parameters
from nbtriton.model.config import (
    ModelConfig,
    ReadyModel,
    copy_config,
    input_specs,
    output_specs,
    parse_pbtxt,
)
from nbtriton.model.tensors import format_shape

__all__ = ["STEPS", "Declaration", "Parameter", "Step", "Steps", "step"]

_HOME = Path(__file__).parent
# In the order of a pipeline; each has a folder beside this file.
_NAMES = (
    "decode_image", "resize", "letterbox", "crop", "normalize", "to_chw", "softmax", "top_k", "nms",
    "tokenize", "mel_spectrogram", "resample", "video", "bytetrack",
)  # fmt: skip


class Parameter(NamedTuple):
    """A parameter of a step, as its ``model.py`` declares it.

    Parameters
    ----------
    default : str
        As it is written in a configuration; several values are separated by commas.
    allowed : tuple or None
        The lowest and the highest number, or the words; None for the name of a file or a folder.
    help : str
    """

    default: str
    allowed: tuple[Any, ...] | None
    help: str

    @property
    def words(self) -> str:
        """What may be given."""
        if self.allowed is None:
            return "a file or a folder"
        if isinstance(self.allowed[0], str):
            return ", ".join(self.allowed)
        several = self.default.count(",") + 1
        kind = "whole number" if isinstance(self.allowed[0], int) else "number"
        numbers = f"a {kind}" if several == 1 else f"{several} {kind}s"
        return f"{numbers} from {self.allowed[0]:.10g} to {self.allowed[1]:.10g}"


@dataclass(frozen=True)
class Declaration:
    """What a step's folder says of it, without running or importing what it needs."""

    name: str

    @property
    def folder(self) -> Path:
        """The folder of a model repository."""
        return _HOME / self.name

    @property
    def file(self) -> Path:
        """Its ``model.py``."""
        return self.folder / "1" / "model.py"

    @property
    def sentence(self) -> str:
        """What it does, and by what: the first line of its file."""
        with self.file.open(encoding="utf-8") as file:
            return file.readline().strip().strip('"')

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Its parameters, by name."""
        (declared,) = (
            ast.literal_eval(node.value)
            for node in self._tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARAMETERS"
        )
        return {name: Parameter(*parts) for name, parts in declared.items()}

    @cached_property
    def packages(self) -> set[str]:
        """The packages that it imports: of what it wraps, and NumPy."""
        nodes = [node for node in self._tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        found = {
            (getattr(node, "module", None) or alias.name).partition(".")[0]
            for node in nodes
            if not getattr(node, "level", 0)
            for alias in node.names
        }
        return found - sys.stdlib_module_names - {"triton_python_backend_utils"}

    @cached_property
    def laid(self) -> Path:
        """A copy of its folder with what all steps share, as it is in a model repository."""
        return _lay(self.folder, _HOME / "shared")

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.file.read_bytes())

    @cached_property
    def config(self) -> ModelConfig:
        """Its configuration, with the defaults of its parameters."""
        file = self.folder / "config.pbtxt"
        return parse_pbtxt(file.read_bytes(), source=str(file))

    @property
    def lines(self) -> list[str]:
        """Its parameters with defaults and bounds, its tensors, and a line of an ensemble that calls it."""
        specs = [*input_specs(self.config).values()], [*output_specs(self.config).values()]
        tensors = [
            ", ".join(
                f"{one.name} {one.datatype} {format_shape(one.dims)}" + " (optional)" * one.optional
                for one in side
            )
            for side in specs
        ]
        inputs = ", ".join(f"{one.name}={at}" for one, at in zip(specs[0], "xyz", strict=False))
        outputs = ", ".join(one.name.lower() for one in specs[1])
        given = self.parameters.items()
        lines = [f"{key}={one.default}: {one.help}; {one.words}" for key, one in given]
        return [*lines, " -> ".join(tensors), f"{outputs} = {self.name}({inputs})"]

    def check(self, texts: Mapping[str, str]) -> None:
        """Check values of its parameters, and that the packages that it imports are there.

        Raises
        ------
        UnsupportedError
            A package that it needs is missing.
        InvalidArgumentError
            A parameter does not exist, or has another value than it may.
        """
        for name in texts:
            if name not in self.parameters:
                raise InvalidArgumentError(
                    f"the step '{self.name}' has no parameter '{name}'",
                    hint=nearest(name, self.parameters) or "it has none",
                )
        with needed(f"the step '{self.name}'"):
            for package in self.packages:
                import_module(package)
        for name, text in texts.items():
            try:
                config = {"parameters": {name: {"string_value": text}}}
                read_parameters(json.dumps(config), self.parameters)
            except ValueError:
                known = self.parameters[name]
                raise InvalidArgumentError(
                    f"{name} of the step '{self.name}' must be {known.words}; found {text}",
                    hint=f"{name}: {known.help} ({known.default})",
                ) from None


@dataclass(frozen=True, slots=True, repr=False)
class Step(ReadyModel):
    """A ready step with its parameters, as a model for `nbtriton.Server.load`.

    Parameters
    ----------
    name : str
    parameters : mapping of str to str
        All of them, as they stand in the configuration.
    """

    name: str
    parameters: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={text}" for key, text in self.parameters.items())])

    def __repr__(self) -> str:
        return f"<step {self}>"


class Steps(Mapping[str, Step]):
    """All ready steps by name, each with its defaults; displayed as a table."""

    def __getitem__(self, name: str) -> Step:
        return step(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __repr__(self) -> str:
        listed = (declaration(name) for name in _NAMES)
        return "\n".join(
            "\n    ".join([f"{one.name}: {one.sentence}", *one.lines]) for one in listed
        )

    def _repr_html_(self) -> str:
        rows = []
        for name in _NAMES:
            one = declaration(name)
            lines = "".join(f"<br><code>{escape(line)}</code>" for line in one.lines)
            rows.append(
                f"<tr><td style='text-align:left'><b>{name}</b>: {escape(one.sentence)}{lines}</td>"
                f"<td style='text-align:left'>{_pictures(name)}</td></tr>"
            )
        return f"<table>{''.join(rows)}</table>"


STEPS = Steps()


@overload
def step(name: None = None) -> Steps: ...
@overload
def step(name: str, **parameters: object) -> Step: ...
def step(name: str | None = None, **parameters: object) -> Step | Steps:
    """Return a ready step as a model, or without a name all of them.

    Parameters
    ----------
    name : str, optional
    **parameters
        Of the step; `Steps` shows them. Several numbers are a sequence or a text such as ``"224,224"``.

    Raises
    ------
    NotFoundError
        There is no such step, or no such file.
    InvalidArgumentError
        A parameter does not exist, or has another value than it may.
    UnsupportedError
        A package that the step needs is missing.

    Examples
    --------
    >>> server.load("max_batch_size: 8", nt.step("resize", size=(4, 6)), name="thumb").name
    'thumb'
    >>> server.infer("thumb", {"IMAGE": np.zeros((1, 64, 48, 3), np.uint8)})["IMAGE"].shape
    (1, 4, 6, 3)
    """
    if name is None:
        return STEPS
    if name not in STEPS:
        raise NotFoundError(f"there is no step '{name}'", hint=nearest(name, _NAMES))
    declared = declaration(name)
    texts = {key: _text(value) for key, value in parameters.items()}
    declared.check(texts)
    for key, one in declared.parameters.items():
        # A folder that is there by default, such as ".", is not asked for.
        needed_file = one.allowed is None and one.default and not Path(one.default).is_dir()
        if needed_file and not texts.get(key):
            raise InvalidArgumentError(
                f"the step '{name}' needs {key}: {one.help}",
                hint=f"%triton_step {name} {key}=FILE, or nt.step('{name}', {key}='FILE')",
            )
    config = copy_config(declared.config)
    files = _files(declared, texts)
    folder = _lay(declared.laid, *files.values()) if files else declared.laid
    for key, text in texts.items():
        config.parameters[key].string_value = files[key].name if key in files else text
    defaults = {key: one.default for key, one in declared.parameters.items()}
    return Step(config, folder / "1" / "model.py", name, {**defaults, **texts})


@cache
def _pictures(name: str) -> str:
    """Return what a step makes of samples, as HTML; empty where a package is missing."""
    try:
        return in_and_out(step(name))
    except TritonError:
        return ""


@cache
def declaration(name: str) -> Declaration:
    """Return what a step's folder says; read once."""
    return Declaration(name)


def _text(value: object) -> str:
    """Write a value as a configuration has it."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value)
    return ",".join(map(str, value))


def _files(declared: Declaration, texts: Mapping[str, str]) -> dict[str, Path]:
    """Return the files that parameters name."""
    named = {
        key: Path(text).expanduser()
        for key, text in texts.items()
        # A folder stays where it is.
        if declared.parameters[key].allowed is None and text and not Path(text).is_dir()
    }
    for key, path in named.items():
        if not path.is_file():
            raise NotFoundError(f"{key} of the step '{declared.name}': there is no file '{path}'")
    return named


@cache
def _scratch() -> ScratchFolder:
    """Return the folder of the steps, which lasts as long as the process."""
    return ScratchFolder("nbtriton_steps_")


def _lay(folder: Path, *beside: Path) -> Path:
    """Copy a step's folder, and put files and folders beside its ``model.py``."""
    ignored = shutil.ignore_patterns("__pycache__")
    laid = Path(tempfile.mkdtemp(dir=_scratch().path), folder.name)
    shutil.copytree(folder, laid, ignore=ignored)
    for one in beside:
        if one.is_dir():
            shutil.copytree(one, laid / "1" / one.name, ignore=ignored)
        else:
            shutil.copyfile(one, laid / "1" / one.name)
    return laid
