"""Cases of `bench.predict`: models of five kinds, with random configurations and loads."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import nbtriton as nt

__all__ = [
    "LOADS", "Case", "Model", "draw", "loaded_branches", "loaded_sleeping", "models", "serve",
]  # fmt: skip

Rows = npt.NDArray[np.float32]

# Loads: share of the model's capacity, in an open or in a closed loop.
LOADS = ("low", "half", "saturating")
_SHARES = {"low": 0.1, "half": 0.5}


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose performance is predicted.

    Parameters
    ----------
    name : str
    rows : int
        Its max_batch_size.
    load : callable
        Loads the model and its dependencies into a server.
    options : mapping
        Options of `nt.perf` beside the load.
    """

    name: str
    rows: int
    load: Callable[[nt.Server], None]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration and a load, as options of `nt.perf`."""

    model: str
    level: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in self.options.items() if value != "poisson"]
        if self.options.get("request_distribution") == "poisson":
            words.append("poisson")
        return ", ".join(words)


def _config(name: str, rows: int, more: str = "") -> str:
    return f"""name: "{name}" max_batch_size: {rows} {more or "dynamic_batching {}"}
        input {{ name: "IN" data_type: TYPE_FP32 dims: 16 }}
        output {{ name: "OUT" data_type: TYPE_FP32 dims: 16 }}
        instance_group {{ count: 1 kind: KIND_CPU }}"""


def _sleeping(name: str, rows: int, ms: int, more: str = "") -> str:
    text = _config(name, rows, more).replace('"IN"', '"INPUT0"').replace('"OUT"', '"OUTPUT0"')
    return f"""{text} backend: "identity"
        parameters {{ key: "execute_delay_ms" value {{ string_value: "{ms}" }} }}"""


def loaded_sleeping(server: nt.Server) -> None:
    """Load a model that sleeps for 5 ms a batch."""
    server.load(_sleeping("sleeping", 8, 5))


def _load_priorities(server: nt.Server) -> None:
    more = """dynamic_batching { priority_levels: 3 default_priority_level: 2
        default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 20000 } }"""
    server.load(_sleeping("priorities", 4, 4, more))


def _load_torch(server: nt.Server) -> None:
    import torch

    torch.set_num_threads(1)
    module = torch.nn.Sequential(
        torch.nn.Linear(16, 1024), torch.nn.ReLU(),
        *(layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())),
        torch.nn.Linear(1024, 16),
    ).eval()  # fmt: skip
    config = _config("torch", 16).replace('"IN"', '"INPUT__0"').replace('"OUT"', '"OUTPUT__0"')
    server.load(config, model=module)


def loop(IN: Rows) -> dict[str, Rows]:  # noqa: N803 - a tensor's name
    """Compute in Python for some 0.5 ms a row."""
    total = 0
    for number in range(6000 * len(IN)):
        total += number * number % 7
    return {"OUT": IN + np.float32(total % 2)}


def _load_python(isolation: str) -> Callable[[nt.Server], None]:
    def load(server: nt.Server) -> None:
        more = "dynamic_batching {}"
        if isolation == "process":
            more += (
                """ parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }"""
            )
        server.load(_config("python", 4, more), model=loop)

    return load


def loaded_branches(server: nt.Server) -> None:
    """Load an ensemble with two branches, `left` and `right`, and a `join`."""
    server.load(_sleeping("left", 8, 3))
    server.load(_sleeping("right", 8, 5))

    def join(A: Rows, B: Rows) -> dict[str, Rows]:  # noqa: N803 - tensors' names
        return {"OUT": A + B}

    server.load(
        """name: "join" max_batch_size: 8 dynamic_batching {}
        input [ { name: "A" data_type: TYPE_FP32 dims: 16 }, { name: "B" data_type: TYPE_FP32 dims: 16 } ]
        output { name: "OUT" data_type: TYPE_FP32 dims: 16 }
        instance_group { count: 1 kind: KIND_CPU }""",
        model=join,
    )
    server.load(
        """name: "branches" platform: "ensemble" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: 16 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 16 }
        ensemble_scheduling {
          step { model_name: "left" model_version: -1
            input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "a" } }
          step { model_name: "right" model_version: -1
            input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "b" } }
          step { model_name: "join" model_version: -1
            input_map { key: "A" value: "a" } input_map { key: "B" value: "b" }
            output_map { key: "OUT" value: "OUT" } }
        }"""
    )


def models(isolation: str = "process") -> tuple[Model, ...]:
    """Return the models; the instances of the pure-Python model are in threads or in processes."""
    return (
        Model("sleeping", 8, loaded_sleeping, {}),
        Model("torch", 16, _load_torch, {}),
        Model("python", 4, _load_python(isolation), {}),
        Model("branches", 8, loaded_branches, {}),
        Model("priorities", 4, _load_priorities, {"priority": [1, 2, 3, 3]}),
    )


def serve(model: Model) -> nt.Server:
    """Return a server with a model."""
    server = nt.Server()
    model.load(server)
    return server


def draw(
    model: Model, count: int, seed: int, capacity: Callable[[Mapping[str, Any]], float]
) -> list[Case]:
    """Draw configurations and loads of a model; the loads are low, half and saturating in turn.

    Parameters
    ----------
    capacity : callable
        Maps a configuration to the model's capacity in requests per second.
    """
    choose = random.Random(f"{model.name} {seed}")
    cases = []
    for number in range(count):
        level = LOADS[number % len(LOADS)]
        configuration: dict[str, Any] = {
            "instances": choose.choice([1, 2]),
            "max_queue_delay_us": choose.choice([0, 0, 1000, 3000]),
        }
        options = {**model.options, **configuration}
        kind = choose.choice(["closed", "constant", "poisson"])
        full = configuration["instances"] * model.rows
        if level == "saturating":
            options["concurrency"] = 2 * full
        elif kind == "closed":
            options["concurrency"] = 1 if level == "low" else max(2, full // 2)
        else:
            rate = capacity(configuration) * _SHARES[level]
            options["request_rate"] = float(f"{rate:.2g}")
            options["request_distribution"] = kind
        cases.append(Case(model.name, level, options))
    return cases
