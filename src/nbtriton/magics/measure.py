"""The magic that measures."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments

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
from nbtriton.magics.arguments import arguments, read_options
from nbtriton.magics.common import keep, keep_option, parse
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server


@magics_class
class MeasureMagics(Magics):
    """``%triton_perf``."""

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @arguments(LOAD, PLACE, MEMORY, DATA, SEQUENCES, SWEEP, PLACEMENT, WINDOWS, RUN)
    @argument(
        "--bg", action="store_true",
        help="return at once with a handle: await it, or call its stop() or result()",
    )  # fmt: skip
    @keep_option
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
        options = vars(parse(self.triton_perf, line))
        name, out, background = options.pop("name"), options.pop("out"), options.pop("bg")
        read_options(self.shell, options)
        # After `;` nothing is shown; a terminal shows the report as any other result.
        visible = not line.rstrip().endswith(";")
        target = None if options["url"] is not None else server()
        run = LiveRun(self.shell, name, visible=visible, quick=options["quick"])
        options["observer"] = run.observe
        if background:
            return keep(
                self.shell, out, run.in_background(lambda: PerfRun(target, name, **options))
            )
        report = run.of(lambda: perf(target, name, **options))
        return keep(self.shell, out, report)
