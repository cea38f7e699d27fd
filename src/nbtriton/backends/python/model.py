"""A model of the python backend as plain values and code, without protobuf.

Workers in the environment of ``EXECUTION_ENV_PATH`` import this module and not `backend`: there it needs only
NumPy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from nbtriton.backends.auto_complete import AutoCompleteConfig
from nbtriton.backends.base import ServerHandle
from nbtriton.backends.core.executing import running_as
from nbtriton.backends.python.api import pb_utils
from nbtriton.backends.python.core.instance import PythonInstance
from nbtriton.backends.python.imports import LocalModules
from nbtriton.backends.python.running import Running
from nbtriton.backends.tracebacks import user_code
from nbtriton.common.errors import InternalError, UnsupportedError

_CLASS = "TritonPythonModel"
# One of the five functions of custom batching: a class with it should have them all.
_BATCHING = "model_batch_include_request"


def install_pb_utils() -> None:
    """Register `pb_utils` under the names that an unmodified ``model.py`` or notebook cell imports.

    These are Triton's two names: the module's own, and that of the compiled module inside it, which some
    models import.
    """
    sys.modules["triton_python_backend_utils"] = pb_utils
    sys.modules["c_python_backend_utils"] = pb_utils


@dataclass(frozen=True, slots=True)
class PythonModel:
    """One version of a model with a `TritonPythonModel`.

    Parameters
    ----------
    name, version
        As in the repository.
    source : type or Path
        The class, or its file.
    directory : Path or None
        ``<repository>/<model>``; None for a model defined in a notebook.
    config : str
        The configuration as JSON, as reported by Triton.
    code : Path or None
        The ``model.py`` of a Python-based backend, which all its models run.
    decoupled, force_cpu, reads_only : bool
        Settings of the completed configuration.
    batches : bool
        Whether the batcher can call the class's functions for custom batching. It cannot if another process
        has imported the file.
    """

    name: str
    version: int
    source: object
    directory: Path | None
    config: str
    code: Path | None = None
    decoupled: bool = False
    force_cpu: bool = True
    reads_only: bool = False
    batches: bool = True

    @property
    def file(self) -> Path | None:
        """The file with the class; None for a class of the notebook."""
        return self.code or (self.source if isinstance(self.source, Path) else None)

    @property
    def version_directory(self) -> Path | None:
        """``<repository>/<model>/<version>``, if the model has it."""
        if isinstance(self.source, Path):
            # The directory itself, for a model without a file of its backend.
            return self.source if self.source.is_dir() else self.source.parent
        return None if self.directory is None else self.directory / str(self.version)

    def running(self, instance: str, server: ServerHandle | None = None) -> Running:
        """Return an instance's description for its code."""
        return Running(
            self.name, instance, self.version_directory, server, decoupled=self.decoupled
        )

    def modules(self) -> LocalModules | None:
        """Return the modules beside the file, not imported yet; None for a class.

        Raises
        ------
        InternalError
            The file does not exist.
        """
        file = self.file
        if file is None:
            if not isinstance(self.source, type):
                raise InternalError(f"the python backend cannot run {self.source!r}")
            return None
        if not file.is_file():
            raise InternalError(
                f"Failed to preinitialize Python stub: Python model file not found in '{file}'"
            )
        directories = [file.parent]
        if file == self.source and self.directory not in (None, file.parent):
            directories.append(self.directory)
        return LocalModules(self.version, directories)

    def complete(self) -> tuple[object, dict[str, Any] | None]:
        """Run ``auto_complete_config``.

        Returns
        -------
        model : type
            The class.
        completed : dict or None
            The configuration; None for a class without such a function.

        Raises
        ------
        ModelError
            The model's own code raised.
        InternalError
            The function returned another type.
        """
        code = _Code(self, self.modules())
        try:
            with user_code(), running_as(self.running(self.name)):
                model = code.load()
                function = getattr(model, "auto_complete_config", None)
                if function is None:
                    return model, None
                completed = function(AutoCompleteConfig(self.config))
        finally:
            code.close()
        if not isinstance(completed, AutoCompleteConfig):
            raise InternalError(
                f"auto_complete_config function in model '{self.name}' must return a valid "
                "pb.ModelConfig object.",
                hint="end it with: return auto_complete_model_config",
            )
        return model, completed.as_dict()

    def create_instance(
        self,
        name: str,
        kind: str,
        device_id: int,
        server: ServerHandle | None,
        modules: LocalModules | None,
    ) -> PythonInstance:
        """Create one instance.

        Parameters
        ----------
        name : str
            The instance's name, such as ``m_0_1``.
        kind : {"KIND_CPU", "KIND_GPU", "KIND_MODEL"}
        device_id : int
        server : ServerHandle or None
            For calls to other models.
        modules : LocalModules or None
            The result of one call of `modules` for all instances in this process.

        Raises
        ------
        ModelError
            Importing the file, the constructor or ``initialize`` raised.
        """
        directory = self.directory or self.version_directory or ""
        code = _Code(self, modules)
        try:
            return PythonInstance(
                code.load,
                self.running(name, server),
                {
                    "model_config": self.config,
                    "model_instance_kind": kind.removeprefix("KIND_"),
                    "model_instance_name": name,
                    "model_instance_device_id": str(device_id),
                    "model_repository": str(directory),
                    "model_version": str(self.version),
                    "model_name": self.name,
                },
                force_cpu=self.force_cpu,
                reads_only=self.reads_only,
                source_name=str(self.file or self.name),
                release=code.close,
            )
        except BaseException:
            code.close()
            raise


@dataclass(slots=True)
class _Code:
    """The code of a model for one instance: a class of the notebook, or a file with its modules."""

    model: PythonModel
    modules: LocalModules | None
    module: ModuleType | None = None

    def load(self) -> Any:
        """Return the model's class; a file is imported again."""
        file = self.model.file
        if file is None or self.modules is None:
            return self.model.source
        self.module = self.modules.load(file)
        cls = getattr(self.module, _CLASS)
        if not self.model.batches and hasattr(cls, _BATCHING):
            raise UnsupportedError(
                f"model '{self.model.name}' defines {_BATCHING}, which the batcher cannot call in a process of "
                "the model's own",
                hint="keep it in a thread: INSTANCE_ISOLATION thread; or give the five functions to the server: "
                "server.load(…, batching=STRATEGY)",
            )
        return cls

    def close(self) -> None:
        """Release the module of a file; a class belongs to the notebook."""
        if self.modules is not None and self.module is not None:
            self.modules.release(self.module)
        self.module = None
