"""A backend whose instances are workers on the nodes of a Ray cluster."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from nbtriton.backends.base import InstanceContext, ModelContext
from nbtriton.common.errors import ConfigError
from nbtriton.extensions.ray.cluster import NodeGoneError, cluster_of
from nbtriton.model.config import INSTANCE_RESOURCES, ModelConfig, numbers_parameter
from nbtriton.model.config.parameters import sharing_of, text_parameter
from nbtriton.runtime.workers.backend import WorkerBackend, WorkerInstance
from nbtriton.runtime.workers.core.connection import Connection, Lane
from nbtriton.runtime.workers.process import Peer
from nbtriton.runtime.workers.resources import Limits, ThreadBudget

RUNTIME_ENV = "INSTANCE_RUNTIME_ENV"


class _Actor:
    """What the instances share that take turns in one actor: that, and the one in its place once it is lost.

    Parameters
    ----------
    place : tuple
        What they were asked to run on.
    """

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._error: BaseException | None = None

    def lane(self, name: str, start: Callable[[], Lane]) -> Lane:
        """Return a lane for an instance: the first one starts the actor, and fails for those that wait for it."""
        before = self._error
        with self._lock:
            if self._error is not None and self._error is not before:
                raise self._error
            connection = self._connection
            lane = connection.join(name) if connection is not None and connection.alive else None
            if lane is None:
                try:
                    lane = start()
                except BaseException as error:
                    self._error = error
                    raise
                self._connection = lane.connection
            return lane


class RayBackend(WorkerBackend):
    """Runs another backend's instances in workers that are actors of a Ray cluster."""

    isolation = "ray"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = threading.Lock()
        self._actors: WeakKeyDictionary[WorkerInstance, _Actor] = WeakKeyDictionary()

    def _join(self, context: InstanceContext, instance: WorkerInstance) -> Lane:
        place, sharing = (context.kind, context.device_id), sharing_of(context.model.config)
        with self._lock:
            actor = self._actors.get(instance)
            if actor is None:
                counts = Counter([self._actors.get(one) for one in self._instances])
                free = (
                    one for one in counts if one and one.place == place and counts[one] < sharing
                )
                actor = self._actors[instance] = next(free, None) or _Actor(place)
        return actor.lane(context.name, partial(super()._join, context, instance))

    def _start_process(self, name: str, context: ModelContext) -> Peer:
        options, lanes = actor_options(context.config), sharing_of(context.config)
        while True:
            with suppress(NodeGoneError):  # it is joined again, through another node
                return cluster_of(self._options.ray).start(name, options, lanes)

    def _limits(self, context: InstanceContext) -> Limits:
        """Return as many threads as the actor has processors."""
        cores = max(1, math.floor(actor_options(context.model.config)["num_cpus"]))
        return ThreadBudget(cores).join(cores)


def actor_options(config: ModelConfig) -> dict[str, Any]:
    """Return what an instance's actor asks of its node: one processor, unless the configuration says more.

    Raises
    ------
    ConfigError
        The parameter ``INSTANCE_RESOURCES`` or ``INSTANCE_RUNTIME_ENV`` cannot be read.

    Examples
    --------
    >>> text = 'parameters { key: "INSTANCE_RESOURCES" value { string_value: "GPU=1,far=0.5" } }'
    >>> from nbtriton.model.config import parse_pbtxt
    >>> actor_options(parse_pbtxt(text))
    {'num_cpus': 1.0, 'num_gpus': 1.0, 'resources': {'far': 0.5}}
    """
    hint = "resources of a Ray node and how much of each, such as CPU=2,GPU=1"
    asked = {"CPU": 1.0, "GPU": 0.0} | numbers_parameter(config, INSTANCE_RESOURCES, hint)
    options: dict[str, Any] = {
        "num_cpus": asked.pop("CPU"),
        "num_gpus": asked.pop("GPU"),
        "resources": asked,
    }
    text = text_parameter(config, RUNTIME_ENV)
    if text:
        options["runtime_env"] = _read_environment(config, text)
    return options


def _read_environment(config: ModelConfig, text: str) -> Mapping[str, Any]:
    try:
        environment = json.loads(text)
        if not isinstance(environment, dict):
            raise TypeError
    except (TypeError, ValueError):
        raise ConfigError(
            f"Incorrect value for {RUNTIME_ENV} of model '{config.name}': '{text}'",
            field=f"parameters.{RUNTIME_ENV}",
            hint='a runtime environment of Ray in JSON, such as {"pip": ["tokenizers"]}',
        ) from None
    return environment
