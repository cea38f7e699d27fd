"""Predict: the engine's schedulers in virtual time, with service times that were measured once.

>>> profile = nt.profile(server, "bert")  # doctest: +SKIP
>>> nt.whatif(profile, "bert", concurrency="1:32:x2", instances=[1, 2])  # doctest: +SKIP

`profiling` measures a `Profile`, `server` and `core` simulate its models, `level` measures them as
`nbtriton.perf` measures live ones, `prediction` makes the report, and `search` and `tuning` look for the best configuration.
"""

from __future__ import annotations

from nbtriton.simulate.model_profile import EngineCosts, ModelProfile, Profile, ServicePoint
from nbtriton.simulate.prediction import whatif
from nbtriton.simulate.profiling import profile
from nbtriton.simulate.tuning import Tuning, tune

__all__ = [
    "EngineCosts", "ModelProfile", "Profile", "ServicePoint", "Tuning", "profile", "tune", "whatif",
]  # fmt: skip
