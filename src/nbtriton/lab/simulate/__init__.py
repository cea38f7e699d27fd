"""Prediction: the engine's schedulers in virtual time, with measured service times.

>>> profile = nt.profile(server, "bert")  # doctest: +SKIP
>>> nt.whatif(profile, "bert", concurrency="1:32:x2", instances=[1, 2])  # doctest: +SKIP

`profiling` measures a `Profile`. `server` and `core` simulate its models. `level` applies the measurement
rules of `nbtriton.perf`. `prediction` makes the report. `search` and `tuning` look for the best
configuration.
"""
