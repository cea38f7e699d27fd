"""The python backend: `TritonPythonModel` classes, ``model.py`` files and plain functions."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    InstanceContext,
    ModelContext,
    is_module,
)
from nbtriton.backends.core.place import Place
from nbtriton.backends.python.callables import complete_callable, is_callable_model, open_callable
from nbtriton.backends.python.core.function import FunctionInstance
from nbtriton.backends.python.core.values import COMPACT
from nbtriton.backends.python.imports import LocalModules
from nbtriton.backends.python.model import PythonModel, install_pb_utils
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.model.config import ModelConfig, complete_from, reads_only, to_reported_dict
from nbtriton.model.config.parameters import text_parameter

_log = logging.getLogger("nbtriton.python")

# Characters of model and instance names, which Triton uses in the name of the model's process.
_INVALID = frozenset(";|&$`<>()[]{}\\\"'*?~#!")


class PythonBackend(Backend):
    """Runs Python code, as Triton's backend of the same name does."""

    name: ClassVar[str] = "python"
    # The code of all its models, if they do not have their own (`based_on`).
    code: ClassVar[Path | None] = None

    def __init__(self) -> None:
        install_pb_utils()
        # The model at the completion of its configuration.
        self._class: object = None
        self._modules: LocalModules | None = None

    @classmethod
    def based_on(cls, name: str, code: Path) -> type[PythonBackend]:
        """Return the backend of this name whose models all run one ``model.py``.

        Triton calls it a Python-based backend. A model of it has a configuration and the files that the code
        reads from ``pb_utils.get_model_dir()``.
        """
        members = {"name": name, "code": code, "runtime": code.name, "needs_source": False}
        return type("PythonBasedBackend", (cls,), members)

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for a class with ``execute``, a callable, and a path to a ``.py`` file."""
        if is_module(source):  # an nn.Module is callable, and may have an `execute`
            return False
        if isinstance(source, type):
            return source.__name__ == "TritonPythonModel" or callable(
                getattr(source, "execute", None)
            )
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
            The model's name has a character that Triton does not allow.
        """
        if is_callable_model(context.source):
            return complete_callable(context.source, context.config, context.example)
        self.check(context)
        self._class, completed = self._model(context).complete()
        return context.config if completed is None else complete_from(context.config, completed)

    def check(self, context: ModelContext) -> None:
        """Check the names, and the parameters that Triton's backend reads.

        Raises
        ------
        InvalidArgumentError
            A name has a character that Triton does not allow.
        UnsupportedError
            FORCE_CPU_ONLY_INPUT_TENSORS is neither yes nor no.
        """
        for name in (context.name, *(group.name for group in context.config.instance_group)):
            _check_name(name)
        _force_cpu(context.config)

    def batching(self, context: ModelContext) -> object:
        """Return the model's class, imported if it is in a file."""
        return context.source if self._class is None else self._class

    def open(self, context: ModelContext) -> None:
        """Find the modules that the instances share, and warn of names with another meaning here.

        Raises
        ------
        InternalError
            The file does not exist.
        """
        if not is_callable_model(context.source):
            self._modules = self._model(context).modules()
            clashes = {} if self._modules is None else self._modules.clashes()
            for name, place in clashes.items():
                _log.warning(
                    "model '%s' has a module '%s', and so has this process: %s. The model imports its own "
                    "one while it is loaded; later imports of that name get the other one. With "
                    "INSTANCE_ISOLATION process it has its modules to itself.",
                    context.name, name, place,
                )  # fmt: skip

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        ModelError
            Importing the file, the constructor or ``initialize`` raised.
        UnsupportedError
            FORCE_CPU_ONLY_INPUT_TENSORS is neither yes nor no.
        InvalidArgumentError
            The instance's name has a character that Triton does not allow.
        """
        model = context.model
        _check_name(context.name)
        python_model = self.describe(model)
        if is_callable_model(model.source):
            running = python_model.running(context.name, model.server)
            device = context.device
            place = None if device is None else Place(device, model.name, _on_host(model))
            return FunctionInstance(model.source, model.config, running, _device(context), place)
        return python_model.create_instance(
            context.name, context.kind, context.device_id, model.server, self._modules
        )

    def knows_simulated(self, context: InstanceContext) -> bool:
        """Return True for a function, and for a model whose inputs are copied to the host."""
        return is_callable_model(context.model.source) or _force_cpu(context.model.config)

    def weights_bytes(self, context: ModelContext) -> int:  # noqa: ARG002 - as the interface has it
        """Return 0: the memory of Python code is unknown."""
        return 0

    @staticmethod
    def has_class(source: object) -> bool:
        """Return False for a source that is called with whole batches."""
        return not is_callable_model(source)

    def describe(self, context: ModelContext) -> PythonModel:
        """Return the description from which instances are created."""
        config = context.config
        return replace(
            self._model(context),
            decoupled=config.model_transaction_policy.decoupled,
            force_cpu=_force_cpu(config),
            reads_only=reads_only(config),
        )

    def close(self) -> None:
        """Release the class."""
        self._class = None

    def _model(self, context: ModelContext) -> PythonModel:
        reported = to_reported_dict(context.config)
        text = json.dumps(reported, ensure_ascii=False, separators=COMPACT)
        return PythonModel(
            context.name, context.version, context.source, context.model_directory, text, self.code
        )


def _device(context: InstanceContext) -> str | None:
    """Return torch's name for an instance's GPU; None where torch has no such device."""
    torch = sys.modules.get("torch")
    if context.kind != "KIND_GPU" or torch is None:
        return None
    exists = context.device_id < torch.cuda.device_count()
    return f"cuda:{context.device_id}" if exists else None


def _on_host(context: ModelContext) -> frozenset[str]:
    """Return the inputs that a function's annotations declare as NumPy arrays."""
    kinds = open_callable(context.source, context.config).inputs
    return frozenset(name for name, kind in kinds.items() if kind == "numpy")


def _check_name(name: str) -> None:
    if not _INVALID.isdisjoint(name):
        raise InvalidArgumentError(
            "Invalid stub name: contains invalid characters",
            hint=f"'{name}' has {' '.join(sorted(_INVALID & {*name}))}",
        )


def _force_cpu(config: ModelConfig) -> bool:
    key = "FORCE_CPU_ONLY_INPUT_TENSORS"
    value = text_parameter(config, key)
    if value not in (None, "yes", "no"):
        raise UnsupportedError(f"Incorrect value for {key}: {value}'", hint="yes or no")
    return value != "no"
