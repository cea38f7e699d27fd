"""The magic that searches for the best configuration."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.tuning import TUNE
from nbtriton.magics import common
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server


@magics_class
class TuneMagics(Magics):
    """``%triton_tune``."""

    @common.magic()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @common.arguments(tuple(TUNE.values()))
    def triton_tune(self, options: Namespace) -> Any:
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
        from nbtriton.extensions.tuning import tune
        from nbtriton.magics.live import LiveRun

        name, given, run = LiveRun.named(self.shell, options)
        if given["profile"] is not None:
            given["profile"] = common.read_profile(self.shell, given["profile"])
        return run.of(lambda: tune(server(), name, **given))
