"""A torch module as a TorchScript file whose inputs and outputs stand in the configuration's order."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtriton.backends.pytorch.modules import forward_arguments
from nbtriton.backends.pytorch.naming import arrange_inputs, arrange_outputs, name_results
from nbtriton.config import ModelConfig, input_specs, output_specs
from nbtriton.errors import TritonError, UnsupportedError
from nbtriton.repository.samples import sample_inputs

__all__ = ["save_torchscript"]


def save_torchscript(module: Any, config: ModelConfig, path: Path) -> list[str]:
    """Write a module as TorchScript.

    It is traced, and the trace must answer two further batches of other sizes as the module does;
    where it does not, the module is compiled (``torch.jit.script``).

    Parameters
    ----------
    module : torch.nn.Module
    config : ModelConfig
        Completed.
    path : Path

    Returns
    -------
    list of str
        What the user should know.

    Raises
    ------
    UnsupportedError
        Neither way works, with the reasons.
    """
    import torch

    name = str(config.name)
    if isinstance(module, torch.jit.ScriptModule):
        torch.jit.save(module, str(path))
        return []
    host = copy.deepcopy(module).to("cpu").eval()
    wrapped = _in_order(host, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        samples = [_tensors(config, size) for size in (2, 3, 1)]
    try:
        traced, doubts = _trace(wrapped, samples)
    except (KeyboardInterrupt, TritonError):
        raise
    except Exception as error:
        traced, doubts = None, [f"tracing: {_first_line(error)}"]
    if traced is not None and not doubts:
        torch.jit.save(traced, str(path))
        return []
    try:
        compiled = torch.jit.script(host)
        _compare(_in_order(compiled, config), wrapped, samples)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        if traced is not None:
            torch.jit.save(traced, str(path))
            return [f"model '{name}' is traced, what depends on values is fixed: {doubts[0]}"]
        raise UnsupportedError(
            f"model '{name}' cannot be written as TorchScript: {doubts[0]}; compiling: "
            f"{_first_line(error)}",
            hint="write the model as a class TritonPythonModel that calls the module",
        ) from None
    torch.jit.save(compiled, str(path))
    return []


def _in_order(module: Any, config: ModelConfig) -> Any:
    """Return a module with the same weights that takes and gives tensors in the config's order."""
    import torch

    inputs = list(input_specs(config))
    order = arrange_inputs(inputs, forward_arguments(module))
    results = arrange_outputs(list(output_specs(config)))
    names = (
        inputs
        if all(name.isidentifier() for name in inputs)
        else [f"INPUT__{index}" for index in range(len(inputs))]
    )

    class InOrder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def run(self, *tensors: Any) -> Any:
            given = dict(zip(inputs, tensors, strict=True))
            if order.by_keyword:
                result = self.module(**given)
            else:
                result = self.module(*(given[key] for key in order.names))
            found = name_results(result, results, model=str(config.name))
            values = tuple(found[key] for key in results.names)
            return values[0] if len(values) == 1 else values

    # The backend finds inputs by the names of the arguments, so they must be the configuration's.
    space: dict[str, Any] = {}
    listed = ", ".join(names)
    exec(f"def forward(self, {listed}): return self.run({listed})", space)  # noqa: S102 - identifiers
    InOrder.forward = space["forward"]
    return InOrder().eval()


def _trace(wrapped: Any, samples: Sequence[Mapping[str, Any]]) -> tuple[Any, list[str]]:
    import torch

    with warnings.catch_warnings(record=True) as told, torch.inference_mode(mode=False):
        warnings.simplefilter("always")
        with torch.no_grad():
            trace: Any = torch.jit.trace
            traced = trace(wrapped, tuple(samples[0].values()), check_trace=False)
    # What torch's own layers ask is about shapes, and three batch sizes are compared below.
    library = str(Path(torch.__file__).parent)
    doubts = [
        _first_line(warning.message)
        for warning in told
        if issubclass(warning.category, torch.jit.TracerWarning)
        and not warning.filename.startswith(library)
    ]
    _compare(traced, wrapped, samples)
    return traced, doubts


def _compare(one: Any, other: Any, samples: Sequence[Mapping[str, Any]]) -> None:
    import torch

    for sample in samples:
        with torch.no_grad():
            found, wanted = one(*sample.values()), other(*sample.values())
        torch.testing.assert_close(found, wanted, equal_nan=True)


def _tensors(config: ModelConfig, size: int) -> dict[str, Any]:
    import torch

    return {
        name: torch.from_numpy(array)
        for name, array in sample_inputs(config, size=size, seed=size).items()
    }


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
