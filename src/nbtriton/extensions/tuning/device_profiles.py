"""Measurement of each step of a pipeline on each device, of the copies between devices, and of the memory of instances."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from nbtriton.backends.devices.base import Device
from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.extensions.tuning.placing import HOST, Copies, Edge, Measured, edges_of
from nbtriton.extensions.tuning.search import InstanceMemory
from nbtriton.lab.perf.conditions import memory_mb
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.driver import LoadSpec
from nbtriton.lab.perf.loads import Concurrency
from nbtriton.lab.perf.prepare import Data, workloads
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.lab.perf.sample import measure_sample
from nbtriton.lab.perf.sweep import Configurator, model_tree
from nbtriton.lab.perf.traffic import Repeated
from nbtriton.lab.simulate.measurements import (
    executions_of,
    merged,
    points_of,
    without_executions,
)
from nbtriton.lab.simulate.model_profile import ModelProfile, ServicePoint
from nbtriton.lab.simulate.profile_plan import step_requests
from nbtriton.lab.simulate.profiling import profile
from nbtriton.model.config import ModelConfig
from nbtriton.model.tensors import to_numpy
from nbtriton.serving.server import Server

_PROC = Path("/proc")
# Measurements of each copy; the median counts.
_TIMES = 7
_READER = "tune"
# Most seconds for one device.
_LONGEST_S = 4.0
# Executions of a model on a GPU for each number of rows, unless they take too long together.
_LEAST = 20
_LONGEST_POINT_S = 1.0
# Instances beside the first: their mean memory counts.
INSTANCES = 3
# Smaller differences are within the allocator's own variation.
_LEAST_MB = 0.1

Times = dict[tuple[str, str], float]


def measure_devices(
    server: Server,
    model: str,
    data: Data,
    *,
    batch_size: int = 1,
    seconds: float = 15.0,
    seed: int = 0,
    observer: Observer | None = None,
) -> tuple[Measured, list[str]]:
    """Measure a pipeline on the host and on each GPU of a server; return the measurements and notes.

    The models have their own configurations again at the end.

    Parameters
    ----------
    server : Server
    model : str
    data : Data
        What to send.
    batch_size : int
        Rows per request; the largest batch is measured as well.
    seconds : float
        Approximate time for all devices together; for each at most that of a profile.
    seed : int
    observer : callable, optional
        Called with a `PerfProgress` before each point.

    Raises
    ------
    InvalidArgumentError
        The server has no GPU.
    KeyboardInterrupt
        Before everything was measured.
    """
    began_s = time.monotonic()
    gpus = tuple(server.devices)
    if not gpus:
        raise InvalidArgumentError(
            "there is one device, the host: nothing can be placed",
            hint='nt.Server(gpus="simulated:1") has a simulated GPU',
        )
    ensembles, others = model_tree(server, model)
    root = (ensembles | others)[model]
    sizes = sorted({1, batch_size, max(1, root.max_batch_size)})
    roots = {size: _request(root, size, data) for size in sizes}
    profiles = {}
    on_host: set[tuple[str, str, str]] = set()
    notes: list[str] = []
    devices = [HOST, *(f"gpu:{gpu}" for gpu in gpus)]
    share_s = min(_LONGEST_S, seconds / len(devices))
    configurator = Configurator(server, model, [])
    try:
        _place(configurator, others, HOST, notes)
        counts = ((group.count for group in config.instance_group) for config in others.values())
        most = max(map(sum, counts))
        host = profiles[HOST] = profile(
            server, model, inputs=data.inputs, shapes=data.shapes, input_data=data.input_data,
            at_once=most, batch_sizes=sizes, duration_s=share_s, seed=seed, observer=observer,
        )  # fmt: skip
        if host.interrupted:
            raise KeyboardInterrupt
        if host.failure:
            raise TritonError(host.failure)
        edges = edges_of(ensembles, model) if ensembles else _edges_of_one(root)
        requests = (
            step_requests(server, ensembles, model, roots) if ensembles else {model: dict(roots)}
        )
        for index, device in enumerate(devices[1:], 2):
            placed = _place(configurator, others, device, notes)
            models = {}
            for name in placed:
                _report(observer, f"{name} on {device}", index, len(devices), began_s)
                points = _times_alone(server, name, requests[name], share_s / len(others))
                # The points are of single executions: the simulation adds the waits between concurrent ones.
                own = host.models[name]
                levels = [replace(one, at_once=level) for level in own.levels for one in points]
                models[name] = ModelProfile(
                    own.config, own.place, tuple(levels), output_bytes=own.output_bytes
                )
            profiles[device] = replace(host, models=models)
            on_host |= _on_host(server, device, {name: others[name] for name in placed})
        configurator.apply_each({name: {"placement": HOST} for name in others})
        copies = {
            edge: Copies(times)
            for edge in edges
            if (times := _copy_times(server, edge, requests, gpus))
        }
    finally:
        configurator.restore()
    return Measured(profiles, edges, copies, frozenset(on_host)), notes


def _times_alone(
    server: Server, model: str, requests: Mapping[int, Request], seconds: float
) -> list[ServicePoint]:
    """Return the execution times of a model by rows, measured with one request at a time."""
    points: list[ServicePoint] = []
    for rows, request in requests.items():
        load = LoadSpec(server, model, Concurrency(1), Repeated([request]))
        sample = measure_sample(
            load, (model,), seconds=seconds / len(requests), least=_LEAST, longest_s=_LONGEST_POINT_S,
            warm_up=2,
        )  # fmt: skip
        if sample.errors and not len(sample.latencies_ns):
            raise TritonError(f"every request to '{model}' failed: {sample.first_error}")
        points += points_of(executions_of(server, model, sample), rows, 1)
    if not points:
        raise without_executions(model)
    # Without stalls, as on the host: one would be half a device's time for twenty executions.
    return list(merged(points, disturbed=False))


def _report(observer: Observer | None, what: str, level: int, levels: int, began_s: float) -> None:
    if observer is not None:
        elapsed_s = time.monotonic() - began_s
        left_s = elapsed_s / (level - 1) * (levels - level + 1)
        observer(PerfProgress.step(level - 1, levels, what, elapsed_s, left_s))


def _on_host(server: Server, device: str, models: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Return the tensors that were never copied between callers on the host and models on a simulated GPU."""
    if device == HOST or server.devices.simulated is None:
        return set()
    place = f"GPU {device.partition(':')[2]}"
    copied = {
        name
        for one in server.devices.ledger.copies()
        for name, memory in ((one.reader, one.target), (one.writer, one.source))
        if memory == place
    }
    return {
        (device, name, tensor.name)
        for name, config in models.items()
        for tensor in (*config.input, *config.output)
        if f"{name}.{tensor.name}" not in copied
    }


def _request(root: ModelConfig, size: int, data: Data) -> Request:
    requests, _ = workloads(root, [size], data, None, root.max_batch_size)
    return requests[0].requests[0]


def _place(
    configurator: Configurator, others: Mapping[str, ModelConfig], device: str, notes: list[str]
) -> list[str]:
    """Place on a device all models that can run there, the others on the host; return the former."""
    options: dict[str, dict[str, Any]] = {name: {"placement": HOST} for name in others}
    placed = []
    for name in others:
        try:
            configurator.apply_each(options | {name: {"placement": device}})
        except TritonError as error:
            if device == HOST:
                raise
            notes.append(f"'{name}' cannot run on {device}: {error.message}")
            continue
        options[name] = {"placement": device}
        placed.append(name)
    configurator.apply_each(options)
    return placed


def _edges_of_one(config: ModelConfig) -> tuple[Edge, ...]:
    name = config.name
    return (
        *(Edge("", "", name, each.name) for each in config.input),
        *(Edge(name, each.name, "", "") for each in config.output),
    )


def _copy_times(
    server: Server, edge: Edge, requests: Mapping[str, Mapping[int, Request]], gpus: Sequence[int]
) -> dict[int, Times]:
    """Return the times of an edge's copies by rows; empty for strings, which stay on the host."""
    times: dict[int, Times] = {}
    for rows, given in requests[edge.reader or edge.writer].items():
        value: Any = given.get(edge.input)
        if not edge.reader:
            value = server.infer(edge.writer, given)[edge.output]
        if value is None:  # an optional input
            continue
        array = np.ascontiguousarray(to_numpy(value))
        if array.dtype.kind not in "OSU":
            times[rows] = _times(server, array, gpus)
    return times


def _times(server: Server, array: np.ndarray[Any, Any], gpus: Sequence[int]) -> Times:
    if server.devices.simulated is None:
        return _cuda_times(array, gpus)
    times: Times = {}

    def put(device: Device) -> None:
        device.wait_for(device.put(array, _READER))

    def move(on_device: Any, device: Device) -> None:
        device.wait_for(device.to_device(on_device, _READER))

    devices = {gpu: server.devices[gpu] for gpu in gpus}
    for gpu, device in devices.items():
        on_device = device.put(array, _READER)
        times[HOST, f"gpu:{gpu}"] = _us(partial(put, device))
        times[f"gpu:{gpu}", HOST] = _us(partial(device.fetch, on_device, _READER))
        for peer, other in devices.items():
            if peer != gpu:
                times[f"gpu:{gpu}", f"gpu:{peer}"] = _us(partial(move, on_device, other))
    return times


def _cuda_times(array: np.ndarray[Any, Any], gpus: Sequence[int]) -> Times:
    """Return the times of copies between the host and torch's GPUs. Never run on hardware."""
    import torch

    times: Times = {}
    host = torch.from_numpy(array)

    def copied(source: torch.Tensor, target: str) -> Callable[[], None]:
        def copy() -> None:
            source.to(target)
            torch.cuda.synchronize()

        return copy

    for gpu in gpus:
        name = f"cuda:{gpu}"
        on_gpu = host.to(name)
        times[HOST, f"gpu:{gpu}"] = _us(copied(host, name))
        times[f"gpu:{gpu}", HOST] = _us(copied(on_gpu, "cpu"))
        for peer in gpus:
            if peer != gpu:
                times[f"gpu:{gpu}", f"gpu:{peer}"] = _us(copied(on_gpu, f"cuda:{peer}"))
    return times


def _us(call: Callable[[], object]) -> float:
    """Return the median time of several calls, in microseconds."""
    times_ns = []
    for _ in range(_TIMES):
        began = time.perf_counter_ns()
        call()
        times_ns.append(time.perf_counter_ns() - began)
    return median(times_ns) / 1000


def measure_memory(
    server: Server,
    model: str,
    others: Mapping[str, ModelConfig],
    load: Callable[[], object],
    report: Callable[[str], None],
) -> dict[str, InstanceMemory]:
    """Measure the memory of the instances of a model, or of each composing model of an ensemble.

    First each model has one instance, which has answered requests; then one model at a time has three. The
    models have their own configurations again at the end.

    Parameters
    ----------
    server : Server
    model : str
    others : mapping of str to ModelConfig
        The models that have instances.
    load : callable
        Sends requests to `model` that keep the instances busy.
    report : callable
        Called with a description of the next step.
    """
    memory: dict[str, InstanceMemory] = {}
    one: dict[str, Any] = {name: {"instances": 1} for name in others}
    configurator = Configurator(server, model, [{"instances": 1}, {"instances": INSTANCES}])
    try:
        for name in others:
            report(f"{name}: memory of an instance")
            configurator.apply_each(one)
            load()
            before_mb = _used_mb(server)
            configurator.apply_each(one | {name: {"instances": INSTANCES}})
            load()
            each_mb = (_used_mb(server) - before_mb) / (INSTANCES - 1)
            weights = (
                device.memory().by_owner.get(name, 0) for device in server.devices.managed.values()
            )
            memory[name] = InstanceMemory(
                each_mb if each_mb >= _LEAST_MB else 0.0, sum(weights) / 1e6
            )
    finally:
        configurator.restore()
    return memory


def _used_mb(server: Server) -> float:
    """Return the megabytes of this process, its workers and the devices, without free heap memory."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # GNU C library only
        if trim is not None:
            trim(0)
    on_devices = sum(device.memory().used_bytes for device in server.devices.managed.values())
    return _process_tree_mb() + on_devices / 1e6


def _process_tree_mb() -> float:
    """Return the memory of this process and all its descendants in megabytes; nan if unreadable.

    It is the resident memory of this process, and the proportional set size of its descendants, which counts
    a shared, unwritten page once.
    """
    children: list[int] = []
    _add_children(os.getpid(), children)
    return memory_mb() + sum(map(_proportional_mb, children))


def _add_children(pid: int, children: list[int]) -> None:
    """Add the descendants of a process; a process that ends meanwhile has none."""
    try:
        lists = [
            task.joinpath("children").read_text() for task in (_PROC / f"{pid}/task").iterdir()
        ]
    except OSError:
        return
    for child in map(int, " ".join(lists).split()):
        children.append(child)
        _add_children(child, children)


def _proportional_mb(pid: int) -> float:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:  # the process has ended
        return 0.0
    sizes = (line.split() for line in text.splitlines())
    return sum(int(words[1]) for words in sizes if words[0] == "Pss:") * 1024 / 1e6
