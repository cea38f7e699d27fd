"""Stand-ins for models without their backend or file: declared shapes, declared or recorded cost, zeros for answers."""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    ModelContext,
    Response,
)
from nbtriton.backends.core.batching import gather_inputs
from nbtriton.backends.described import model_dims
from nbtriton.backends.ragged import layout
from nbtriton.common.errors import ConfigError, InternalError, InvalidArgumentError
from nbtriton.model.config import (
    ModelConfig,
    TensorSpec,
    copy_config,
    enum_name,
    input_specs,
    output_specs,
    scheduling_choice,
)
from nbtriton.model.config.parameters import text_parameter
from nbtriton.model.tensors import Array, numpy_dtype, shape_of, to_protocol

# Parameters of a configuration.
DECLARED = "STAND_IN_COST_US"
RECORDED = "STAND_IN_STATISTICS"
# The default name of a recording beside config.pbtxt.
_FILE = "stand_in.json"
_PHASES = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class Cost:
    """The execution time of a batch by its size.

    Parameters
    ----------
    points : tuple of (int, float)
        Rows of a batch and its microseconds, by rows. Other sizes are interpolated, and
        extrapolated from the last two points; below the first point, its time counts. Without
        points batches cost nothing.
    source : str
        The source of the points, for messages.
    """

    points: tuple[tuple[int, float], ...] = ()
    source: str = "no cost is declared"

    def seconds(self, rows: int) -> float:
        """Return the time of a batch with this number of rows."""
        points = self.points
        if not points:
            return 0.0
        if rows <= points[0][0] or len(points) == 1:
            return points[0][1] / 1e6
        index = min(bisect_left(points, (rows, 0.0)), len(points) - 1)
        (low, before), (high, after) = points[index - 1], points[index]
        return max(0.0, before + (after - before) * (rows - low) / (high - low)) / 1e6


def cost_of(config: ModelConfig, directory: Path | None) -> Cost:
    """Return the cost that a configuration declares, or that of the recording that it names.

    Parameters
    ----------
    config : ModelConfig
        With ``STAND_IN_COST_US``: microseconds of every batch (``"500"``), or of some sizes
        (``"1:2100, 8:6000, 32:20000"``); or ``STAND_IN_STATISTICS``: a file with Triton's response at
        ``/v2/models/NAME/stats``, of which the mean times by batch size count.
    directory : Path or None
        The model's. A recording there has the name ``stand_in.json`` unless the configuration names one.

    Raises
    ------
    InvalidArgumentError, InternalError
        An unreadable cost or recording.
    """
    text = text_parameter(config, DECLARED)
    if text is not None:
        return Cost(_declared(text), f"{DECLARED} {text}")
    named = text_parameter(config, RECORDED)
    path = Path(named or _FILE)
    path = path if directory is None else directory / path
    if named is None and (directory is None or not path.is_file()):
        return Cost()
    return Cost(_recorded(path, str(config.name)), f"recorded in {path.name}")


def _declared(text: str) -> tuple[tuple[int, float], ...]:
    pairs = [part.partition(":") for part in text.split(",")]
    try:
        if len(pairs) == 1 and not pairs[0][1]:
            pairs = [("1", ":", text)]
        points = {int(rows): float(us) for rows, _, us in pairs}
    except ValueError:
        points = {}
    if not points or not all(rows > 0 and 0 <= us < 1e12 for rows, us in points.items()):
        raise InvalidArgumentError(
            f"{DECLARED} is '{text}', expected microseconds of a batch, or of batches by their size",
            hint='"500", or "1:2100, 8:6000, 32:20000"',
        )
    return tuple(sorted(points.items()))


def _recorded(path: Path, name: str) -> tuple[tuple[int, float], ...]:
    try:
        models = json.loads(path.read_bytes())["model_stats"]
        recorded = [model for model in models if model.get("name") == name] or models
        points = {int(batch["batch_size"]): _mean_us(batch) for batch in recorded[0]["batch_stats"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InternalError(
            f"{RECORDED}: '{path}' is not a recording: {type(error).__name__}: {error}",
            hint=f"curl HOST:8000/v2/models/{name}/stats > {path.name} on a server that runs the model",
        ) from None
    if not points:
        raise InternalError(
            f"{RECORDED}: '{path}' has no batch of '{name}'",
            hint="record it once the model has run under load",
        )
    return tuple(sorted(points.items()))


def _mean_us(batch: dict[str, Any]) -> float:
    phases = [batch[phase] for phase in _PHASES if phase in batch]
    return sum(int(one["ns"]) / max(1, int(one["count"])) for one in phases) / 1000


class StandInInstance(BackendInstance):
    """Answers requests with zeros of the declared shapes.

    A variable dimension of an output is that of the first input with one, in order, or 1.

    Parameters
    ----------
    config : ModelConfig
    cost : Cost
    """

    def __init__(self, config: ModelConfig, cost: Cost) -> None:
        self._cost = cost
        self._batches = config.max_batch_size > 0
        self._decoupled = bool(config.model_transaction_policy.decoupled)
        self._layout = layout(config)
        self._inputs = input_specs(config)
        self._outputs = output_specs(config)
        for state in config.sequence_batching.state:
            name = str(state.output_name)
            spec = TensorSpec(name, to_protocol(enum_name(state, "data_type")), tuple(state.dims))
            self._outputs.setdefault(name, spec)

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; a model that does not batch runs one request after the other."""
        if self._batches:
            # As in a real backend: inputs that cannot be joined are an error.
            gather_inputs(requests, list(self._inputs), self._layout, copy=False)
        timer.inputs_ready()
        if self._batches:
            time.sleep(self._cost.seconds(sum(request.batch_size for request in requests)))
        else:
            time.sleep(self._cost.seconds(1) * len(requests))
        timer.infer_done()
        responses = [
            Response({name: self._zeros(request, name) for name in request.requested_outputs})
            for request in requests
        ]
        if not self._decoupled:
            return responses
        for request, response in zip(requests, responses, strict=True):
            request.send(response, final=True)
        return None

    def _zeros(self, request: BackendRequest, name: str) -> Array:
        spec = self._outputs[name]
        batch = (request.batch_size,) if self._batches and not spec.is_shape_tensor else ()
        variable = iter(self._variable(request))
        shape = (*batch, *(next(variable, 1) if n == -1 else n for n in model_dims(spec)))
        if spec.datatype == "BYTES":
            return np.full(shape, b"", dtype=object)
        if spec.datatype == "BF16":
            import torch

            return torch.zeros(shape, dtype=torch.bfloat16)
        return np.zeros(shape, numpy_dtype(spec.datatype))

    def _variable(self, request: BackendRequest) -> list[int]:
        """Return the sizes of the variable dimensions of the first input with one."""
        for name, spec in self._inputs.items():
            dims = model_dims(spec)
            if -1 in dims and name in request.inputs and not spec.is_shape_tensor:
                item = shape_of(request.inputs[name])[1 if self._batches else 0 :]
                return [size for want, size in zip(dims, item, strict=False) if want == -1]
        return []


_log = logging.getLogger("nbtriton.stand_in")


def stand_in_for(backend: str, platform: str, reason: str) -> type[Backend]:
    """Return the backend of stand-ins for another one.

    Parameters
    ----------
    backend, platform : str
        Of the configuration; the platform may be empty.
    reason : str
        What is missing.
    """
    members = {"name": backend, "platform": f"{platform or backend} (stand-in)", "stand_in": reason}
    return type("StandInBackend", (_StandInBackend,), members)


class _StandInBackend(Backend):
    """Runs models of which only the configuration is available."""

    needs_source: ClassVar[bool] = False

    def __init__(self) -> None:
        self._cost: Cost | None = None

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Enable batching for a TensorRT model without a scheduler, as Triton does.

        Raises
        ------
        ConfigError
            Inputs or outputs are missing, and cannot be completed.
        """
        config = context.config
        for field in ("input", "output"):
            if not getattr(config, field):
                raise ConfigError(
                    f"a stand-in for model '{context.name}' needs the {field}s in its configuration",
                    hint=f"{self.stand_in}, so only the configuration can describe them",
                    field=field,
                )
        if self.name == "tensorrt" and config.max_batch_size > 1 and not scheduling_choice(config):
            batching = copy_config(config)
            batching.dynamic_batching.SetInParent()
            return batching
        return config

    def check(self, context: ModelContext) -> None:
        """Check the cost."""
        self._cost = cost_of(context.config, context.model_directory)

    def batching(self, context: ModelContext) -> object:  # noqa: ARG002
        """Return None: a stand-in has no code for custom batching."""
        return None

    def open(self, context: ModelContext) -> None:
        """Log that a stand-in runs."""
        cost = self._cost_of(context)
        _log.warning(
            "model '%s' is a stand-in for %s: %s; %s, its outputs are zeros",
            context.name, self.name, self.stand_in, cost.source,
        )  # fmt: skip

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance; its device makes no difference."""
        return StandInInstance(context.model.config, self._cost_of(context.model))

    def _cost_of(self, context: ModelContext) -> Cost:
        if self._cost is None:
            self._cost = cost_of(context.config, context.model_directory)
        return self._cost
