"""Predict: the engine's schedulers in virtual time, with service times that were measured once.

>>> profile = nt.profile(server, "bert")  # doctest: +SKIP
>>> nt.whatif(profile, "bert", concurrency="1:32:x2", instances=[1, 2])  # doctest: +SKIP

`profiling` measures a `Profile`, `server` and `core` simulate its models, `level` measures them as
`nbtriton.perf` measures live ones, `prediction` makes the report, and `search` and `tuning` look for the best configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.simulate.model_profile import EngineCosts as EngineCosts
    from nbtriton.simulate.model_profile import ModelProfile as ModelProfile
    from nbtriton.simulate.model_profile import Profile as Profile
    from nbtriton.simulate.model_profile import ServicePoint as ServicePoint
    from nbtriton.simulate.prediction import whatif as whatif
    from nbtriton.simulate.profiling import profile as profile
    from nbtriton.simulate.tuning import Tuning as Tuning
    from nbtriton.simulate.tuning import tune as tune

# Where each public name lives.
_PLACES = {
    "EngineCosts": "model_profile",
    "ModelProfile": "model_profile",
    "Profile": "model_profile",
    "ServicePoint": "model_profile",
    "Tuning": "tuning",
    "profile": "profiling",
    "tune": "tuning",
    "whatif": "prediction",
}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # which would take any name for one of ours
    __getattr__ = on_first_use(__name__, _PLACES)
