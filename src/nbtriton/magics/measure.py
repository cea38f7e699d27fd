"""The magics that measure and predict: a load, a profile, what-if on a simulated server, the best configuration."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.settings import (
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
from nbtriton.lab.simulate.settings import PROFILE, TUNE
from nbtriton.magics import common
from nbtriton.options.reading import quoted, unquoted
from nbtriton.serving.server import server


@magics_class
class MeasureMagics(Magics):
    """``%triton_perf``."""

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @common.arguments(LOAD, PLACE, MEMORY, DATA, SEQUENCES, SWEEP, PLACEMENT, WINDOWS, RUN)
    @argument(
        "--bg", action="store_true",
        help="return at once with a handle: await it, or call its stop() or result()",
    )  # fmt: skip
    @common.keep_option
    @line_magic
    def triton_perf(self, line: str) -> Any:
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
        from nbtriton.lab.perf import PerfRun, perf
        from nbtriton.magics.live import LiveRun

        # The names of the options are those of `perf`.
        options = vars(common.parse(self.triton_perf, line))
        name, out, background = options.pop("name"), options.pop("out"), options.pop("bg")
        common.read_options(self.shell, options)
        # After `;` nothing is shown; a terminal shows the report as any other result.
        visible = not line.rstrip().endswith(";")
        target = None if options["url"] is not None else server()
        run = LiveRun(self.shell, name, visible=visible, quick=options["quick"])
        options["observer"] = run.observe
        if background:
            return common.keep(
                self.shell, out, run.in_background(lambda: PerfRun(target, name, **options))
            )
        report = run.of(lambda: perf(target, name, **options))
        return common.keep(self.shell, out, report)


@magics_class
class PredictMagics(Magics):
    """``%triton_profile``, ``%triton_whatif`` and ``%triton_tune``."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        # The latest profile of this notebook by model: the default of `%triton_whatif`.
        self._profiles: dict[str, Any] = {}

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @common.arguments(tuple(PROFILE.values()))
    @common.keep_option
    @line_magic
    def triton_profile(self, line: str) -> Any:
        """Measure a model once, in ten seconds, so that ``%triton_whatif`` can predict it.

        It measures execution times by batch size and by the number of instances that execute at
        once, the engine's own time, and for an ensemble every step. While it runs, the model has as
        many instances as it tests::

            profile = %triton_profile double
            %triton_profile double --at-once 8 --duration-s 8
            profile.save("double.json")
        """
        from nbtriton.lab.simulate import profile
        from nbtriton.magics.live import LiveRun

        options = vars(common.parse(self.triton_profile, line))
        name, out = options.pop("name"), options.pop("out")
        common.read_options(self.shell, options)
        target = None if options["url"] is not None else server()
        run = LiveRun(self.shell, name, visible=not line.rstrip().endswith(";"))
        found = run.of(lambda: profile(target, name, **options, observer=run.observe))
        self._profiles[name] = found
        return common.keep(self.shell, out, found)

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="a model or an ensemble that is profiled")
    @common.profile_option(
        "its profile, or a file of Profile.save; by default the latest of this notebook"
    )
    @common.arguments(LOAD, DATA, SEQUENCES, SWEEP, WINDOWS, RUN)
    @common.keep_option
    @line_magic
    def triton_whatif(self, line: str) -> Any:
        """Predict what ``%triton_perf`` would measure, on a simulated server.

        It takes the options of ``%triton_perf`` and returns the same report, marked as simulated.
        If it goes beyond the profile, the report says so::

            %triton_profile double
            %triton_whatif double --request-rate 500:4000:500 --instances 1,2
            %triton_whatif double -c 64 --max-queue-delay-us 0,500,2000
        """
        from nbtriton.lab.simulate import whatif
        from nbtriton.magics.live import LiveRun

        options = vars(common.parse(self.triton_whatif, line))
        name, out, given = (options.pop(each) for each in ("name", "out", "profile"))
        common.read_options(self.shell, options)
        if given is None:
            profile = self._profiles.get(name)
            if profile is None:
                raise InvalidArgumentError(
                    f"model '{name}' is not profiled in this notebook",
                    hint=f"run %triton_profile {quoted(name)}, or give --profile FILE",
                )
        else:
            profile = common.read_profile(self.shell, given)
        run = LiveRun(self.shell, name, visible=not line.rstrip().endswith(";"))
        report = run.of(lambda: whatif(profile, name, **options, observer=run.observe))
        return common.keep(self.shell, out, report)

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @common.arguments(tuple(TUNE.values()))
    @common.keep_option
    @line_magic
    def triton_tune(self, line: str) -> Any:
        """Find the best configuration by simulation, and measure the finalists.

        The model is profiled first, unless ``--profile`` is given. The steps of an ensemble are
        tuned together. At the end the models have their own configuration again; ``apply()`` sets
        the best one::

            best = %triton_tune double --p99 20ms
            best.apply()
            %triton_tune double --minimize instances --request-rate 500 --p99 50ms

        With ``--placement auto`` each step is measured on the host and on each GPU, also on simulated
        ones, and the cheapest assignment is chosen (``%triton_tune ensemble_all --p99 50ms
        --placement auto``).
        """
        from nbtriton.lab.simulate import tune
        from nbtriton.magics.live import LiveRun

        options = vars(common.parse(self.triton_tune, line))
        name, out, given = (options.pop(each) for each in ("name", "out", "profile"))
        options["profile"] = None if given is None else common.read_profile(self.shell, given)
        common.read_options(self.shell, options)
        run = LiveRun(self.shell, name, visible=not line.rstrip().endswith(";"))
        found = run.of(lambda: tune(server(), name, **options, observer=run.observe))
        return common.keep(self.shell, out, found)
