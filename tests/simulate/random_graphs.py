"""Random ensembles whose steps take given times on each device."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = ["Graph", "random_graph"]


@dataclass(frozen=True)
class Graph:
    """Steps ``s0``, ``s1`` …, each of which reads tensors: ``in``, or the outputs ``t0``, ``t1`` … of others.

    Times are in milliseconds, the size of a step's output in numbers of 4 bytes.
    """

    reads: dict[str, list[str]]
    times_ms: dict[str, dict[str, float]]
    sizes: dict[str, int]
    devices: tuple[str, ...]
    writers: dict[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> list[str]:
        """Tensors that no step reads."""
        read = {tensor for tensors in self.reads.values() for tensor in tensors}
        return [tensor for tensor in self.writers if tensor not in read]

    def model(self, name: str, *, kind: str = "KIND_CPU") -> str:
        """Return the configuration of a step."""
        inputs = " ".join(
            f'input {{ name: "X{at}" data_type: TYPE_FP32 dims: {self.sizes[tensor]} }}'
            for at, tensor in enumerate(self.reads[name])
        )
        made = f"t{name[1:]}"
        return f"""name: "{name}" backend: "python" max_batch_size: 1 {inputs}
            output {{ name: "Y" data_type: TYPE_FP32 dims: {self.sizes[made]} }}
            instance_group {{ count: 1 kind: {kind} }}"""

    def ensemble(self) -> str:
        """Return the configuration of the whole."""
        steps = " ".join(
            f'step {{ model_name: "{name}" model_version: -1 '
            + " ".join(f'input_map {{ key: "X{at}" value: "{t}" }}' for at, t in enumerate(tensors))
            + f' output_map {{ key: "Y" value: "t{name[1:]}" }} }}'
            for name, tensors in self.reads.items()
        )
        outputs = " ".join(
            f'output {{ name: "{t}" data_type: TYPE_FP32 dims: {self.sizes[t]} }}'
            for t in self.outputs
        )
        return f"""name: "all" platform: "ensemble" max_batch_size: 1
            input {{ name: "in" data_type: TYPE_FP32 dims: {self.sizes["in"]} }} {outputs}
            ensemble_scheduling {{ {steps} }}"""


def random_graph(
    seed: int, steps: int = 4, devices: tuple[str, ...] = ("cpu", "gpu:0"), largest: int = 100_000
) -> Graph:
    """Return a graph: each step reads one or two earlier tensors."""
    choose = random.Random(seed)
    reads: dict[str, list[str]] = {}
    tensors = ["in"]
    for at in range(steps):
        count = min(len(tensors), choose.choice([1, 1, 2]))
        reads[f"s{at}"] = [tensors[-1], *choose.sample(tensors[:-1], count - 1)]
        tensors.append(f"t{at}")
    if steps > 2:  # two branches
        reads["s2"] = [reads["s1"][0]]
    times = {name: {d: choose.uniform(2, 30) for d in devices} for name in reads}
    sizes = {tensor: choose.choice([1, largest // 4, largest]) for tensor in tensors}
    writers = {f"t{at}": f"s{at}" for at in range(steps)}
    return Graph(reads, times, sizes, devices, writers)
