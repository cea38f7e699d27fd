"""The real C++ perf_analyzer sends a count of requests to a server of this process."""

from __future__ import annotations

import subprocess

from nbtriton.extensions.verify.reference import Reference
from nbtriton.runtime.engine import Server

__all__ = ["COUNT", "measured"]

COUNT = 200
_TIMEOUT_S = 90
_ATTEMPTS = 3


def measured(
    reference: Reference, server: Server, model: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    """Run perf_analyzer for `COUNT` requests to a model.

    perf_analyzer 2.50 sometimes waits for ever for a count that it never reaches (one of 1,370 runs with
    ``--async`` on two processors: all responses had been received, all of its senders had ended). It is
    started again only if the server has answered all the requests.

    Raises
    ------
    AssertionError
        It does not end, and the server has not answered everything.
    subprocess.TimeoutExpired
        It did not end, several times.
    """
    attempts = 0
    while True:
        before = _answered(server, model)
        try:
            return reference.perf_analyzer(
                "-m", model, "--request-count", str(COUNT), *flags, timeout_s=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            attempts += 1
            assert _answered(server, model) - before >= COUNT
            if attempts == _ATTEMPTS:
                raise


def _answered(server: Server, model: str) -> int:
    (entry,) = server.statistics(model)["model_stats"]
    return int(entry["inference_stats"]["success"]["count"])
