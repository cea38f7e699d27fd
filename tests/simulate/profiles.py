"""Profiles that no measurement made: execution times are given."""

from __future__ import annotations

from collections.abc import Sequence

from nbtriton.lab.simulate.model_profile import EngineCosts, ModelProfile, Profile, ServicePoint

__all__ = ["chain", "config", "model_profile", "profile"]

TENSORS = """
    input { name: "IN" data_type: TYPE_FP32 dims: 1 }
    output { name: "OUT" data_type: TYPE_FP32 dims: 1 }"""


def config(
    name: str = "m",
    *,
    rows: int = 8,
    instances: int = 1,
    more: str = "dynamic_batching {}",
    group: str = "",
) -> str:
    """Return a model's configuration as text."""
    return f"""name: "{name}" backend: "python" max_batch_size: {rows} {more} {TENSORS}
        instance_group {{ count: {instances} kind: KIND_CPU {group} }}"""


def model_profile(
    text: str, times_ms: dict[tuple[int, int], float | Sequence[float]], **more
) -> ModelProfile:
    """Return a model's profile from execution times by rows and executions at once."""
    points = [
        ServicePoint(
            rows,
            at_once,
            tuple(ms * 1000 for ms in ([found] if isinstance(found, int | float) else found)),
            100,
        )
        for (rows, at_once), found in times_ms.items()
    ]
    return ModelProfile(text, "thread", tuple(points), **more)


def profile(
    times_ms: dict[tuple[int, int], float | Sequence[float]] | None = None,
    *,
    costs: EngineCosts | None = None,
    server: dict[str, object] | None = None,
    cores: float = 0.0,
    gives_way: tuple[tuple[int, float], ...] = (),
    uneven: tuple[float, ...] = (1.0,),
    idle_us: tuple[tuple[float, tuple[float, ...]], ...] = (),
    interpreter_share: float = 0.0,
    lookup_us: float = 0.0,
    output_bytes: int = 4,
    drift: tuple[float, float] = (1.0, 1.0),
    **options,
) -> Profile:
    """Return a profile of the model ``m``: 1 ms for one row, 2 ms for eight, where nothing is given."""
    measured = model_profile(
        config(**options),
        times_ms or {(1, 1): 1.0, (8, 1): 2.0, (8, 2): 2.0},
        cores=cores,
        gives_way=gives_way,
        uneven=uneven,
        idle_us=idle_us,
        interpreter_share=interpreter_share,
        lookup_us=lookup_us,
        output_bytes=output_bytes,
        drift=drift,
    )
    return Profile("m", {"m": measured}, costs=costs or EngineCosts(), server=server or {})


def chain(ms: dict[str, float], *, branches: bool = False, rows: int = 8) -> Profile:
    """Return a profile of the ensemble ``e``: steps in a chain, or all but the last side by side."""
    names = list(ms)
    steps = []
    for at, name in enumerate(names):
        source = "IN" if at == 0 or (branches and at < len(names) - 1) else f"t{at - 1}"
        target = "OUT" if at == len(names) - 1 else f"t{at}"
        inputs = [("IN", source)]
        if branches and at == len(names) - 1:
            inputs = [(f"IN{k}" if k else "IN", f"t{k}") for k in range(at)]
        maps = " ".join(f'input_map {{ key: "{a}" value: "{b}" }}' for a, b in inputs)
        steps.append(
            f'step {{ model_name: "{name}" model_version: -1 {maps} '
            f'output_map {{ key: "OUT" value: "{target}" }} }}'
        )
    text = f"""name: "e" platform: "ensemble" max_batch_size: {rows} {TENSORS}
        ensemble_scheduling {{ {" ".join(steps)} }}"""
    models = {
        name: model_profile(config(name, rows=rows), {(1, 1): value, (1, 2): value})
        for name, value in ms.items()
    }
    return Profile("e", models, {"e": text})
