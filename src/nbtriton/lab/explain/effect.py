"""The predicted effect of a proposal under the recorded arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import TritonError
from nbtriton.drawing import measure
from nbtriton.lab.explain.findings import Proposal
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.simulate import whatif
from nbtriton.runtime.engine import RequestRecord

if TYPE_CHECKING:
    from nbtriton.lab.simulate import Profile

# The least number of arrivals that make a load.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class Effect:
    """The recorded arrivals, simulated without and with a proposal.

    Attributes
    ----------
    before, after : PerfPoint
        Each with notes on where the simulation went beyond the profile.
    """

    before: PerfPoint
    after: PerfPoint

    @property
    def sentence(self) -> str:
        """The expected change."""
        before, after = self.before, self.after
        notes = dict.fromkeys((*before.notes, *after.notes))
        return (
            "predicted under the recorded arrivals (simulated): "
            f"p50 {_ms(before.latency_p50_us)} -> {_ms(after.latency_p50_us)}, "
            f"p99 {_ms(before.latency_p99_us)} -> {_ms(after.latency_p99_us)}, "
            f"{measure(before.infer_per_s)} -> {measure(after.infer_per_s)} infer/s"
            + "".join(f"; {note}" for note in notes)
        )


def predict_effect(
    profile: Profile, name: str, proposal: Proposal, requests: Sequence[RequestRecord]
) -> Effect | None:
    """Simulate the recorded arrivals without and with a proposal.

    Parameters
    ----------
    profile : Profile
    name : str
        The model that received the requests; the proposal may be for one of its steps.
    proposal : Proposal
    requests : sequence of RequestRecord

    Returns
    -------
    Effect or None
        None where `nbtriton.whatif` has no such parameter, or for too few arrivals.
    """
    arrivals = sorted(request.arrival_ns for request in requests)
    if not proposal.configuration or len(arrivals) < _FEWEST:
        return None
    gaps_us = [(after - before) // 1000 for before, after in pairwise(arrivals)]
    if not any(gaps_us):
        return None
    load: dict[str, Any] = {
        "intervals": gaps_us,
        "batch_size": median_low(request.size for request in requests),
        "request_count": len(arrivals),
    }
    changes: dict[str, Any] = dict(proposal.configuration)
    if proposal.model != name:
        changes["sweep_models"] = [proposal.model]
    try:
        (before,) = whatif(profile, name, **load).points
        (after,) = whatif(profile, name, **load, **changes).points
    except TritonError:  # the model cannot be simulated
        return None
    return Effect(before, after)


def _ms(us: float) -> str:
    return f"{measure(us / 1000)} ms"
