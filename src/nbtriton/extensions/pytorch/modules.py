"""One model version's module: made or read once, shared on the host, copied once to each GPU.

From files it is read as by the Python runtime of Triton's PyTorch backend (PT2): its source, and its weights.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import itertools
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from nbtriton.backends.tracebacks import PRIVATE_PACKAGE, user_code
from nbtriton.common.errors import InternalError
from nbtriton.extensions.pytorch.core.naming import Forward

if TYPE_CHECKING:
    import torch


_NAMES = ("model.py", "model.pt")
_numbers = itertools.count(1)


def find_source(path: Path) -> Path:
    """Return a file, or the one of a version's directory: ``model.py``, else ``model.pt``.

    Raises
    ------
    InternalError
        Neither exists.
    """
    # A file that the configuration names comes before the others.
    folder = path if path.is_dir() else path.parent
    for file in ([] if path.is_dir() else [path]) + [folder / name for name in _NAMES]:
        if file.is_file():
            return file
    names = [*([] if path.is_dir() else [path.name]), *_NAMES]
    raise InternalError(f"No model found in {folder}/{names}")


def module_of(path: Path) -> Any:
    """Return the module of the class in a ``.py`` file, with the weights of the ``.pt`` file beside it.

    Raises
    ------
    InternalError
        The file has no such class.
    """
    import torch

    spec = importlib.util.spec_from_file_location(f"{PRIVATE_PACKAGE}torch_{next(_numbers)}", path)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    classes = [
        one
        for _, one in sorted(vars(code).items())
        if isinstance(one, type) and issubclass(one, torch.nn.Module)
    ]
    # Before imported ones.
    classes.sort(key=lambda one: one.__module__ != code.__name__)
    if not classes:
        raise InternalError("Cannot find a subclass of torch.nn.Module")
    module = classes[0]()
    weights = path.with_suffix(".pt")
    if weights.is_file():
        module.load_state_dict(torch.load(weights, map_location="cpu"))
    return module


_log = logging.getLogger("nbtriton.pytorch")


class Modules:
    """The module of a source, on the devices of its instances.

    Parameters
    ----------
    name : str
        The model, for messages.
    source : type, torch.nn.Module or Path
        A class is instantiated without arguments. A module object is copied: further training in the notebook
        does not change the served model, and the notebook's object stays in its mode. A ``.pt2`` file is a
        ``torch.export`` program, every other file TorchScript; of a directory, or a ``.py`` file, see
        `nbtriton.extensions.pytorch.modules`.
    compiled : dict, optional
        Arguments of ``torch.compile``, for modules that are not TorchScript.
    """

    def __init__(
        self, name: str, source: object, compiled: Mapping[str, Any] | None = None
    ) -> None:
        self._name = name
        self._compiled = compiled
        self._source = source
        self._lock = threading.Lock()
        self._program: Any = None  # of a .pt2 file, from which the devices' modules are made
        self._master: Any = None
        self._by_device: dict[str, Any] = {}

    def master(self) -> Any:
        """Return the original module, in evaluation mode.

        Raises
        ------
        ModelError
            The class's own code raised.
        InternalError
            The file is missing or is not a model.
        """
        with self._lock:
            return self._make()

    def forward(self) -> Forward:
        """Return the arguments of ``forward``; see `read_forward`."""
        master = self.master()
        if self._program is None:
            return read_forward(master)
        # A program has lost its annotations, but has the inputs of its export.
        given, by_name = self._program.example_inputs or ((), {})
        names = read_forward(master).arguments or ()
        values = dict(zip(names, given, strict=False)) | by_name
        kinds = {name: isinstance(values.get(name), Mapping) for name in names}
        return _forward(kinds, len(names))

    def on(self, device: torch.device | None) -> Any:
        """Return the module on a device; None leaves it where its own code put it."""
        with self._lock:
            master = self._make()
            key = str(device)
            if key not in self._by_device:
                module = master if device is None else self._moved(master, device)
                self._by_device[key] = self._compile(module)
            return self._by_device[key]

    def close(self) -> None:
        """Release all weights."""
        with self._lock:
            self._master = self._program = None
            self._by_device.clear()

    def _make(self) -> Any:
        if self._master is None:
            with user_code():
                self._master = self._evaluating(self._read_source())
        return self._master

    def _read_source(self) -> Any:
        source = self._source
        if isinstance(source, Path) and self._compiled is not None:
            source = find_source(source)
            if source.suffix == ".py":
                return module_of(source)
        if isinstance(source, Path):
            return self._read_file(source)
        if isinstance(source, type):
            return source()
        try:
            return copy.deepcopy(source)
        except (RuntimeError, TypeError) as error:
            _log.warning("model '%s' is served without a copy of its module: %s", self._name, error)
            return source

    def _read_file(self, path: Path) -> Any:
        import torch

        if not path.is_file():
            raise InternalError(f"unable to find '{path}' for model '{self._name}'")
        try:
            if path.suffix == ".pt2":
                self._program = torch.export.load(path)
                return self._program.module()
            return torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InternalError(
                f"failed to load model '{self._name}': {str(error).splitlines()[0]}",
                hint="model.pt is TorchScript: torch.jit.script(module).save('model.pt')",
            ) from error

    def _compile(self, module: Any) -> Any:
        import torch

        if self._compiled is None or isinstance(module, torch.jit.ScriptModule):
            return module
        with user_code():
            return torch.compile(module, **self._compiled)

    def _moved(self, master: Any, device: torch.device) -> Any:
        if self._program is not None and device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            return move_to_device_pass(self._program, str(device)).module()
        places = {tensor.device for tensor in (*master.parameters(), *master.buffers())}
        if places <= {device}:
            return master
        return self._evaluating(copy.deepcopy(master).to(device))

    def _evaluating(self, module: Any) -> Any:
        # An exported program was traced in one mode and refuses to change it.
        if self._program is None:
            module.eval()
        return module


def read_forward(module: Any) -> Forward:
    """Return the arguments of a module's ``forward``.

    Raises
    ------
    InternalError
        A dictionary beside other arguments, with Triton's text.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        arguments = module.forward.schema.arguments[1:]  # type: ignore[attr-defined]
        kinds = {argument.name: argument.type.kind() == "DictType" for argument in arguments}
        required = sum(not argument.has_default_value() for argument in arguments)
        return _forward(kinds, required)
    kinds, required, variadic = {}, 0, False
    annotations = _annotations(module.forward)
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            return Forward(None)
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = True
            continue
        annotation = annotations.get(name)
        kinds[name] = issubclass(
            get_origin(annotation) or (annotation if isinstance(annotation, type) else object),
            Mapping,
        )
        required += parameter.default is parameter.empty
    return _forward(kinds, required, variadic=variadic)


def _forward(kinds: Mapping[str, bool], required: int, *, variadic: bool = False) -> Forward:
    """Return the description of arguments with these names, True for a dictionary."""
    dictionary = list(kinds.values()) == [True] and not variadic
    if any(kinds.values()) and not dictionary:
        raise InternalError(
            "Multiple inputs of kind DictType were detected. Only a single input of type "
            "Dict(str, Tensor) is supported."
            if sum(kinds.values()) > 1
            else "An input of type 'Dict[str, Tensor]' was detected in the model. Only a single "
            "input of type Dict(str, Tensor) or input(s) of type Tensor are supported.",
            hint=f"forward takes {', '.join(kinds)}",
        )
    return Forward(tuple(kinds), required, variadic, dictionary)


def _annotations(forward: Any) -> Mapping[str, Any]:
    """Return the types of the arguments, as far as they can be resolved."""
    try:
        return get_type_hints(forward)
    except Exception:
        # A tensor such as "FP32[4]", or a name that only a type checker knows.
        annotations: Mapping[str, Any] = getattr(forward, "__annotations__", {})
        return annotations
