"""The magic that injects planned faults."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.chaos import CHAOS, chaos
from nbtriton.magics.common import arguments, magic
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server


@magics_class
class ChaosMagics(Magics):
    """``%triton_chaos``."""

    @magic()
    @argument("name", type=unquoted, help="a model; or an ensemble, whose composing models are hit")
    @arguments(tuple(CHAOS.values()))
    def triton_chaos(self, options: Namespace) -> Any:
        """Inject what goes wrong in production into a loaded model, and say what clients see.

        Slow executions, a model that raises, NaN in its outputs, lost instances (killed processes),
        full queues. The same seed gives the same faults. Each request is answered once, and at the
        end, also after an interrupt, the model is what it was::

            %triton_chaos double --request-count 200
            report = %triton_chaos double --faults slow=0.2,raise=0.01 --request-count 200 --seed 7
            report.frame
        """
        from nbtriton.magics.live import LiveRun

        name, given, run = LiveRun.named(self.shell, options)
        return run.of(lambda: chaos(server(), name, **given))
