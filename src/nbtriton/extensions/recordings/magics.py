"""The magics that keep live traffic in a file and send it again."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.common.errors import InternalError
from nbtriton.extensions.recordings import REPLAY, Recording, TrafficTap
from nbtriton.lab.perf.settings import PLACE
from nbtriton.magics.common import arguments, magic, profile_option, read_profile
from nbtriton.options.reading import name_list, unquoted
from nbtriton.options.table import only
from nbtriton.serving.server import server


def _stopped(taps: Sequence[TrafficTap]) -> Recording | list[Recording]:
    """End recordings and return them, one alone as it is.

    Raises
    ------
    InternalError
        Some have failed: which, and why. The others have ended.
    """
    ended: list[Recording] = []
    failed: list[tuple[TrafficTap, Exception]] = []
    for tap in taps:  # one whose disk is full keeps no other from its end
        try:
            ended.append(tap.stop())
        except Exception as error:
            failed.append((tap, error))
    if failed:
        reasons = "; ".join(f"'{tap.path}': {error}" for tap, error in failed)
        hint = "what was written before is in the file"
        if ended:
            hint += f"; recordings that are whole: {len(ended)}"
        raise InternalError(f"recording has failed: {reasons}", hint=hint) from failed[0][1]
    return ended[0] if len(ended) == 1 else ended


@magics_class
class RecordingMagics(Magics):
    """``%triton_record`` and ``%triton_replay``."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        # What `%triton_record --stop` ends.
        self._taps: list[TrafficTap] = []

    @magic()
    @argument("file", nargs="?", type=unquoted, metavar="FILE", help="compressed if it ends in .gz")
    @argument("--models", type=name_list, metavar="LIST", help="only requests for these")
    @argument("--inputs", action="store_true", help="keep the contents of the inputs too")
    @argument("--duration-s", type=float, metavar="S", help="record for S seconds, and wait for it")
    @argument("--request-count", type=int, metavar="N", help="or until N requests have come")
    @argument("--stop", action="store_true", help="end the recordings that this magic has begun")
    def triton_record(self, options: Namespace) -> Any:
        """Keep the requests that clients send to the server in a file, for ``%triton_replay``.

        It returns at once and records until ``%triton_record --stop``, unless a duration or a count is given.
        Each request is kept with its time, model, shapes, priority, timeout, sequence and parameters::

            %triton_record traffic.jsonl --inputs
            recording = %triton_record --stop
        """
        from nbtriton.extensions.recordings import record

        given = vars(options)
        file, stop, _ = (given.pop(each) for each in ("file", "stop", "line"))
        if stop:
            if file is not None or any(value not in (None, False) for value in given.values()):
                raise UsageError("--stop goes with no other option and no file")
            taps, self._taps = self._taps, []
            if not taps:
                raise UsageError("no recording is being made: %triton_record FILE begins one")
            return _stopped(taps)
        if file is None:
            raise UsageError("where to? give a file: %triton_record traffic.jsonl")
        tap = record(server(), file, **given)
        if tap.ended.is_set():
            return tap.stop()
        self._taps = [one for one in self._taps if not one.ended.is_set()] + [tap]
        return tap

    @magic()
    @argument("file", type=unquoted, metavar="FILE", help="a file of %%triton_record")
    @arguments(tuple(REPLAY.values()), only(PLACE, "--url"))
    @profile_option("simulate it, with this profile or a file of Profile.save")
    def triton_replay(self, options: Namespace) -> Any:
        """Send the requests of a recording again, each when it came, and measure.

        To the server here, in one configuration after the other, to one at a ``--url``, or to the
        simulator. The report is that of ``%triton_perf``. Interrupt it, or press Stop, and it returns
        what it has measured::

            %triton_record traffic.jsonl
            %triton_infer double IN=[[1, 2, 3, 4]]
            %triton_record --stop
            report = %triton_replay traffic.jsonl --speed 1,10
            %triton_replay traffic.jsonl --speed 10 --instances 1,2
        """
        from nbtriton.extensions.recordings import replay
        from nbtriton.magics.live import LiveRun

        given = vars(options)
        file, url, profile = (given.pop(each) for each in ("file", "url", "profile"))
        run = LiveRun.begin(self.shell, file, given)
        if url is not None and profile is not None:
            raise UsageError("--url and --profile: give one of them")
        target = url or (server() if profile is None else read_profile(self.shell, profile))
        return run.of(lambda: replay(file, target, **given))
