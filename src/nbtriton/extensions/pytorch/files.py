"""Torch modules as files with inputs and outputs in the configuration's order."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtriton.common.errors import TritonError, UnsupportedError
from nbtriton.extensions.pytorch.check import indexed_inputs
from nbtriton.extensions.pytorch.core.naming import (
    Forward,
    arrange_inputs,
    arrange_outputs,
    name_results,
)
from nbtriton.extensions.pytorch.modules import read_forward
from nbtriton.model.config import (
    ModelConfig,
    TensorSpec,
    control_types,
    input_specs,
    output_types,
    state_inputs,
)
from nbtriton.model.tensors import to_protocol
from nbtriton.serving.repository.samples import sample_tensors


def save_torchscript(module: Any, config: ModelConfig, path: Path) -> list[str]:
    """Write a module as TorchScript.

    The module is traced. If the trace and the module differ on two further batch sizes, the module is
    compiled instead (``torch.jit.script``).

    Parameters
    ----------
    module : torch.nn.Module
    config : ModelConfig
        Completed.
    path : Path

    Returns
    -------
    list of str
        Notes for the user.

    Raises
    ------
    UnsupportedError
        Both ways fail, with the reasons.
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


def save_program(module: Any, config: ModelConfig, path: Path) -> None:
    """Write a module as a ``torch.export`` program, for any batch size and variable dimensions.

    Raises
    ------
    UnsupportedError
        The export fails, or the program differs from the module at other sizes.
    """
    import torch

    host = copy.deepcopy(module).to("cpu").eval()
    wrapped = _in_order(host, config)
    samples = [_tensors(config, size) for size in (2, 3, 1)]
    # Without AUTO (torch before 2.6) only the batch varies, up to the largest.
    auto = getattr(torch.export.Dim, "AUTO", None)
    largest = max(2, int(config.max_batch_size))
    batch = {0: auto or torch.export.Dim("batch", min=1, max=largest)}
    shapes = {
        argument: (batch if config.max_batch_size > 0 else {})
        | {
            axis + (config.max_batch_size > 0): auto
            for axis, dim in enumerate(spec.dims)
            if dim < 0 and auto is not None
        }
        for argument, spec in zip(_arguments(config), _inputs(config).values(), strict=True)
    }
    try:
        with torch.no_grad():
            # Exported with keywords, as the backend passes inputs.
            program = torch.export.export(wrapped, (), samples[0], dynamic_shapes=shapes)
        _compare(program.module(), wrapped, samples)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"model '{config.name}' cannot be written by torch.export: {_first_line(error)}",
            hint='torch="torchscript" may be able to',
        ) from None
    torch.export.save(program, path)


def _in_order(module: Any, config: ModelConfig) -> Any:
    """Return a module with the same weights and with inputs and outputs in the configuration's order."""
    import torch

    inputs = list(_inputs(config))
    order = arrange_inputs(list(input_specs(config)), read_forward(module), indexed_inputs(config))
    results = arrange_outputs(list(output_types(config)))

    class InOrder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def run(self, *tensors: Any) -> Any:
            given = dict(zip(inputs, tensors, strict=True))
            result = order.call(self.module, given)
            if results.indices and isinstance(result, (tuple, list)):
                return tuple(result)  # the server finds outputs by index
            found = name_results(result, results, model=str(config.name))
            indices = results.indices or range(len(results.names))
            places = sorted(zip(indices, results.names, strict=True))
            values = tuple(found[name] for _, name in places)
            return values[0] if len(values) == 1 else values

    # The arguments have the inputs' names, by which the backend finds them.
    space: dict[str, Any] = {}
    listed = ", ".join(_arguments(config))
    exec(f"def forward(self, {listed}): return self.run({listed})", space)  # noqa: S102 - identifiers
    InOrder.forward = space["forward"]
    return InOrder().eval()


def _inputs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return all inputs of the file in order, controls and states at their index."""
    specs = input_specs(config)
    extra = {
        name: TensorSpec(name, to_protocol(kind), (1,))
        for name, kind in control_types(config).items()
    }
    dims = {state.input_name: tuple(state.dims) for state in config.sequence_batching.state}
    for name, kind in state_inputs(config).items():
        extra[name] = TensorSpec(name, to_protocol(kind), dims[name])
    if not extra:
        return specs
    order = arrange_inputs(list(specs), Forward(None), list(extra))
    return {name: (specs | extra)[name] for name in order.names}


def _arguments(config: ModelConfig) -> list[str]:
    """Return the names of the file's inputs: the configuration's names that are identifiers."""
    names = list(_inputs(config))
    if config.sequence_batching.state:
        # Other inputs are passed by index; an argument of such a name would be taken for a name.
        return [f"x{index}" for index in range(len(names))]
    if all(name.isidentifier() for name in names):
        return names
    return [f"INPUT__{index}" for index in range(len(names))]


def _trace(wrapped: Any, samples: Sequence[Mapping[str, Any]]) -> tuple[Any, list[str]]:
    import torch

    with warnings.catch_warnings(record=True) as caught, torch.inference_mode(mode=False):
        warnings.simplefilter("always")
        with torch.no_grad():
            trace: Any = torch.jit.trace
            traced = trace(wrapped, tuple(samples[0].values()), check_trace=False)
    # Warnings of torch's layers are about shapes; three batch sizes are compared below.
    library = str(Path(torch.__file__).parent)
    doubts = [
        _first_line(warning.message)
        for warning in caught
        if issubclass(warning.category, torch.jit.TracerWarning)
        and not warning.filename.startswith(library)
    ]
    _compare(traced, wrapped, samples)
    return traced, doubts


def _compare(written: Any, original: Any, samples: Sequence[Mapping[str, Any]]) -> None:
    import torch

    for sample in samples:
        with torch.no_grad():
            result, expected = written(**sample), original(**sample)
        torch.testing.assert_close(result, expected, equal_nan=True)


def _tensors(config: ModelConfig, size: int) -> dict[str, Any]:
    import torch

    samples = sample_tensors(
        _inputs(config).values(), batches=config.max_batch_size > 0, size=size, seed=size
    )
    return {
        argument: torch.from_numpy(array)
        for argument, array in zip(_arguments(config), samples.values(), strict=True)
    }


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
