"""The python backend: `TritonPythonModel` classes, ``model.py`` files and plain functions."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.core.executing import running_as
from nbtriton.backends.parameters import text_parameter
from nbtriton.backends.python.api import pb_utils
from nbtriton.backends.python.callables import complete_callable, is_callable_model
from nbtriton.backends.python.core.function import FunctionInstance
from nbtriton.backends.python.core.instance import PythonInstance
from nbtriton.backends.python.core.responses import COMPACT
from nbtriton.backends.python.isolation.environment import check_environment
from nbtriton.backends.python.isolation.imports import LocalModules
from nbtriton.backends.python.isolation.running import Running
from nbtriton.backends.tracebacks import user_code
from nbtriton.config import (
    AutoCompleteConfig,
    ModelConfig,
    complete_from,
    reads_only,
    to_reported_dict,
)
from nbtriton.errors import InternalError, InvalidArgumentError, UnsupportedError

__all__ = ["PythonBackend", "install_pb_utils"]

_CLASS = "TritonPythonModel"
# Of model and instance names: they name the process that Triton runs the model in.
_INVALID = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


def install_pb_utils() -> None:
    """Put `pb_utils` where an unmodified ``model.py`` or notebook cell looks for it.

    It has both of Triton's names: the module's own, and that of the compiled one inside it, which
    some models import.
    """
    sys.modules["triton_python_backend_utils"] = pb_utils
    sys.modules["c_python_backend_utils"] = pb_utils


class PythonBackend(Backend):
    """Runs Python code, as Triton's backend of the same name does."""

    name: ClassVar[str] = "python"
    # The code of all its models, where they have none of their own (`based_on`).
    code: ClassVar[Path | None] = None

    def __init__(self) -> None:
        install_pb_utils()
        # As it was when the configuration was completed.
        self._class: object = None
        self._forget: Callable[[], object] | None = None  # its modules

    @classmethod
    def based_on(cls, name: str, code: Path) -> type[PythonBackend]:
        """Return the backend of this name whose models all run one ``model.py``.

        Triton calls it a Python-based backend. A model of it has its configuration and the
        files that the code reads from ``pb_utils.get_model_dir()``.
        """
        members = {"name": name, "code": code, "runtime": code.name, "needs_source": False}
        return type("PythonBasedBackend", (cls,), members)

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for a class with ``execute``, a callable, and a path to a ``.py`` file."""
        if isinstance(source, type):
            return source.__name__ == _CLASS or callable(getattr(source, "execute", None))
        if isinstance(source, Path):
            return source.suffix == ".py"
        return is_callable_model(source)

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Run the model's ``auto_complete_config``, or read a function's annotations.

        Raises
        ------
        ModelError
            The model's own code raised.
        ConfigError
            Annotations are missing or contradict the configuration.
        InvalidArgumentError
            The model's name has a character that Triton does not take.
        """
        if is_callable_model(context.source):
            return complete_callable(context.source, context.config, context.example)
        self.check(context)
        code = _Code(context, self.code)
        # The backend of a version that cannot be loaded, or is only validated, is not closed.
        self._forget = forget = weakref.finalize(self, code.close)
        forget.atexit = False
        running = Running(context.name, context.name, _version_directory(context))
        with user_code(), running_as(running):
            self._class = code.load()
            function = getattr(self._class, "auto_complete_config", None)
            if function is None:
                return context.config
            completed = function(AutoCompleteConfig(context.config))
        if not isinstance(completed, AutoCompleteConfig):
            raise InternalError(
                f"auto_complete_config function in model '{context.name}' must return a valid "
                "pb.ModelConfig object.",
                hint="end it with: return auto_complete_model_config",
            )
        return complete_from(context.config, completed.as_dict())

    def check(self, context: ModelContext) -> None:
        """Check the names, and the parameters that Triton's backend reads.

        Raises
        ------
        InvalidArgumentError
            A name has a character that Triton does not take.
        InternalError
            EXECUTION_ENV_PATH names no environment.
        UnsupportedError
            FORCE_CPU_ONLY_INPUT_TENSORS is neither yes nor no.
        """
        for name in (context.name, *(group.name for group in context.config.instance_group)):
            _check_name(name)
        _force_cpu(context.config)
        check_environment(context.config, context.model_directory)

    def batching(self, context: ModelContext) -> object:
        """Return the class, also of a file."""
        return context.source if self._class is None else self._class

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        ModelError
            Importing the file, the constructor or ``initialize`` raised.
        UnsupportedError
            FORCE_CPU_ONLY_INPUT_TENSORS is neither yes nor no.
        InvalidArgumentError
            The instance's name has a character that Triton does not take.
        """
        model = context.model
        _check_name(context.name)
        running = Running(
            model.name,
            context.name,
            _version_directory(model),
            model.server,
            decoupled=model.config.model_transaction_policy.decoupled,
        )
        force_cpu = _force_cpu(model.config)
        if is_callable_model(model.source):
            return FunctionInstance(model.source, model.config, running, _device(context))
        code = _Code(model, self.code)
        try:
            return PythonInstance(
                code.load,
                running,
                _initialize_arguments(context),
                force_cpu=force_cpu,
                reads_only=reads_only(model.config),
                source_name=str(code.file or model.name),
                release=code.close,
            )
        except BaseException:
            code.close()
            raise

    def close(self) -> None:
        """Forget the class."""
        self._class = None
        if self._forget is not None:
            self._forget()


class _Code:
    """The code of a model, for one instance: a class of the notebook, or a file and its modules."""

    def __init__(self, context: ModelContext, code: Path | None) -> None:
        source = context.source
        self.file = code or (source if isinstance(source, Path) else None)
        self._class: Any = source
        self._modules: LocalModules | None = None
        if self.file is None:
            if not isinstance(source, type):
                raise InternalError(f"the python backend cannot run {source!r}")
            return
        if not self.file.is_file():
            raise InternalError(
                f"Failed to preinitialize Python stub: Python model file not found in '{self.file}'"
            )
        directories = [self.file.parent]
        if self.file == source and context.model_directory not in (None, self.file.parent):
            directories.append(context.model_directory)
        self._modules = LocalModules(context.version, directories)

    def load(self) -> Any:
        """Return the model's class; of a file, imported afresh."""
        if self.file is not None and self._modules is not None:
            self._class = getattr(self._modules.load(self.file), _CLASS)
        return self._class

    def close(self) -> None:
        """Remove the modules of a file; those of a notebook's class are the notebook's."""
        if self._modules is not None:
            self._modules.close()
        self._class = None


def _device(context: InstanceContext) -> str | None:
    """Return torch's name for an instance's GPU; None where torch has no such device."""
    torch = sys.modules.get("torch")
    if context.kind != "KIND_GPU" or torch is None:
        return None
    exists = context.device_id < torch.cuda.device_count()
    return f"cuda:{context.device_id}" if exists else None


def _check_name(name: str) -> None:
    if not _INVALID.isdisjoint(name):
        raise InvalidArgumentError(
            "Invalid stub name: contains invalid characters",
            hint=f"'{name}' has {' '.join(sorted(_INVALID & {*name}))}",
        )


def _version_directory(context: ModelContext) -> Path | None:
    if isinstance(context.source, Path):
        # The directory itself where a model has no file that its backend reads.
        return context.source if context.source.is_dir() else context.source.parent
    if context.model_directory is not None:
        return context.model_directory / str(context.version)
    return None


def _initialize_arguments(context: InstanceContext) -> dict[str, str]:
    model = context.model
    directory = model.model_directory or _version_directory(model) or ""
    return {
        "model_config": json.dumps(
            to_reported_dict(model.config), ensure_ascii=False, separators=COMPACT
        ),
        "model_instance_kind": context.kind.removeprefix("KIND_"),
        "model_instance_name": context.name,
        "model_instance_device_id": str(context.device_id),
        "model_repository": str(directory),
        "model_version": str(model.version),
        "model_name": model.name,
    }


def _force_cpu(config: ModelConfig) -> bool:
    key = "FORCE_CPU_ONLY_INPUT_TENSORS"
    value = text_parameter(config, key)
    if value not in (None, "yes", "no"):
        raise UnsupportedError(f"Incorrect value for {key}: {value}'", hint="yes or no")
    return value != "no"
