"""An ensemble as one CUDA graph: one launch for a request that is alone.

A request that would share no batch with another one in any step gains nothing by the steps' schedulers: it is
answered by one replay of all steps. It counts in the statistics of each step as an execution of an instance of the
graph's own. All others take the steps one by one, and so does a request for whose shapes there is no graph.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from graphlib import TopologicalSorter

from nbtriton.backends.base import InstanceContext, ModelContext, RequestOptions, Response
from nbtriton.backends.devices import CaptureError
from nbtriton.backends.fused import FusedBackend, Part
from nbtriton.model.config import InstancePlan, ModelConfig
from nbtriton.model.tensors import Array
from nbtriton.runtime.engine.core.completion import Completion
from nbtriton.runtime.engine.core.ensemble_binding import EnsembleBinding
from nbtriton.runtime.engine.core.ensemble_execution import EnsembleExecution, EnsembleOwner
from nbtriton.runtime.engine.core.execution import Execution
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.request import InferenceRequest, next_number
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.scheduler_settings import batcher_settings, preserves_order
from nbtriton.runtime.engine.core.scheduler_thread import SchedulerThread
from nbtriton.scheduling import EnsemblePlan, Step

__all__ = ["EnsembleGraph", "GraphExecution", "open_graph"]

_log = logging.getLogger("nbtriton.runtime.engine")

_PLAIN_OPTIONS = RequestOptions()


class _GraphRuntime(ModelRuntime):
    """The version of a model that the graph is, which only the ensemble knows."""

    def log_unloaded(self) -> None:
        """Do nothing."""


class EnsembleGraph:
    """The graph of one binding of an ensemble.

    Attributes
    ----------
    binding : EnsembleBinding
        Of the graph in place of all steps.
    runtime : ModelRuntime
        That runs it.
    """

    def __init__(
        self,
        ensemble: EnsembleOwner,
        steps: Sequence[ModelRuntime],
        order: Sequence[int],
        backend: FusedBackend,
        runtime: ModelRuntime,
    ) -> None:
        config = ensemble.config
        inputs = [tensor.name for tensor in config.input]
        outputs = [tensor.name for tensor in config.output]
        step = Step(
            config.name, ensemble.version,
            {name: name for name in inputs}, {name: name for name in outputs},
        )  # fmt: skip
        self.binding = EnsembleBinding(
            EnsemblePlan([step], inputs, outputs), ensemble.signature, (runtime,)
        )
        self.runtime = runtime
        self._steps = tuple(steps)
        self._order = tuple(order)
        self._backend = backend
        self._inputs = frozenset(inputs)
        self._outputs = frozenset(outputs)
        # A version that is updated in place gets another one.
        self._configs = [step.config for step in steps]

    def is_stale(self) -> bool:
        """Return whether a step has got other instances since."""
        found = [step.config for step in self._steps]
        return any([a is not b for a, b in zip(found, self._configs)])  # noqa: B905, C419 - compiled

    def takes(self, request: InferenceRequest) -> bool:
        """Return whether a request that is alone in its ensemble can be answered by one replay."""
        if (
            request.trace is not None  # which shows the steps
            or request.requested_outputs != self._outputs
            or request.inputs.keys() != self._inputs
        ):
            return False
        for step in self._steps:
            if not step.can_be_passed_by:
                return False
        return not self._backend.has_refused(request.inputs)

    def record_steps(self, request: InferenceRequest, caller: InferenceRequest) -> None:
        """Count a request to the graph as one execution of each step.

        What the graph took is divided among the steps as their capture was.
        """
        execution = request.execution
        if execution is None:
            return
        input_ns, infer_ns, output_ns = execution.times()
        begin = at = execution.start_ns
        last = len(self._order) - 1
        for place, (index, share) in enumerate(zip(self._order, self._backend.shares)):  # noqa: B905
            step = self._steps[index]
            # The reason that its batcher would have had.
            reason = "no_delay" if step.config.HasField("dynamic_batching") else "batching_off"
            if not step.signature.max_batch_size:
                reason = "no_batch_dimension"
            one = Execution(request.size, execution.instance, next_number(), 1, reason, at, 0)
            one.start_ns = at
            one.infer_start_ns = at + (0 if place else input_ns)
            one.infer_end_ns = one.infer_start_ns + int(infer_ns * share)
            one.end_ns = one.infer_end_ns + (output_ns if place == last else 0)
            at = one.end_ns
            if not place:
                one.queue_ns = one.longest_ns = max(0, begin - request.enqueued_ns)
            one.inferences = request.size
            one.total_ns = one.queue_ns + one.end_ns - one.start_ns
            one.answered_ns = at
            one.caller = caller.number
            one.step = index
            one.request_id = request.request_id
            if step.history is not None:
                step.history.advance(at)
            step.statistics.record_execution(one)
            if step.statistics.summaries is not None:
                step.statistics.summaries.record_execution(one.total_ns, one.queue_ns, *one.times())

    def close(self) -> None:
        """End it, once its last request is answered; the steps are released behind it."""
        self.runtime.drain()

    def wait_closed(self, timeout_s: float | None) -> bool:
        """Wait until it has ended; False if time ran out."""
        return self.runtime.wait_drained(timeout_s)


class GraphExecution(EnsembleExecution):
    """One request through an ensemble that runs as one graph.

    Parameters
    ----------
    ensemble : EnsembleOwner
    held : EnsembleBinding
        Of all steps, by which the request goes on if the graph declines it.
    graph : EnsembleGraph
    request : InferenceRequest
    """

    __slots__ = ("_graph",)

    def __init__(
        self,
        ensemble: EnsembleOwner,
        held: EnsembleBinding,
        graph: EnsembleGraph,
        request: InferenceRequest,
    ) -> None:
        super().__init__(ensemble, graph.binding, request)
        self._graph = graph
        self.held = held

    def respond(
        self,
        request: InferenceRequest,
        response: Response,
        final: bool,
        completion: Completion | None,
    ) -> None:
        """Answer by what the graph gave; without a graph the steps are run one by one."""
        if isinstance(response.error, CaptureError):
            self.ensemble.run_steps(self, completion)
            return
        if response.error is None:
            self._graph.record_steps(request, self.request)
        super().respond(request, response, final, completion)


def open_graph(
    ensemble: EnsembleOwner, binding: EnsembleBinding, clock: SchedulerThread
) -> EnsembleGraph | None:
    """Return the graph of an ensemble; None, with a warning, where it cannot be one.

    Parameters
    ----------
    ensemble : EnsembleOwner
    binding : EnsembleBinding
        Of its steps.
    clock : SchedulerThread
    """
    obstacle = _obstacle(ensemble, binding)
    if not obstacle:
        steps: list[ModelRuntime] = []
        for runtime in binding.runtimes:
            assert isinstance(runtime, ModelRuntime)
            steps.append(runtime)
        try:
            return _open(ensemble, binding, steps, clock)
        except Exception as error:  # of what a model does when it is created, too
            obstacle = str(error).partition("\n")[0]
    _log.warning("ensemble '%s' runs without a CUDA graph: %s", ensemble.name, obstacle)
    return None


def _open(
    ensemble: EnsembleOwner,
    binding: EnsembleBinding,
    steps: list[ModelRuntime],
    clock: SchedulerThread,
) -> EnsembleGraph:
    config = ensemble.config
    plan = InstancePlan(f"{config.name}_graph", "KIND_GPU", steps[0].gpu, "", passive=False)
    order = _order(binding.plan)
    parts = [_part(binding, index, steps[index], plan) for index in order]
    outputs = [tensor.name for tensor in config.output]
    acquired: list[ModelRuntime] = []

    def release() -> None:
        while acquired:
            acquired.pop().release()

    backend = FusedBackend(f"ensemble '{config.name}'", parts, outputs, release)
    own = ModelConfig(name=config.name, max_batch_size=config.max_batch_size)
    own.input.extend(config.input)
    own.output.extend(config.output)
    context = ModelContext(
        config.name, ensemble.version, own, None, devices=steps[0].context.devices
    )
    runtime = _GraphRuntime(context, backend, [plan], clock)
    for step in steps:
        if not step.acquire():  # it is being unloaded: the next binding has another one
            release()
            raise CaptureError(f"step '{step.name}' is being unloaded")
        acquired.append(step)
    runtime.start()  # which ends it where it fails
    return EnsembleGraph(ensemble, steps, order, backend, runtime)


def _part(binding: EnsembleBinding, index: int, runtime: ModelRuntime, plan: InstancePlan) -> Part:
    step = binding.plan.steps[index]
    # A step may write to its inputs. What another step has made may be that one's weight, or its input: safe is only
    # what is written anew for each replay, and read by nothing else.
    shared = frozenset(
        [
            name
            for name, tensor in step.input_map.items()
            if name not in binding.owned_of_all[index] or tensor in binding.plan.producer
        ]
    )
    if runtime.signature.reads_only:
        shared = frozenset()
    context = InstanceContext(runtime.context, plan.name, plan.kind, plan.device_id)
    check = partial(_check, runtime)
    return Part(runtime.backend, context, step.input_map, step.output_map, shared, check)


def _check(runtime: Runtime, inputs: Mapping[str, Array]) -> None:
    """Check the inputs of a step as those of a request to it."""
    runtime.signature.build_request(inputs, _PLAIN_OPTIONS)


def _order(plan: EnsemblePlan) -> list[int]:
    """Return the steps that all outputs need, each behind those whose tensors it reads."""
    before = {
        index: sorted([plan.producer[name] for name in plan.step_inputs[index] - plan.inputs])
        for index in plan.needed(plan.outputs)
    }
    return list(TopologicalSorter(before).static_order())


def _obstacle(ensemble: EnsembleOwner, binding: EnsembleBinding) -> str:
    """Return what keeps an ensemble from being a graph; empty if nothing."""
    if ensemble.gates:
        return "max_inflight_requests limits the requests in a step"
    gpus: set[int] = set()
    for index, runtime in enumerate(binding.runtimes):
        if not isinstance(runtime, ModelRuntime):
            return f"step '{runtime.name}' is an ensemble"
        why = _obstacle_of_step(runtime)
        if why:
            return f"step '{runtime.name}' {why}"
        for bound in binding.inputs[index]:
            if bound.dims is not None:
                return f"step '{runtime.name}' batches where another one does not"
        gpus.add(runtime.gpu)
    for output in binding.ensemble_outputs:
        if output.dims is not None:
            return "a step batches where the ensemble does not, or the other way round"
    if len(gpus) > 1:
        return f"its steps run on GPUs {', '.join(map(str, sorted(gpus)))}"
    for tensor in [*ensemble.signature.inputs.values(), *ensemble.signature.outputs.values()]:
        if tensor.datatype == "BYTES":
            return f"tensor '{tensor.name}' is of strings"
    return ""


def _obstacle_of_step(runtime: ModelRuntime) -> str:
    if runtime.gpu < 0 or runtime.backend.isolation != "thread":
        return "does not run on one GPU in this process"
    if runtime.cache is not None:
        return "keeps its responses in the cache"
    if runtime.sequences is not None:
        return "has sequences"
    if runtime.forms_own_batches:
        return "has custom batching"
    if runtime.signature.decoupled:
        return "is decoupled"
    if runtime.is_rate_limited:
        return "is limited in its rate"
    if batcher_settings(runtime.config).max_queue_delay_ns:
        return "waits for more requests (max_queue_delay_microseconds)"
    if preserves_order(runtime.config):
        return "preserves the order of its responses"
    specs = [*runtime.signature.inputs.values(), *runtime.signature.outputs.values()]
    for spec in specs:
        if spec.reshape is not None:
            return f"has a reshape of '{spec.name}'"
        if spec.datatype == "BYTES":
            return f"has strings in '{spec.name}'"
    return ""
