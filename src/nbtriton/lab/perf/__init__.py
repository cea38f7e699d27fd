"""Measure models under load: load, measurement windows, sweeps, reports.

>>> report = nt.perf(server, "bert", concurrency="1:32:x2")  # doctest: +SKIP

Pure parts: `loads` (levels, schedules, and the next level of a search), `windows` (stability and merging),
`breakdown` (statistics of the server), `sweep.combinations`, `options`, `point` and `report` (results).
`driver` sends requests, `measure` measures a level, `session` a search, and `run` puts
them together. The pure parts need no NumPy: a prediction in a browser has them.
"""
