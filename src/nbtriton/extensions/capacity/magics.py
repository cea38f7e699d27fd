"""The magic that plans nodes for a load."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.capacity import CAPACITY
from nbtriton.magics.common import arguments, evaluate, magic, read_profile
from nbtriton.options.reading import unquoted


@magics_class
class CapacityMagics(Magics):
    """``%triton_capacity``."""

    @magic()
    @argument(
        "profile", type=unquoted, metavar="EXPR|FILE", help="a profile or a twin, or a file of Profile.save"
    )  # fmt: skip
    @argument("--model", type=unquoted, help="a model of the profile (the profiled one)")
    @arguments(tuple(CAPACITY.values()))
    def triton_capacity(self, options: Namespace) -> Any:
        """Find the nodes that meet a load within a p99 latency at the lowest price, by simulation.

        The machines are an expression of the notebook::

        machines = {"c7.2xlarge": {"cpus": 8, "price_per_hour": 0.36}}
        %triton_capacity profile --request-rate 2800 --p99 50ms --machines machines --losses 1
        """
        from nbtriton.extensions.capacity import capacity
        from nbtriton.magics.live import LiveRun

        given = vars(options)
        profile = read_profile(self.shell, given.pop("profile"))
        model = given.pop("model")
        if given["machines"] is not None:
            given["machines"] = evaluate(self.shell, given["machines"], "--machines ")
        run = LiveRun.begin(self.shell, model or profile.model, given)
        return run.of(lambda: capacity(profile, model, **given))
