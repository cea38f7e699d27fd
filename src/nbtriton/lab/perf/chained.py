"""An ensemble answered by its client: each step is a request of its own, as by a program without an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack

from nbtriton.common.closing import Closing
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.remote import Pending, RemoteServer, Target
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.options.blocks import CallOptions

# Requests in flight, each with a thread, as such a program has them.
_MOST = 256


class ChainedSteps(Closing):
    """A target that asks for the steps of an ensemble one after the other, and never for the ensemble.

    Parameters
    ----------
    target : Server or RemoteServer
        It has the ensemble and its composing models.
    model : str
        The ensemble.

    Raises
    ------
    InvalidArgumentError
        The model is no ensemble.
    """

    def __init__(self, target: Target, model: str) -> None:
        self.config = target.config
        self.statistics = target.statistics
        self.devices = getattr(target, "devices", ())
        config = target.config(model)
        if not is_ensemble(config):
            raise InvalidArgumentError(
                f"model '{model}' is no ensemble: there are no steps for a client to chain",
                hint="chained=[False, True] compares an ensemble with its steps",
            )
        self._outputs = [output.name for output in config.output]
        self._steps = _in_order(config)
        self._ask = target.ask if isinstance(target, RemoteServer) else target.infer
        self._threads = ThreadPoolExecutor(_MOST, "nbtriton-chained")

    def close(self) -> None:
        """Join the threads."""
        self._threads.shutdown()

    def infer(
        self, _name: str, inputs: Request, /, **options: Unpack[CallOptions]
    ) -> Mapping[str, Any]:
        """Ask for each step when its inputs are there; return the ensemble's outputs."""
        each: dict[str, Any] = {**options}
        for of_the_ensemble in ("outputs", "version"):
            each.pop(of_the_ensemble, None)
        tensors = dict(inputs)
        for model, version, taken, given in self._steps:
            asked = {name: tensors[tensor] for name, tensor in taken.items() if tensor in tensors}
            answer: Any = self._ask(model, asked, version=version, **each)
            tensors |= {tensor: answer[name] for name, tensor in given.items()}
        return {name: tensors[name] for name in self._outputs}

    def submit(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        on_response: Callable[[Any, bool], None] | None = None,  # noqa: ARG002 - refused before
        **options: Unpack[CallOptions],
    ) -> Pending:
        """Do so on a thread."""
        return self._threads.submit(self.infer, name, inputs, **options)


_Step = tuple[str, int, Mapping[str, str], Mapping[str, str]]


def _in_order(config: ModelConfig) -> list[_Step]:
    """Return model, version, inputs and outputs of the steps, each after those whose tensors it takes."""
    waiting = [
        (step.model_name, int(step.model_version), dict(step.input_map), dict(step.output_map))
        for step in config.ensemble_scheduling.step
    ]
    made = {tensor for step in waiting for tensor in step[3].values()}
    ordered: list[_Step] = []
    while waiting:
        # A loaded ensemble has no cycle.
        step = next(one for one in waiting if made.isdisjoint(one[2].values()))
        waiting.remove(step)
        made -= set(step[3].values())
        ordered.append(step)
    return ordered
