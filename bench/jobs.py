"""Jobs of the servers of `bench.others`: a function of batches, and the row that is sent.

Also imported by the servers' programs, in environments with numpy and the packages of a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BATCH", "JOBS", "Job"]

# The number of requests in flight.
BATCH = 32

Rows = npt.NDArray[np.float32]
Function = Callable[[Rows], Rows]


@dataclass(frozen=True, slots=True)
class Job:
    """A function from rows, float32 of shape ``[n, inputs]``, to rows of ``[n, outputs]``."""

    name: str
    title: str
    inputs: int
    outputs: int
    make: Callable[[], Function]
    # Packages that it needs besides numpy.
    packages: tuple[str, ...] = ()

    def row(self) -> Rows:
        """Return the row of every request, of shape ``[1, inputs]``.

        Its numbers have few decimals, so that JSON does not dominate the measurement.
        """
        return (np.arange(self.inputs) % 16 / 16).astype(np.float32)[None]


def double() -> Function:
    """Return a function that doubles."""
    return lambda rows: rows * 2


def mlp() -> Function:
    """Return the MLP of `bench.nets` with the weights of seed 0, computed by one thread."""
    import torch

    from bench.nets import seeded

    torch.set_num_threads(1)
    module = seeded("mlp")

    def infer(rows: Rows) -> Rows:
        with torch.inference_mode():
            found: Rows = module(torch.from_numpy(rows)).numpy()
        return found

    return infer


JOBS = {
    job.name: job
    for job in (
        Job("double", "a doubling of 16 numbers", 16, 16, double),
        Job("mlp", "a torch MLP of 784 numbers", 784, 10, mlp, ("torch",)),
    )
}
