"""The magic that injects planned faults."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.lab.perf.settings import DATA, RUN
from nbtriton.magics.common import arguments, magic
from nbtriton.options.reading import name_list, unquoted
from nbtriton.options.table import only
from nbtriton.serving.server import server

if TYPE_CHECKING:
    from argparse import Namespace


def _faults(text: str) -> list[str] | dict[str, float]:
    """Read ``slow,raise``, or with shares ``slow=0.2,raise=0.01``."""
    parts = name_list(text)
    if not any("=" in part for part in parts):
        return parts
    try:
        return {part.partition("=")[0]: float(part.partition("=")[2]) for part in parts}
    except ValueError:
        raise ArgumentTypeError(
            f"'{text}' is neither a list of faults nor has it a share for each: slow=0.2,raise=0.01"
        ) from None


@magics_class
class ChaosMagics(Magics):
    """``%triton_chaos``."""

    @magic()
    @argument("name", type=unquoted, help="a model; or an ensemble, whose composing models are hit")
    @argument(
        "--faults", type=_faults, metavar="LIST",
        help="of slow, raise, nan, lost, queue_full (by default all), each 5%% of the executions or "
        "requests; or with shares: slow=0.2,raise=0.01",
    )  # fmt: skip
    @argument("--duration-s", type=float, default=5.0, metavar="S", help="how long (5)")
    @argument(
        "--request-count", type=int, metavar="N", help="or until its clients have sent N requests"
    )
    @argument(
        "--slow-ms", type=float, default=50.0, metavar="MS", help="how much longer slow takes (50)"
    )
    @argument(
        "-c", "--concurrency", type=int, default=4, metavar="N",
        help="requests that its clients keep outstanding (4); 0: only the traffic that there is",
    )  # fmt: skip
    @arguments(only(DATA, "--inputs", "--shape"), only(RUN, "--seed"))
    def triton_chaos(self, options: Namespace) -> Any:
        """Inject what goes wrong in production into a loaded model, and say what clients see.

        Slow executions, a model that raises, NaN in its outputs, lost instances (killed processes),
        full queues. The same seed gives the same faults. Each request is answered once, and at the
        end, also after an interrupt, the model is what it was::

            %triton_chaos double --request-count 200
            report = %triton_chaos double --faults slow=0.2,raise=0.01 --request-count 200 --seed 7
            report.frame
        """
        from nbtriton.extensions.chaos import chaos
        from nbtriton.magics.live import LiveRun

        given = vars(options)
        name = given.pop("name")
        run = LiveRun.begin(self.shell, name, given)
        return run.of(lambda: chaos(server(), name, **given))
