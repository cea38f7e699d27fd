"""``model.py`` from code in a notebook: a class unchanged, a function in a small class."""

from __future__ import annotations

import ast
import inspect
import pickle
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nbtriton.backends.signature import read_signature
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError, nearest
from nbtriton.serving.repository.export import sources

_CLASS = "TritonPythonModel"
# Longer values are written to files.
_LONGEST_LITERAL = 500


@dataclass(slots=True)
class ModelFile:
    """A ``model.py`` and the files beside it.

    Attributes
    ----------
    text : str
    carried : dict
        Notebook variables in the file, with their form.
    missing : dict
        Notebook variables that the file uses and lacks, with their kind.
    files : dict
        Files beside it: name to an array, bytes to write, or a path to copy.
    """

    text: str = ""
    carried: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write the file and those beside it into a version's directory."""
        (directory / "model.py").write_text(self.text, encoding="utf-8")
        for name, content in self.files.items():
            target = directory / name
            if isinstance(content, bytes):
                target.write_bytes(content)
            elif isinstance(content, Path):
                if content.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(content, target, ignore=ignored)
                else:
                    shutil.copyfile(content, target)
            else:
                np.save(target, content, allow_pickle=content.dtype.hasobject)


def class_file(model: type, *, carry: Collection[str] | bool = ()) -> ModelFile:
    """Return the ``model.py`` of a class with ``execute``.

    Parameters
    ----------
    model : type
    carry : collection of str or bool
        Notebook variables to include; True for all that the class uses.
    """
    text = sources.source_of(model)
    if model.__name__ != _CLASS:
        text = f"{text.rstrip()}\n\n\n{_CLASS} = {model.__name__}\n"
    return _complete(text, sources.namespace_of(model), carry)


def function_file(
    function: Any, *, streams: bool = False, carry: Collection[str] | bool = ()
) -> ModelFile:
    """Return the ``model.py`` of a function of whole batches.

    Parameters
    ----------
    function : function
    streams : bool
        Whether the model is decoupled: the function yields responses.
    carry : collection of str or bool
        As in `class_file`.
    """
    text, namespace = sources.source_of(function), sources.namespace_of(function)
    kinds = read_signature(function).kinds
    once = streams and not inspect.isgeneratorfunction(function)
    template = wrapper(function.__name__, kinds, streams=streams, once=once)
    needed = {
        "json": sys.modules["json"],
        "np": np,
        "pb_utils": sys.modules["triton_python_backend_utils"],
    }
    for kind in ("torch", "cupy"):
        if kind in kinds.values():
            needed[kind] = sys.modules[kind]
    own = sources.defined_names(text) | set(sources.free_names(text))
    for alias, module in needed.items():
        # The cell may use the same name for another value.
        taken = alias in own and namespace.get(alias) is not module
        name = f"_{alias}" if taken else alias
        template = template.replace(f"{alias.upper()}.", f"{name}.")
        namespace[name] = module
    return _complete(f"{text.rstrip()}\n\n\n{template}", namespace, carry)


def estimator_file(estimator: object, outputs: Collection[str], input_name: str) -> ModelFile:
    """Return the ``model.py`` of a fitted estimator, which is pickled beside it.

    Parameters
    ----------
    estimator : object
    outputs : collection of str
        Methods of the estimator.
    input_name : str
        Name of the model's input.

    Raises
    ------
    UnsupportedError
        The estimator cannot be pickled, or its class is defined in the notebook.
    """
    module = type(estimator).__module__
    try:
        data = pickle.dumps(estimator)
    except Exception as error:
        raise UnsupportedError(
            f"a {type(estimator).__name__} cannot be written: {type(error).__name__}: {error}",
            hint="make it in the initialize of a class TritonPythonModel",
        ) from None
    if module == "__main__":
        raise UnsupportedError(
            f"a {type(estimator).__name__} cannot be written: its class is defined in the notebook",
            hint="put the class into a separate module",
        )
    calls = ", ".join(f"{name!r}: rows(MODEL.{name}(batch))" for name in outputs)
    text = _template("estimator").replace("CALLS", calls).replace("GIVEN", repr(input_name))
    template = wrapper("predict", {}, streams=False, once=False)
    for alias in ("json", "np", "pb_utils"):
        template = template.replace(f"{alias.upper()}.", f"{alias}.")
    return ModelFile(f"{text}\n\n{template}", files={"model.pkl": data})


def torch_file(filename: str) -> ModelFile:
    """Return the ``model.py`` of a TorchScript program beside it (inputs by position)."""
    return ModelFile(_template("torch").replace("FILENAME", filename))


class _Resolver:
    """Resolver of names to imports or values to include."""

    def __init__(self, namespace: Mapping[str, Any], carry: Collection[str] | bool) -> None:
        self.namespace = namespace
        self.carry = carry
        self.imports: list[str] = []
        self.assignments: list[str] = []
        self.definitions: list[str] = []
        self.file = ModelFile()
        self._resolved: set[str] = set()

    def resolve(self, text: str) -> None:
        """Resolve all names that a text uses and does not define."""
        for name in sources.free_names(text):
            if name not in self._resolved:
                self._resolved.add(name)
                self._resolve(name)

    def _resolve(self, name: str) -> None:
        if name not in self.namespace:
            self.file.missing[name] = "not defined in the notebook either"
            return
        value = self.namespace[name]
        is_carried = self.carry is True or (self.carry is not False and name in self.carry)
        line = (
            None
            if sources.is_notebooks_own(value, self.namespace)
            else sources.import_line(name, value)
        )
        if line is None:
            if is_carried:
                self.file.carried[name] = self._carry(name, value)
            else:
                self.file.missing[name] = _describe(value)
            return
        place = sources.is_local(value)
        if place is not None:
            if _is_ours(value):
                self.file.missing[name] = "nbtriton itself, which a Triton server does not have"
                return
            if not is_carried:
                self.file.missing[name] = f"from the file {place.name}, which is not installed"
            else:
                self.file.files[place.name] = place
                self.file.carried[name] = place.name
        self.imports.append(line)

    def _carry(self, name: str, value: Any) -> str:
        if sources.is_notebooks_own(value, self.namespace):
            text = sources.source_of(value)
            self.resolve(text)
            self.definitions.append(text.strip() + "\n")
            return "its source"
        if _is_literal(value):
            self.assignments.append(f"{name} = {value!r}")
            return repr(value) if len(repr(value)) < 40 else "its value"
        array = value
        load = f'np.load(HERE / "{name}.npy"{{}})'
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor:
            array = value.detach().cpu().numpy()
            load = f"torch.from_numpy({load})"
            self._need("torch")
        if type(array) is np.ndarray:
            self._need_here("numpy", "np")
            allow = ", allow_pickle=True" if array.dtype.hasobject else ""
            self.assignments.append(f"{name} = {load.format(allow)}")
            self.file.files[f"{name}.npy"] = array
            return f"{name}.npy"
        return self._pickle(name, value)

    def _pickle(self, name: str, value: Any) -> str:
        main = str(self.namespace.get("__name__", "__main__"))
        own = type(value).__module__ == main
        try:
            data = b"" if own else pickle.dumps(value)
        except Exception as error:
            raise UnsupportedError(
                f"'{name}' cannot be carried: {type(error).__name__}: {error}",
                hint="make it inside the model's initialize",
            ) from None
        if own or main.encode() in data:
            raise UnsupportedError(
                f"'{name}' cannot be carried: its class is defined in the notebook",
                hint="put the class into the model's cell, or into a separate module",
            )
        self._need_here("pickle", "pickle")
        self.assignments.append(f'{name} = pickle.loads((HERE / "{name}.pkl").read_bytes())')
        self.file.files[f"{name}.pkl"] = data
        return f"{name}.pkl"

    def _need_here(self, module: str, alias: str) -> None:
        self._need(module, alias)
        line = "from pathlib import Path"
        if line not in self.imports:
            self.imports.append(line)
            self.assignments.insert(0, "HERE = Path(__file__).parent")

    def _need(self, module: str, alias: str = "") -> None:
        line = f"import {module}" + (f" as {alias}" if alias not in ("", module) else "")
        if line not in self.imports:
            self.imports.append(line)


def _complete(text: str, namespace: Mapping[str, Any], carry: Collection[str] | bool) -> ModelFile:
    resolver = _Resolver(namespace, carry)
    resolver.resolve(text)
    # With this line annotations are never evaluated: Triton does not need them.
    if unneeded := sources.annotation_names(text) & {*resolver.file.missing}:
        if "annotations" not in sources.split_future(text)[0]:
            text = f"from __future__ import annotations\n{text}"
        for name in unneeded:
            del resolver.file.missing[name]
    future, rest = sources.split_future(text)
    head, body = sources.split_imports(rest)
    imports = sorted(dict.fromkeys(resolver.imports), key=lambda line: (line[:4] == "from", line))
    head = "\n".join(part for part in ("\n".join(imports), head.strip("\n")) if part)
    values = "\n".join(resolver.assignments)
    head = "\n\n".join(part.strip("\n") for part in (future, head, values) if part.strip())
    sections = [part.strip("\n") for part in (head, *resolver.definitions, body) if part.strip()]
    resolver.file.text = "\n\n\n".join(sections) + "\n"
    return resolver.file


def check_carry(carry: Collection[str], used: Collection[str]) -> None:
    """Refuse names that no model uses.

    Raises
    ------
    InvalidArgumentError
    """
    for name in carry:
        if name not in used:
            raise InvalidArgumentError(
                f"carry: no model uses a variable '{name}'", hint=nearest(name, used)
            )


def _is_literal(value: object) -> bool:
    """Return True for a value that `repr` describes completely; exact types only."""
    text = repr(value)
    if len(text) > _LONGEST_LITERAL:
        return False
    try:
        same = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(same) is type(value) and repr(same) == text


def _is_ours(value: object) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(module).partition(".")[0] == "nbtriton"


def _describe(value: object) -> str:
    if isinstance(value, type):
        return "a class"
    if callable(value) and hasattr(value, "__name__"):
        return "a function"
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    if shape is not None:
        return f"{kind} {tuple(shape)}"
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else kind


def _template(name: str) -> str:
    """Return the text of a ``model.py`` of `templates`, or a part of it; names in capitals are replaced."""
    return (files(__package__) / "templates" / f"{name}.py.txt").read_text("utf-8")


_CONVERTED = {"torch": "TORCH.from_numpy", "cupy": "CUPY.asarray"}
_HOST = """\
                array = array.get() if hasattr(array, "get") else array
                array = array.cpu() if hasattr(array, "cpu") else array
"""


def wrapper(function: str, kinds: Mapping[str, str], *, streams: bool, once: bool) -> str:
    """Return a class that calls a function, with modules as upper-case names to be replaced.

    Parameters
    ----------
    function : str
    kinds : mapping of str to str
        Array kind of each input: ``"torch"``, ``"cupy"``, or any other for NumPy.
    streams : bool
        Whether the function yields the responses of a decoupled model.
    once : bool
        Whether it returns a single response instead.
    """
    lines = "".join(
        f"        if {name!r} in batch:\n            batch[{name!r}] = {_CONVERTED[kind]}(batch[{name!r}])\n"
        for name, kind in kinds.items()
        if kind in _CONVERTED
    )
    text = f"{_template('function')}\n{_template('stream' if streams else 'batch')}"
    values = "(FUNCTION(**batch),)" if once else "FUNCTION(**batch)"
    text = text.replace("VALUES", values).replace("FUNCTION", function)
    host = _HOST if lines else ""
    return text.replace("        CONVERT\n", lines).replace("                HOST\n", host)
