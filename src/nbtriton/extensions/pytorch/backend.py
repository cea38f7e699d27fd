"""The pytorch backend: ``nn.Module`` classes, objects and sources, TorchScript and ``torch.export`` files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    InstanceContext,
    ModelContext,
    is_module,
)
from nbtriton.backends.core.place import Place
from nbtriton.backends.devices.cuda import CudaDevice
from nbtriton.backends.devices.ledger import CopyLedger
from nbtriton.backends.ragged import batch_input_names
from nbtriton.common.errors import InternalError, UnsupportedError
from nbtriton.common.packages import needed
from nbtriton.extensions.pytorch.check import check, complete, indexed_inputs
from nbtriton.extensions.pytorch.core.instance import ModuleInstance
from nbtriton.extensions.pytorch.core.naming import InputOrder, arrange_inputs
from nbtriton.extensions.pytorch.graphs import Graphs
from nbtriton.extensions.pytorch.modules import Modules
from nbtriton.extensions.pytorch.parameters import (
    PYTHON_RUNTIME,
    compile_options,
    module_parameters,
    set_threads,
)
from nbtriton.model.config import ModelConfig

_SUFFIXES = (".pt", ".pth", ".pt2")


class PyTorchBackend(Backend):
    """Runs torch modules, by the conventions of Triton's backend of the same name.

    Instances on the host share the weights of one version; each GPU has one copy.
    """

    name: ClassVar[str] = "pytorch"
    platform: ClassVar[str] = "pytorch_libtorch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self) -> None:
        self._modules: Modules | None = None

    @classmethod
    def runtimes(cls) -> tuple[str, ...]:
        """Return Triton's library, and the Python code beside it that compiles modules."""
        return (*super().runtimes(), PYTHON_RUNTIME)

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for an ``nn.Module`` class or object and for a path to a torch file."""
        if isinstance(source, Path):
            return source.suffix in _SUFFIXES
        return is_module(source)

    @staticmethod
    def save(module: Any, config: ModelConfig, path: Path) -> list[str]:
        """Write a module as a file, and return notes; see `nbtriton.extensions.pytorch.files`.

        A ``.pt2`` is a program of ``torch.export``, any other file is TorchScript.
        """
        from nbtriton.extensions.pytorch.files import save_program, save_torchscript

        if path.suffix == ".pt2":
            save_program(module, config, path)
            return []
        return save_torchscript(module, config, path)

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Fill inputs and outputs; see `nbtriton.extensions.pytorch.check`."""
        return complete(context, self._of(context))

    def check(self, context: ModelContext) -> None:
        """Compare the configuration with ``forward``; see `nbtriton.extensions.pytorch.check`."""
        check(context.config, self._of(context).forward())
        module_parameters(context.config)

    def open(self, context: ModelContext) -> None:
        """Make the module, so that its errors are known before any instance exists."""
        self._of(context).master()
        set_threads(context.config)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance.

        Raises
        ------
        UnsupportedError
            KIND_GPU without such a GPU.
        ConfigError
            The inputs' names cannot be matched with the arguments of ``forward``.
        """
        import torch

        model = context.model
        device = None
        if context.kind == "KIND_GPU":
            if context.device_id >= torch.cuda.device_count():
                raise UnsupportedError(
                    f"instance '{context.name}' of model '{model.name}' wants GPU "
                    f"{context.device_id}, torch finds {torch.cuda.device_count()} GPUs",
                    hint="KIND_CPU runs it on the host",
                )
            device = torch.device("cuda", context.device_id)
        elif context.kind == "KIND_CPU":
            device = torch.device("cpu")
        module = self._of(model).on(device)
        config = model.config
        names = [tensor.name for tensor in config.input] + batch_input_names(config)
        indexed = indexed_inputs(config)
        # PT3: Triton's Python runtime passes them in the order of the configuration.
        order = InputOrder((*names, *indexed))
        if config.runtime != PYTHON_RUNTIME:
            order = arrange_inputs(names, self._of(model).forward(), indexed)
        place = graphs = None
        if device is not None and device.type == "cuda":
            gpu: Any = context.device or CudaDevice(context.device_id, CopyLedger())
            place = Place(gpu, model.name)
            if config.optimization.cuda.graphs:
                graphs = Graphs(gpu, place.stream, f"model '{model.name}'")
        parameters = module_parameters(config)
        return ModuleInstance(module, device, config, order, parameters, place, graphs)

    def weights_bytes(self, context: ModelContext) -> int:
        """Return the size of parameters and buffers."""
        module = self._of(context).master()
        return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))

    def served(self, context: ModelContext) -> object:
        """Return the module with the weights in use; the path of a file."""
        source = context.source
        return source if isinstance(source, Path) else self._of(context).master()

    def close(self) -> None:
        """Release the weights."""
        if self._modules is not None:
            self._modules.close()
            self._modules = None

    def _of(self, context: ModelContext) -> Modules:
        source = context.source
        if self._modules is None:
            python = context.config.runtime == PYTHON_RUNTIME and isinstance(source, Path)
            if not python and not self.accepts(source):
                raise InternalError(f"the pytorch backend cannot run {source!r}")
            with needed("backend 'pytorch'"):
                importlib.import_module("torch")
            self._modules = Modules(context.name, source, compile_options(context.config))
        return self._modules
