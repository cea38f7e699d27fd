"""The python backend: `TritonPythonModel` classes, ``model.py`` files and plain functions."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.core.executing import running_as
from nbtriton.backends.python.api import pb_utils
from nbtriton.backends.python.callables import complete_callable, is_callable_model
from nbtriton.backends.python.core.function import FunctionInstance
from nbtriton.backends.python.core.instance import PythonInstance
from nbtriton.backends.python.core.responses import COMPACT
from nbtriton.backends.python.isolation.environment import check_environment
from nbtriton.backends.python.isolation.imports import LocalModules
from nbtriton.backends.python.isolation.running import Running
from nbtriton.backends.tracebacks import load_error
from nbtriton.config import (
    AutoCompleteConfig,
    ModelConfig,
    complete_from,
    reads_only,
    to_reported_dict,
)
from nbtriton.errors import InternalError, InvalidArgumentError, UnsupportedError
from nbtriton.errors import TritonError as EngineError

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

        Triton calls it a Python-based backend. A model of it has its configuration and whatever
        the code looks for in ``pb_utils.get_model_dir()``.
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
        _check_name(context.name)
        self.check(context)
        file = self._file(context)
        modules = _local_modules(context, file)
        if modules is not None:
            # Nobody closes the backend of a version that cannot be loaded, or is only validated.
            self._forget = forget = weakref.finalize(self, modules.close)
            forget.atexit = False
        running = Running(context.name, context.name, _version_directory(context))
        try:
            with running_as(running):
                self._class = _model_class(context, file, modules)
                function = getattr(self._class, "auto_complete_config", None)
                if function is None:
                    return context.config
                completed = function(AutoCompleteConfig(context.config))
        except (EngineError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise load_error(error) from error
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
        file = self._file(model)
        modules = _local_modules(model, file)
        release = _nothing if modules is None else modules.close
        try:
            return PythonInstance(
                partial(_make_model, model, file, modules),
                running,
                _initialize_arguments(context),
                force_cpu=force_cpu,
                reads_only=reads_only(model.config),
                source_name=model.name if file is None else str(file),
                release=release,
            )
        except BaseException:
            release()
            raise

    def close(self) -> None:
        """Forget the class."""
        self._class = None
        if self._forget is not None:
            self._forget()

    def _file(self, context: ModelContext) -> Path | None:
        """Return the file with the model's code; None for a class of the notebook."""
        if self.code is not None:
            return self.code
        return context.source if isinstance(context.source, Path) else None


def _device(context: InstanceContext) -> str | None:
    """Return torch's name for an instance's GPU; None where torch has no such device."""
    torch = sys.modules.get("torch")
    if context.kind != "KIND_GPU" or torch is None:
        return None
    there = context.device_id < torch.cuda.device_count()
    return f"cuda:{context.device_id}" if there else None


def _check_name(name: str) -> None:
    if not _INVALID.isdisjoint(name):
        raise InvalidArgumentError(
            "Invalid stub name: contains invalid characters",
            hint=f"'{name}' has {' '.join(sorted(_INVALID & {*name}))}",
        )


def _local_modules(context: ModelContext, file: Path | None) -> LocalModules | None:
    """Return the place for the modules of a model that is a file: instances share no globals."""
    if file is None:
        return None
    if not file.is_file():
        raise InternalError(
            f"Failed to preinitialize Python stub: Python model file not found in '{file}'"
        )
    directories = [file.parent]
    if file == context.source and context.model_directory not in (None, file.parent):
        directories.append(context.model_directory)
    return LocalModules(context.version, directories)


def _model_class(
    context: ModelContext, file: Path | None, modules: LocalModules | None
) -> Callable[[], Any]:
    """Return the model's class; of a file, imported afresh."""
    source = context.source
    if file is None and isinstance(source, type):
        return source
    if modules is None or file is None:
        raise InternalError(f"the python backend cannot run {source!r}")
    found: Callable[[], Any] = getattr(modules.load(file), _CLASS)
    return found


def _make_model(context: ModelContext, file: Path | None, modules: LocalModules | None) -> object:
    return _model_class(context, file, modules)()


def _nothing() -> None:
    """Release nothing: the modules of a notebook's class are the notebook's."""


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
    if key not in config.parameters:
        return True
    value = config.parameters[key].string_value
    if value not in ("yes", "no"):
        raise UnsupportedError(f"Incorrect value for {key}: {value}'", hint="yes or no")
    return value == "yes"
