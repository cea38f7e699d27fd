"""Prediction: the engine's schedulers in virtual time, with measured service times.

>>> profile = nt.profile(server, "bert")  # doctest: +SKIP
>>> nt.whatif(profile, "bert", concurrency="1:32:x2", instances=[1, 2])  # doctest: +SKIP

`profiling` measures a `Profile`. `server` and `core` simulate its models. `level` applies the measurement
rules of `nbtriton.perf`. `prediction` makes the report. `search` and `tuning` look for the best
configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.lab.simulate.model_profile import EngineCosts as EngineCosts
    from nbtriton.lab.simulate.model_profile import ModelProfile as ModelProfile
    from nbtriton.lab.simulate.model_profile import Profile as Profile
    from nbtriton.lab.simulate.model_profile import ServicePoint as ServicePoint
    from nbtriton.lab.simulate.prediction import whatif as whatif
    from nbtriton.lab.simulate.profiling import profile as profile
    from nbtriton.lab.simulate.tuned import Tuning as Tuning
    from nbtriton.lab.simulate.tuning import tune as tune

# The module of each public name.
_PLACES = {
    "EngineCosts": "model_profile",
    "ModelProfile": "model_profile",
    "Profile": "model_profile",
    "ServicePoint": "model_profile",
    "Tuning": "tuned",
    "profile": "profiling",
    "tune": "tuning",
    "whatif": "prediction",
}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use(__name__, _PLACES)
