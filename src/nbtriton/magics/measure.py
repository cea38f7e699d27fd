"""The magics that measure and predict: a load, a profile, what-if on a simulated server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.settings import (
    CHAIN,
    DATA,
    LOAD,
    MEMORY,
    PLACE,
    PLACEMENT,
    RUN,
    SEQUENCES,
    SWEEP,
    WINDOWS,
)
from nbtriton.lab.simulate.settings import PROFILE
from nbtriton.magics import common
from nbtriton.options.reading import quoted, unquoted
from nbtriton.serving.server import server

if TYPE_CHECKING:
    from argparse import Namespace

    from nbtriton.lab.perf.report import PerfReport


@magics_class
class MeasureMagics(Magics):
    """``%triton_perf``, ``%triton_profile`` and ``%triton_whatif``."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        # The latest profile of this notebook by model, the default of `%triton_whatif`, and the latest measurement,
        # which is drawn with its prediction; each with the code that the model had.
        self._profiles: dict[str, tuple[Any, list[object]]] = {}
        self._reports: dict[str, tuple[Any, list[object]]] = {}

    @common.magic()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @common.arguments(LOAD, PLACE, CHAIN, MEMORY, DATA, SEQUENCES, SWEEP, PLACEMENT, WINDOWS, RUN)
    @argument(
        "--bg", action="store_true",
        help="return at once with a handle: await it, or call its stop() or result()",
    )  # fmt: skip
    def triton_perf(self, options: Namespace) -> Any:
        """Measure throughput and latency under load, over levels and configurations.

        A model with a sequence batcher gets sequences, as many at a time as requests are
        outstanding; a decoupled model wants ``--streaming``. Interrupt it, or press Stop, and it
        returns what was measured so far::

            report = %triton_perf double --concurrency 1:8:x2 --quick
            %triton_perf double -c 8 --dynamic-batching off,on --instances 1,2 --quick
            %triton_perf double -c 4 --streaming --quick
            %triton_perf double --placement cpu --quick
            %triton_perf double -c 4 --protocol http --quick
            %triton_perf double -c 8 --url grpc://gpu-box:8001
            run = %triton_perf double -c 1:8 --bg
            run.stop()
        """
        from nbtriton.lab.explain.timeline import read_newest_batches
        from nbtriton.lab.perf.api import PerfRun, perf
        from nbtriton.magics.live import LiveRun

        name, given, run = LiveRun.named(self.shell, options)
        background = given.pop("bg")
        target = None if given["url"] is not None else server()
        if target is not None:
            run.reads(lambda: read_newest_batches(target, name))
        if background:
            return run.in_background(lambda: PerfRun(target, name, **given))
        report = run.of(lambda: perf(target, name, **given))
        if target is not None:
            self._reports[name] = report, _code(name)
        return report

    @common.magic()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @common.arguments(tuple(PROFILE.values()))
    def triton_profile(self, options: Namespace) -> Any:
        """Measure a model once, in ten seconds, so that ``%triton_whatif`` can predict it.

        It measures execution times by batch size and by the number of instances that execute at
        once, the engine's own time, and for an ensemble every step. While it runs, the model has as
        many instances as it tests::

            profile = %triton_profile double
            %triton_profile double --at-once 8 --duration-s 8
            profile.save("double.json")
        """
        from nbtriton.lab.simulate.profiling import profile
        from nbtriton.magics.live import LiveRun

        name, given, run = LiveRun.named(self.shell, options)
        target = None if given["url"] is not None else server()
        found = run.of(lambda: profile(target, name, **given))
        self._profiles[name] = found, [] if target is None else _code(name)
        return found

    @common.magic()
    @argument("name", type=unquoted, help="a model or an ensemble that is profiled")
    @common.profile_option(
        "its profile, or a file of Profile.save; by default the latest of this notebook"
    )
    @common.arguments(LOAD, DATA, SEQUENCES, SWEEP, WINDOWS, RUN)
    def triton_whatif(self, options: Namespace) -> Any:
        """Predict what ``%triton_perf`` would measure, on a simulated server.

        It takes the options of ``%triton_perf`` and returns the same report, marked as simulated.
        If it goes beyond the profile, the report says so. The latest measurement of this notebook is drawn beneath
        it where code, configuration, load and settings were the same::

            %triton_profile double
            %triton_whatif double --request-rate 500:4000:500 --instances 1,2
            %triton_whatif double -c 64 --max-queue-delay-us 0,500,2000
        """
        from nbtriton.lab.simulate.prediction import whatif, with_measurement
        from nbtriton.magics.live import LiveRun

        name, given, run = LiveRun.named(self.shell, options)
        text = given.pop("profile")
        profile, code = self._profiles.get(name, (None, []))
        if text is not None:
            profile, code = common.read_profile(self.shell, text), []
        if profile is None:
            raise InvalidArgumentError(
                f"model '{name}' is not profiled in this notebook",
                hint=f"run %triton_profile {quoted(name)}, or give --profile FILE",
            )
        measured, its_code = self._reports.get(name, (None, []))
        same = bool(code) and [*map(id, code)] == [*map(id, its_code)]

        def predict() -> PerfReport:
            found = whatif(profile, name, **given)
            return with_measurement(found, measured) if same else found

        return run.of(predict)


def _code(name: str) -> list[object]:
    """Return the code of a model, or of an ensemble's composing models: what a new cell loads is another object."""
    from nbtriton.lab.perf.sweep import model_tree

    _, models = model_tree(server(), name)
    return [getattr(server().engine.registry.resolve(each, -1), "source", None) for each in models]
