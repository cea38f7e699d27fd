"""Threads that compute at once, against the cores that they have."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nbtriton.runtime.engine.core.snapshot import ModelSnapshot
from nbtriton.runtime.workers.resources import ThreadBudget

__all__ = ["oversubscription"]

_TORCH = "pytorch_libtorch"


def oversubscription(models: Sequence[ModelSnapshot], budget: ThreadBudget) -> list[str]:
    """Return a sentence for each group of instances whose libraries have more threads than there are cores.

    Parameters
    ----------
    models : sequence of ModelSnapshot
    budget : ThreadBudget
        Of the server's worker processes.
    """
    found = []
    cores = budget.cores
    if any(model.isolation == "process" and model.instances for model in models):
        workers, threads = budget.total()
        if threads > cores:
            found.append(
                f"{workers} worker processes compute with {threads} threads on {cores} "
                f"core{'s' * (cores > 1)}: fewer instances, or INTRA_OP_THREAD_COUNT, would leave each "
                "a core of its own"
            )
    torch = sys.modules.get("torch")
    for model in models:
        count = sum(instance.kind == "KIND_CPU" for instance in model.instances)
        if torch is None or model.isolation != "thread" or model.platform != _TORCH or count < 2:
            continue
        each = int(torch.get_num_threads())
        if each > 1 and count * each > cores:
            found.append(
                f"{count} instances of '{model.name}' compute with {each} threads each on {cores} "
                f"core{'s' * (cores > 1)}: INTRA_OP_THREAD_COUNT {max(1, cores // count)}, or "
                "--isolation process, which shares the cores"
            )
    return found
