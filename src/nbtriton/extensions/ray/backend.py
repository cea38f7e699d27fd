"""A backend whose instances are workers on the nodes of a Ray cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nbtriton.backends.base import InstanceContext, ModelContext
from nbtriton.common.errors import ConfigError
from nbtriton.extensions.ray.cluster import NodeGoneError, cluster_of
from nbtriton.model.config import INSTANCE_RESOURCES, ModelConfig, numbers_parameter
from nbtriton.model.config.parameters import text_parameter
from nbtriton.runtime.workers.backend import WorkerBackend
from nbtriton.runtime.workers.core.connection import Connection
from nbtriton.runtime.workers.resources import Limits, ThreadBudget

RUNTIME_ENV = "INSTANCE_RUNTIME_ENV"


class RayBackend(WorkerBackend):
    """Runs another backend's instances in workers that are actors of a Ray cluster."""

    isolation = "ray"

    def _connect(self, name: str, context: ModelContext) -> Connection:
        process = None
        while process is None:
            with suppress(NodeGoneError):  # it is joined again, through another node
                process = cluster_of(self._options.ray).start(name, actor_options(context.config))
        return Connection(name, process, context.server, context.name, self._options.timeout_s)

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
