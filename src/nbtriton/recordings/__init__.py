"""Record and replay: live traffic kept in a file, and sent again (docs/recording.md).

>>> nt.record(server, "traffic.jsonl", seconds=10)  # doctest: +SKIP
>>> nt.replay("traffic.jsonl", server, speed=2)  # doctest: +SKIP

`perf.recording` is the file and its format, `tap` writes it, `traffic` makes requests of it, `player` and `live` send
them to a server, `simulated` to the simulator, and `api` makes the report.
"""

from __future__ import annotations

from nbtriton.perf.recording import Recording
from nbtriton.recordings.api import replay
from nbtriton.recordings.tap import TrafficTap, record

__all__ = ["Recording", "TrafficTap", "record", "replay"]
