"""A simulated server: the models of a profile under the engine's schedulers, in virtual time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.lab.simulate.core.device import OnDevice, Transfer
from nbtriton.lab.simulate.core.ensemble import Ensemble
from nbtriton.lab.simulate.core.model import Limiter, Model
from nbtriton.lab.simulate.core.service import ServiceTimes
from nbtriton.lab.simulate.core.world import Costs, Runtime, World
from nbtriton.lab.simulate.model_profile import ModelProfile, Profile
from nbtriton.model.config import ModelConfig, is_ensemble, output_specs, plan_instances
from nbtriton.runtime.engine.core.scheduler_settings import (
    batcher_settings,
    ensemble_plan,
    parse_resources,
    preserves_order,
    sequence_settings,
)
from nbtriton.scheduling import (
    Batcher,
    CacheSpace,
    EnsemblePlan,
    RateLimiter,
    ResourceNeed,
    ResourceShortage,
    SequenceBatcher,
    header_bytes,
)
from nbtriton.scheduling.bookings import Bookings


@dataclass(frozen=True, slots=True)
class Copied:
    """A tensor that is copied for each batch.

    Parameters
    ----------
    engine : str
        The copy engine, which copies one tensor at a time: ``"to gpu:0"``, ``"from gpu:0"``.
    times_us : mapping of int to float
        By rows; not empty.
    from_host, to_host : bool
        Its source, or its target, is the host's memory.
    """

    engine: str
    times_us: Mapping[int, float]
    from_host: bool
    to_host: bool


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of devices by one model.

    Parameters
    ----------
    device : str
        The device that computes, such as ``"gpu:0"``, one batch at a time; empty for the host.
    before, after : tuple of Copied
        Copied inputs, and copied outputs for a caller.
    on_host : bool
        The model is placed on the host: the sender of a device's tensors waits until they are written.
    """

    device: str
    before: tuple[Copied, ...] = ()
    after: tuple[Copied, ...] = ()
    on_host: bool = True


# Begins a note that says why a prediction does not follow from the profile.
DOUBTFUL = "not to be trusted"

# Executions that slow each other down by less than this factor count as independent.
_CONTENDS_FROM = 1.03


class SimulatedServer:
    """Models that take time and compute nothing.

    Parameters
    ----------
    profile : Profile
    configs : mapping of str to ModelConfig
        Of all models: those of the profile, or changed ones.
    seed : int
        Seed of the service times.
    devices : mapping of str to DeviceUse, optional
        The use of devices by models; execution times are then without copies.

    Raises
    ------
    UnsupportedError
        A model that cannot be simulated.
    """

    def __init__(
        self,
        profile: Profile,
        configs: Mapping[str, ModelConfig],
        *,
        seed: int = 0,
        devices: Mapping[str, DeviceUse] | None = None,
    ) -> None:
        self.world = World(
            _costs(profile), seed, shared_interpreter=profile.shared_interpreter,
            cores=profile.environment.get("cpus") or 0,
        )  # fmt: skip
        self.runtimes: dict[str, Runtime] = {}
        self._devices = devices or {}
        self._units: defaultdict[str, Bookings] = defaultdict(Bookings)
        self.world.leaving = [
            self._transfer(each) for use in self._devices.values() for each in use.after
        ]
        self._profile = profile
        self._configs = configs
        options = profile.server
        size_bytes = options.get("cache_bytes")
        self._cache = CacheSpace(size_bytes) if size_bytes else None
        self._limiter: Limiter | None = None
        if options.get("rate_limit") == "execution_count":
            limits = parse_resources(options.get("rate_limit_resources", ()))
            self._limiter = Limiter(RateLimiter(limits))

    def runtime(self, name: str) -> Runtime:
        """Return a model or an ensemble, made with the first request for it."""
        found = self.runtimes.get(name)
        if found is None:
            config = self._configs[name]
            found = self._ensemble(config) if is_ensemble(config) else self._model(config)
            self.runtimes[name] = found
        return found

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of all models in the form of Triton's endpoint."""
        return {
            "model_stats": [
                _statistics(runtime, self._profile.models.get(name))
                for name, runtime in self.runtimes.items()
            ]
        }

    def beyond(self) -> list[str]:
        """Return sentences that say where the simulation went beyond the profile's measurements."""
        sentences: list[str] = []
        for name, model in self.runtimes.items():
            if isinstance(model, Model):
                sentences += _beyond(name, model, self._profile.models[name])
        return sentences

    def _model(self, config: ModelConfig) -> Model:
        if config.model_transaction_policy.decoupled:
            raise UnsupportedError(
                f"model '{config.name}' is decoupled: its responses are not profiled, and it cannot "
                "be simulated"
            )
        measured = self._profile.models[config.name]
        plans = [plan for plan in plan_instances(config, gpus=None) if not plan.passive]
        gated = self._limiter is not None
        batcher: Batcher | SequenceBatcher
        if config.HasField("sequence_batching"):
            batcher = SequenceBatcher(sequence_settings(config), len(plans), gated=gated)
        else:
            rank = _Rank(self) if gated else None
            batcher = Batcher(batcher_settings(config), len(plans), gated=gated, rank=rank)
            if rank is not None:
                rank.name = config.name
        service = service_times(measured, stalls=not self._profile.disturbed_by)
        highest = float(max(measured.levels))
        slowest = max(
            service.mean(rows, highest) / service.mean(rows, 1.0) for rows in measured.rows
        )
        model = Model(
            self.world,
            config.name,
            batcher,
            len(plans),
            service,
            demand=measured.cores,
            python=measured.interpreter_share if measured.place == "thread" else 0.0,
            contends=slowest > _CONTENDS_FROM,
            gives_way=[(float(level), share) for level, share in measured.gives_way],
            uneven=list(measured.uneven),
            threaded=measured.place == "thread",
            ordered=preserves_order(config),
            device=self._on_device(config.name),
        )
        if self._cache is not None and config.response_cache.enable:
            model.cache = self._cache
            model.lookup_cost_ns = round(measured.lookup_us * 1000)
            model.insert_ns = round(measured.insert_us * 1000)
            model.header_bytes = header_bytes(
                [
                    (spec.name, spec.datatype, len(spec.dims) + bool(config.max_batch_size))
                    for spec in output_specs(config).values()
                ]
            )
            model.row_bytes = measured.output_bytes
        if self._limiter is not None:
            model.limiter = self._limiter
            self._limit(self._limiter, config, model)
        return model

    def _on_device(self, name: str) -> OnDevice | None:
        use = self._devices.get(name)
        if use is None:
            return None
        return OnDevice(
            self._units[use.device] if use.device else None,
            [self._transfer(each) for each in use.before],
            on_host=use.on_host,
        )

    def _transfer(self, copied: Copied) -> Transfer:
        sizes = sorted(copied.times_us)
        times_ns = [copied.times_us[size] * 1000 for size in sizes]
        return Transfer(
            self._units[copied.engine],
            sizes,
            times_ns,
            from_host=copied.from_host,
            to_host=copied.to_host,
        )

    def _limit(self, limiter: Limiter, config: ModelConfig, model: Model) -> None:
        plans = [plan for plan in plan_instances(config, gpus=None) if not plan.passive]
        for plan, instance in zip(plans, model.instances, strict=True):
            rule = config.instance_group[plan.group].rate_limiter
            needs = [ResourceNeed(r.name, r.count, getattr(r, "global")) for r in rule.resources]
            try:
                limiter.limiter.add(instance, needs, plan.device_id, rule.priority)
            except ResourceShortage as shortage:
                raise InvalidArgumentError(str(shortage)) from None

    def _ensemble(self, config: ModelConfig) -> Ensemble:
        plan = ensemble_plan(config)
        steps = [self.runtime(step.model_name) for step in plan.steps]
        return Ensemble(
            self.world,
            config.name,
            plan,
            steps,
            getattr(config.ensemble_scheduling, "max_inflight_requests", 0),
            _writers(plan) if self._devices else None,
            [_on_host(step) for step in steps] if self._devices else None,
        )


class _Rank:
    """The rate limiter's rank of a model's instance (R6)."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self.name = ""

    def __call__(self, instance: int) -> int:
        model = self._server.runtimes[self.name]
        assert isinstance(model, Model)
        assert model.limiter is not None
        return model.limiter.limiter.rank(model.instances[instance])


def _writers(plan: EnsemblePlan) -> list[list[int]]:
    """Return, by step, the steps whose outputs it reads."""
    writer_of = {
        tensor: index
        for index, step in enumerate(plan.steps)
        for tensor in step.output_map.values()
    }
    return [
        sorted({writer_of[tensor] for tensor in step.input_map.values() if tensor in writer_of})
        for step in plan.steps
    ]


def _on_host(step: Runtime) -> bool:
    """Return whether a step's inputs have to be written before it starts."""
    if isinstance(step, Ensemble):
        first = step.plan.route(step.outputs).first
        return any(step.on_host[index] for index in first)
    assert isinstance(step, Model)
    return step.device is not None and step.device.on_host


def service_times(measured: ModelProfile, *, stalls: bool = False) -> ServiceTimes:
    """Return the service times of a model, complete in batch sizes and concurrent executions, with stalls or without.

    A size without a measurement at some concurrency is slowed down like its nearest measured neighbours. A
    size that was never measured alone, such as in a step of an ensemble, is interpolated.
    """
    points = {(point.at_once, point.rows): point.times_us for point in measured.points}
    length = max(len(times) for times in points.values())
    rows, levels = [size for size in measured.rows if (1, size) in points], list(measured.levels)
    alone = [_resampled(points[1, size], length) for size in rows]
    quantiles = [alone]
    for level in levels[1:]:
        measured_sizes = [index for index, size in enumerate(rows) if (level, size) in points]
        if not measured_sizes:  # sizes that were not measured alone: as at the level below
            quantiles.append(quantiles[-1])
            continue
        found: list[list[float]] = []
        for index, size in enumerate(rows):
            if (level, size) in points:
                found.append(_resampled(points[level, size], length))
                continue
            near = min(measured_sizes, key=lambda other: abs(rows[other] - size))
            slower = _resampled(points[level, rows[near]], length)
            found.append(
                [a * s / n for a, s, n in zip(alone[index], slower, alone[near], strict=True)]
            )
        quantiles.append(found)
    idle_ns = [(idle_us * 1000, [us * 1000 for us in adds]) for idle_us, adds in measured.idle_us]
    between_us, adds_us = measured.stalls_us if stalls else (math.inf, ())
    return ServiceTimes(
        rows, levels, quantiles, measured.gather_us * 1000, idle_ns,
        between_us * 1000, [us * 1000 for us in adds_us],
    )  # fmt: skip


def _resampled(times_us: tuple[float, ...], length: int) -> list[float]:
    """Return a number of equally likely times in nanoseconds."""
    count = len(times_us)
    return [times_us[int((k + 0.5) / length * count)] * 1000 for k in range(length)]


def _costs(profile: Profile) -> Costs:
    costs = profile.costs
    found = Costs(
        *(
            round(getattr(costs, f"{name}_us") * 1000)
            for name in (
                "submit", "inline", "start", "wake", "settle", "answer", "loop", "step", "timer",
                "wait",
            )
        ),
    )  # fmt: skip
    found.ways_ns = [round(us * 1000) for us in costs.way_us]
    found.late_ns = [round(us * 1000) for us in costs.late_us]
    return found


def _statistics(runtime: Runtime, measured: ModelProfile | None) -> dict[str, Any]:
    computed = runtime.successes - runtime.hits
    shares = {"compute_input": 0.0, "compute_output": 0.0}
    if measured is not None:
        shares = {"compute_input": measured.input_share, "compute_output": measured.output_share}
    shares["compute_infer"] = 1.0 - sum(shares.values())
    return {
        "name": runtime.name,
        "version": "1",
        "inference_count": runtime.inferences,
        "execution_count": runtime.executions,
        "inference_stats": {
            "success": {"count": runtime.successes, "ns": runtime.total_ns},
            "fail": {"count": runtime.failures, "ns": 0},
            "queue": {"count": runtime.successes, "ns": runtime.queue_ns},
            "cache_hit": {"count": runtime.hits, "ns": runtime.lookup_ns},
            "cache_miss": {"count": runtime.misses, "ns": 0},
            **{
                stage: {"count": computed, "ns": round(runtime.compute_ns * share)}
                for stage, share in shares.items()
            },
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": {"count": count, "ns": ns}}
            for size, (count, ns) in sorted(runtime.sizes.items())
        ],
    }


def _beyond(name: str, model: Model, measured: ModelProfile) -> list[str]:
    sentences: list[str] = []
    rows, levels = measured.rows, measured.levels
    if model.largest > rows[-1]:
        sentences.append(
            f"{DOUBTFUL}: batches of up to {model.largest} rows were formed for '{name}', and "
            f"the profile measured {rows[0]} to {rows[-1]}"
        )
    # A machine elsewhere is not known beyond what was seen of it.
    unknown = model.contends or levels[-1] == 1 or measured.place == "remote"
    if model.highest_level > levels[-1] + 0.5 and unknown:
        sentences.append(
            f"{DOUBTFUL}: up to {model.highest_level:.0f} executions of '{name}' shared the "
            f"machine, and the profile measured {levels[0]} to {levels[-1]} at once"
        )
    return sentences
