"""One run: open the target, prepare the data, measure every configuration, make the report."""

from __future__ import annotations

import contextlib
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, Unpack

from nbtriton.backends.devices.device_set import DeviceSet
from nbtriton.backends.devices.settings import SimulatedGPUs
from nbtriton.common import __version__
from nbtriton.common.closing import Closing
from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.lab.perf.conditions import Condition, InterpreterWaits, SweptModels, Usage, observed
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.loads import Concurrency, LevelPlan, PeriodicConcurrency, level_values
from nbtriton.lab.perf.machine import Others
from nbtriton.lab.perf.measure import Level, WindowPlan, measure_level
from nbtriton.lab.perf.options import PerfOptions, Protocol
from nbtriton.lab.perf.point import PerfPoint, PointSource, describe
from nbtriton.lab.perf.prepare import Data, Workload, check_streaming, sequence_plan, workloads
from nbtriton.lab.perf.progress import LevelProgress
from nbtriton.lab.perf.remote import Pending, RemoteServer, Target, remote_server
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.session import Ending, Measure, Session
from nbtriton.lab.perf.sweep import (
    CLIENT_OPTIONS,
    Configuration,
    Configurator,
    SweepPlan,
    model_tree,
)
from nbtriton.lab.perf.traffic import SequencePlan
from nbtriton.model.config import ModelConfig, enum_name, is_ensemble, stand_in_reason
from nbtriton.options.blocks import CallOptions
from nbtriton.runtime.workers.resources import usable_cores
from nbtriton.serving.clients.base import NO_STREAMS

if TYPE_CHECKING:
    from nbtriton.serving.server import Server

# Addresses at which an endpoint also answers on the loopback address.
_LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0")  # noqa: S104 - compared, not bound
# Requests in flight to the steps of an ensemble, each with a thread, as a program without an ensemble has them.
_MOST_CHAINED = 256


def run(options: PerfOptions) -> PerfReport:
    """Measure a model; see `nbtriton.perf`."""
    levels, configurations = options.level_plan(), options.configurations()
    with contextlib.ExitStack() as stack:
        target = open_target(
            stack, options.server, options.url, options.protocol, configurations,
            options.sweep_models,
        )  # fmt: skip
        plan = _prepare(target, options, levels, configurations)
        total = levels.count and levels.count * len(configurations) * len(plan.workloads)
        windows = options.window_plan(total)
        conditions: list[Condition] = [Usage(remote=options.server is None)]
        if options.server is not None:  # also over HTTP or gRPC
            waits = InterpreterWaits(options.server, plan.composing or (options.model,))
            swept = SweptModels(options.server, options.model, options.sweep_models)
            conditions = [swept, waits, *conditions]
        measure: Measure = partial(measure_level, target, options.model, plan.composing)
        if any(each.get("chained") for each in configurations):
            measure = _chained(stack, target, options, plan, measure)
        session = Session(
            observed(measure, conditions), total, options.observer,
            loads=() if levels.binary else tuple(map(float, level_values(levels.levels) or ())),
            target_ms=options.latency_threshold_ms or None,
        )  # fmt: skip
        source = PointSource(
            options.model, tuple(options.sweep_models), options.server, options.model_version
        )
        started_s, others = time.monotonic(), Others()
        ending = _measure(session, options, levels, configurations, plan, windows)
        elapsed_s = time.monotonic() - started_s
        return PerfReport(
            model=options.model,
            points=tuple(
                replace(
                    point,
                    source=source,
                    simulated_gpus=plan.simulated_gpus(point.configuration),
                    configs=plan.placed.in_force(point.configuration),
                )
                for point in session.points
            ),
            settings={
                **options.settings(plan.sequences, windows),
                **place_of(target),
                "server": server_options(options.server),
            },
            # A server elsewhere, even on this machine, is one of the others.
            environment=environment_of(target, others if options.server is not None else None),
            notes=(
                *plan.notes,
                *session.notes,
                *(note for each in conditions for note in each.notes()),
            ),
            elapsed_s=elapsed_s,
            interrupted=ending.interrupted,
            failure=ending.failure,
            quick=options.quick,
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The data of a run, read and validated before any load."""

    workloads: list[Workload]
    notes: tuple[str, ...]
    sequences: SequencePlan | None
    composing: tuple[str, ...]  # the models of an ensemble
    gpus: SimulatedGPUs | None  # of the server
    placed: SweepPlan

    def simulated_gpus(self, configuration: Configuration) -> str:
        """Return the simulated GPUs on which models run in a configuration; empty without."""
        names = [] if self.gpus is None else _on_gpus(self.placed.target(configuration))
        return str(self.gpus) if names else ""


def _chained(
    stack: contextlib.ExitStack, target: Target, options: PerfOptions, plan: _Plan, measure: Measure
) -> Measure:
    """Return a function that measures a level on the ensemble, or with its steps asked for by the client."""
    if options.streaming or plan.sequences is not None or options.shared_memory != "none":
        raise InvalidArgumentError(
            "a client chains requests with one answer each, whose tensors it has: neither streams nor sequences, and "
            "none in shared memory"
        )
    steps = stack.enter_context(ChainedSteps(target, options.model))
    chained: Measure = partial(measure_level, steps, options.model, plan.composing)

    def measured(
        level: Level, on_progress: Callable[[LevelProgress], None]
    ) -> tuple[PerfPoint | None, bool]:
        return (chained if level.configuration.get("chained") else measure)(level, on_progress)

    return measured


def open_target(
    stack: contextlib.ExitStack,
    server: Server | None,
    url: str | None,
    protocol: Protocol | None,
    configurations: Sequence[Configuration],
    sweep_models: Sequence[str] = (),
) -> Target:
    """Return the target: the server in this process, or a connection to one.

    Raises
    ------
    InvalidArgumentError
        Neither or both of `server` and `url` are given, or a sweep of a remote server.
    """
    if url is None:
        if server is None:
            raise InvalidArgumentError("nothing to measure", hint="give a server, or a url")
        if protocol in (None, "inproc"):
            return server
        url = stack.enter_context(_reached_over(server, protocol))
    elif server is not None:
        raise InvalidArgumentError("give a server or a url, not both")
    if protocol == "inproc":
        raise InvalidArgumentError(
            f"the server at {url} is not in this process", hint="--protocol http or grpc"
        )
    remote = stack.enter_context(remote_server(url, protocol))
    swept = sorted({name for each in configurations for name in each} - {*CLIENT_OPTIONS})
    if server is None and (swept or sweep_models):
        raise InvalidArgumentError(
            f"the configuration of a server at a url is not changed: {', '.join(swept) or 'sweep_models'}",
            hint="load the model here to sweep over its configuration",
        )
    return remote


@contextlib.contextmanager
def _reached_over(server: Server, protocol: str) -> Iterator[str]:
    """Yield the ``host:port`` of a server over HTTP or gRPC: its own, or a temporary one on a free port."""
    for endpoints in server.endpoints:
        port = getattr(endpoints, f"{protocol}_port")
        if port is not None and endpoints.host in _LOOPBACK:
            yield f"127.0.0.1:{port}"
            return
    closed: dict[str, Any] = {"http_port": None, "grpc_port": None, "metrics_port": None}
    with server.serve(**closed | {f"{protocol}_port": 0}) as opened:
        yield f"127.0.0.1:{getattr(opened, f'{protocol}_port')}"


def _prepare(
    target: Target, options: PerfOptions, levels: LevelPlan, configurations: Sequence[Configuration]
) -> _Plan:
    remote = isinstance(target, RemoteServer)
    ensembles, others = model_tree(target, options.model)
    models = ensembles | others
    if options.model_version is not None:
        models[options.model] = target.config(options.model, options.model_version)
    config = models[options.model]
    check_streaming(models, streaming=options.streaming)
    if options.streaming and isinstance(target, RemoteServer) and target.protocol == "http":
        raise InvalidArgumentError(NO_STREAMS, hint="--protocol grpc")
    sequences = sequence_plan(models, options.sequence_plan(), serial=remote)
    if sequences is not None and isinstance(levels.base, PeriodicConcurrency):
        raise InvalidArgumentError(
            "--periodic-concurrency-range sends each request once: sequences have no part in it"
        )
    if isinstance(levels.base, PeriodicConcurrency) and not any(
        each.model_transaction_policy.decoupled for each in models.values()
    ):
        raise InvalidArgumentError(
            f"model '{options.model}' answers each request once: --periodic-concurrency-range is for "
            "decoupled models, which answer many times"
        )
    if sequences is not None:
        sequences.check(_most_live(levels, sequences))
    found, notes = workloads(
        config,
        options.batch_sizes(),
        Data(
            options.inputs, options.shapes, options.input_data, options.string_length,
            options.string_data, options.seed,
        ),
        sequences,
        min(c.get("max_batch_size", config.max_batch_size) for c in configurations),
    )  # fmt: skip
    found = [replace(workload, options=options.call_options()) for workload in found]
    if options.shared_memory != "none":
        _share(target, config, found, options.output_shared_memory_size)
    gpus = _simulated_gpus(target)
    swept = {name: target.config(name) for name in options.sweep_models}
    placed = SweepPlan(ensembles, others, swept)
    return _Plan(
        found,
        (*notes, *_stand_ins(models), *_simulated(gpus, placed, configurations)),
        sequences,
        tuple(others) if ensembles else (),
        gpus,
        placed,
    )


def _share(
    target: Target, config: ModelConfig, found: Sequence[Workload], output_bytes: int
) -> None:
    """Put all tensors into shared memory."""
    if not isinstance(target, RemoteServer):
        raise InvalidArgumentError(
            "in the process nothing is sent, so there is nothing to share",
            hint="--protocol http or grpc, or a --url",
        )
    requests = [request for workload in found for request in workload.requests]
    for workload in found:
        if workload.sequences is not None:
            requests += [step for steps in workload.sequences.streams for step in steps]
    rows = max(workload.batch_size for workload in found)
    target.share(config, requests, rows=rows, output_bytes=output_bytes)


def _simulated(
    gpus: SimulatedGPUs | None, plan: SweepPlan, configurations: Sequence[Configuration]
) -> list[str]:
    """Return a note for each group of models on simulated GPUs: their times are simulated."""
    if gpus is None:
        return []
    groups: dict[str, list[str]] = {}
    for options in configurations:
        names = ", ".join(_on_gpus(plan.target(options)))
        label = describe("", {k: v for k, v in options.items() if k == "placement"}, 1)
        if names and label not in groups.setdefault(names, []):
            groups[names].append(label)
    return [
        f"{'; '.join(label for label in labels if label)}{': ' if any(labels) else ''}{names} on simulated "
        f"GPUs ({gpus}): the times are simulated"
        for names, labels in groups.items()
    ]


def _on_gpus(models: Mapping[str, ModelConfig]) -> list[str]:
    """Return the models that have instances on GPUs, in quotes."""
    return [
        f"'{name}'"
        for name, config in models.items()
        if any(enum_name(group, "kind") == "KIND_GPU" for group in config.instance_group)
    ]


def _simulated_gpus(target: Target) -> SimulatedGPUs | None:
    """Return the simulated GPUs of a server in this process; None for any other target."""
    devices = getattr(target, "devices", None)
    return devices.simulated if isinstance(devices, DeviceSet) else None


def _stand_ins(models: Mapping[str, ModelConfig]) -> list[str]:
    """Return a note about each stand-in: its times are no measurements of the model."""
    return [
        f"'{name}' is a stand-in ({stand_in_reason(config)}): its times are declared, not measured"
        for name, config in models.items()
        if stand_in_reason(config)
    ]


def _most_live(levels: LevelPlan, sequences: SequencePlan) -> int:
    """Return the number of live sequences at the highest level; of an open range at the lowest."""
    if not isinstance(levels.base, Concurrency):
        return sequences.num_of_sequences
    values = level_values(levels.levels)
    return int(max(values) if values is not None else next(iter(levels.levels)))


def _measure(
    session: Session,
    options: PerfOptions,
    levels: LevelPlan,
    configurations: Sequence[Configuration],
    plan: _Plan,
    windows: WindowPlan,
) -> Ending:
    """Measure every configuration and workload."""
    configurator = None
    if options.server is not None:
        configurator = Configurator(
            options.server, options.model, configurations, options.sweep_models
        )
    with Ending(session.points, configurator.restore if configurator else bool) as ending:
        for configuration in configurations:
            if configurator is not None:
                session.report_loading(configuration)
                configurator.apply(configuration)
            for workload in plan.workloads:
                session.search(options, levels, windows, workload, configuration)
    return ending


def server_options(server: Server | None) -> dict[str, Any]:
    """Return the options of a server in this process that a prediction follows; of one elsewhere none."""
    if server is None:
        return {}
    found = server.options
    return {
        "cache_bytes": found.cache_bytes,
        "rate_limit": found.rate_limit,
        "rate_limit_resources": list(found.rate_limit_resources),
    }


def place_of(target: Target) -> Mapping[str, Any]:
    """Return the place of a target, for the settings of a report."""
    if isinstance(target, RemoteServer):
        return {"url": target.url, "protocol": target.protocol}
    return {}


def environment_of(target: Target, others: Others | None = None) -> Mapping[str, Any]:
    """Return the machine, what others used of it, and the packages; GPUs only if torch is already imported."""
    environment: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "nbtriton": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": usable_cores(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        environment["torch"] = str(torch.__version__)
        if torch.cuda.is_available():
            environment["gpus"] = [
                torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
            ]
    if isinstance(target, RemoteServer):
        # One that no longer answers has been measured nevertheless; Ctrl-C ends the wait for it.
        with contextlib.suppress(TritonError, KeyboardInterrupt):
            environment["server"] = target.describe()
    if (simulated := _simulated_gpus(target)) is not None:
        environment["gpus"] = str(simulated)
    if others is not None and (cores := others.cores) is not None:
        environment["other_programs_cores"] = round(cores, 2)
    return environment


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
        self._threads = ThreadPoolExecutor(_MOST_CHAINED, "nbtriton-chained")

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
    steps = [
        (step.model_name, int(step.model_version), dict(step.input_map), dict(step.output_map))
        for step in config.ensemble_scheduling.step
    ]
    made_by = {tensor: at for at, step in enumerate(steps) for tensor in step[3].values()}
    needs = {
        at: [made_by[tensor] for tensor in step[2].values() if tensor in made_by]
        for at, step in enumerate(steps)
    }
    return [steps[at] for at in TopologicalSorter(needs).static_order()]
