"""Recording of live traffic to a file, and its replay (docs/recording.md).

>>> nt.record(server, "traffic.jsonl", duration_s=10)  # doctest: +SKIP
>>> nt.replay("traffic.jsonl", server, speed=2)  # doctest: +SKIP

`lab.perf.recording` has the file's format, `tap` writes a file, `traffic` makes requests from it, `live` sends these to
a server or to the simulator, and `api` makes the report.
"""

from __future__ import annotations

from nbtriton.extensions.recordings.api import replay
from nbtriton.extensions.recordings.tap import TrafficTap, record
from nbtriton.lab.perf.recording import Recording

__all__ = ["Recording", "TrafficTap", "record", "replay"]
