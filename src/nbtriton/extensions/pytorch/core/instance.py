"""One instance of a torch module: gather, ``forward``, scatter, on its own stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nbtriton.backends.base import BackendRequest, BatchTimer, Response
from nbtriton.backends.core.batching import BatchInstance, gather_inputs
from nbtriton.backends.core.place import Place
from nbtriton.backends.read_only import check_unchanged, versions_of
from nbtriton.backends.tracebacks import model_error
from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.common.errors import TritonError as EngineError
from nbtriton.extensions.pytorch.core.naming import InputOrder, arrange_outputs, name_results
from nbtriton.model.config import ModelConfig, output_types, reads_only
from nbtriton.model.tensors import (
    Array,
    as_bytes_array,
    copy_of,
    datatype_of,
    is_on_device,
    own,
    to_config,
    to_numpy,
    to_torch,
)

if TYPE_CHECKING:
    import torch


# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray


class ModuleInstance(BatchInstance):
    """Runs one module on one device.

    Parameters
    ----------
    module : torch.nn.Module
        On `device`; other instances may share it.
    device : torch.device or None
        The device of inputs; None leaves them where they are (KIND_MODEL).
    config : ModelConfig
    order : InputOrder
    parameters : nbtriton.extensions.pytorch.parameters.ModuleParameters
    place : Place, optional
        On a GPU.
    graphs : nbtriton.extensions.pytorch.graphs.Graphs, optional
        The place's graphs, if batches run by CUDA graphs.
    """

    def __init__(
        self,
        module: Any,
        device: torch.device | None,
        config: ModelConfig,
        order: InputOrder,
        parameters: Any,
        place: Place | None = None,
        graphs: Any = None,
    ) -> None:
        import torch

        # Looked up once: after a batch the import machinery is not in the processor's cache.
        self._torch, self._tensor = torch, torch.Tensor
        super().__init__(config)
        self._module = module
        self._device = device
        self._order = order
        self._outputs = output_types(config)
        self._results = arrange_outputs(list(self._outputs))
        self._reads_only = reads_only(config)
        # One for all batches, which run one at a time.
        self._guard = torch.inference_mode() if parameters.inference_mode else torch.no_grad()
        script = isinstance(module, torch.jit.ScriptModule)
        self._plain_execution = script and not parameters.optimized
        self._place = place
        cuda = place is not None
        self._before_batch = parameters.before_batch(script=script, cuda=cuda)
        self._cleans_cache: bool = parameters.cleans_cache
        self._graphs: Any = graphs

    def finalize(self) -> None:
        """Release the module."""
        self._module = None
        try:
            if self._place is not None:
                self._place.close()
        finally:  # their memory is in use until the stream is done
            if self._graphs is not None:
                self._graphs.close()

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; without batching it has one request."""
        place = self._place
        if place is None:
            outputs = self._compute(requests, timer)
        else:
            place.begin()
            with place.stream:
                outputs = self._compute(requests, timer)
                place.leave(outputs.items(), requests)
            if self._cleans_cache:
                place.stream.synchronize()
                self._torch.cuda.empty_cache()
        timer.infer_done()
        return self.scatter(requests, outputs)

    def _compute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> dict[str, Array]:
        """Return the outputs by name: copies, as the module may reuse its own memory.

        It may keep a tensor and return it again, return one twice, or a weight, or its input.
        """
        place = self._place
        gathered = gather_inputs(
            requests, self._order.names, self._layout,
            copy=place is not None and not self._reads_only, model=self._name, place=place,
        )  # fmt: skip
        inputs = self._inputs(requests, gathered)
        versions = None
        if self._reads_only:
            versions = versions_of({k: v for k, v in inputs.items() if type(v) is not list})
        timer.inputs_ready()
        # `torch.set_num_threads` reaches a thread when that asks for the number (27 ns). Until then its matrix products
        # take a thread for each core: beside other programs 16 rows took 30 ms instead of 3.
        self._torch.get_num_threads()
        with self._guard:
            if place is None:
                outputs = self._name_outputs(self._forward(inputs))
            else:
                with place.computing():
                    outputs = self._name_outputs(self._forward(inputs))
        if versions:
            check_unchanged(versions, self._name)
        as_numpy = True
        for array in gathered.values():
            as_numpy = as_numpy and type(array) is _ndarray
        if as_numpy:
            copied = requests[0].copies_outputs
            return {name: self._as_numpy(tensor, copied) for name, tensor in outputs.items()}
        return {
            name: tensor if type(tensor) is _ndarray else copy_of(tensor)
            for name, tensor in outputs.items()
        }

    def _inputs(
        self, requests: Sequence[BackendRequest], gathered: Mapping[str, Array]
    ) -> dict[str, Any]:
        """Return tensors for the module: its own memory, unless it only reads. Strings are a list."""
        device = self._device
        # Joining several requests made new memory.
        copies = len(requests) == 1 and not self._reads_only and self._place is None
        owned = requests[0].owned_inputs
        inputs: dict[str, Any] = {}
        for name, given in gathered.items():
            if _is_text(given):
                inputs[name] = [item.decode() for item in given.reshape(-1).tolist()]
                continue
            # A transfer from a GPU to the host makes a copy.
            stays = device is None or not is_on_device(given)
            array = own(given, name in owned) if copies and stays else given
            inputs[name] = to_torch(array, device).contiguous()
        return inputs

    def _forward(self, inputs: Mapping[str, Array]) -> Any:
        if self._before_batch is not None:
            self._before_batch()
        try:
            if self._graphs is not None:
                return self._replayed(inputs)
            if self._plain_execution:
                with self._torch.jit.optimized_execution(False):
                    return self._order.call(self._module, inputs)
            return self._order.call(self._module, inputs)
        except (EngineError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise model_error("PyTorch execute failure: ", error) from error

    def _called(self, inputs: Mapping[str, Array]) -> Any:
        return self._order.call(self._module, inputs)

    def _replayed(self, inputs: Mapping[str, Array]) -> Any:
        """Return the module's result, by a graph if its shapes have one or can get one."""
        place = self._place
        assert place is not None
        for value in inputs.values():
            if type(value) is list:  # strings: no kernel reads them
                return self._called(inputs)
        captured = self._graphs.find(self._called, inputs)
        if captured is None:
            return self._called(inputs)
        captured.write(place.device, inputs)
        captured.graph.replay()
        return captured.result

    def _name_outputs(self, result: Any) -> dict[str, Array]:
        # (A tensor is not checked for a mapping, which is slow in abc.)
        single = isinstance(result, self._tensor) or _is_list_of_text(result)
        results = (result,) if single else result
        named = name_results(results, self._results, model=self._name)
        for name, tensor in named.items():
            if self._outputs[name] == "BYTES" and _is_list_of_text(tensor):
                named[name] = as_bytes_array(np.array(tensor, dtype=object))
                continue
            if not isinstance(tensor, self._tensor):
                raise InternalError(
                    "PyTorch execute failure: output must be of type Tensor, List[str] or Tuple "
                    "containing one of these two types. It should not be a List / Dictionary of "
                    "Tensors or a Scalar",
                    hint=f"output '{name}' is of type {type(tensor).__name__}",
                )
            datatype = datatype_of(tensor)
            if datatype != self._outputs[name]:
                raise InvalidArgumentError(
                    f"configuration expects datatype {to_config(self._outputs[name])} for output "
                    f"'{name}', model provides {to_config(datatype)}",
                    hint="change data_type of the output, or cast in forward",
                )
        return named

    def _as_numpy(self, tensor: Array, copied: bool) -> Array:
        """Return a tensor on the host as numpy, which cuts and inspects ten times as fast.

        Its memory belongs to the engine, unless the receiver copies it.
        """
        if type(tensor) is _ndarray:  # strings
            return tensor
        # numpy may have no BF16: its reader decides.
        on_host = tensor.is_cpu and datatype_of(tensor) != "BF16"
        array = to_numpy(tensor) if on_host else tensor
        return array if copied else copy_of(array)


def _is_text(array: Array) -> bool:
    return type(array) is _ndarray and array.dtype.kind == "O"


def _is_list_of_text(result: Any) -> bool:
    """Return True for TorchScript's ``List[str]``; an empty list counts as one."""
    return type(result) is list and (not result or type(result[0]) is str)
