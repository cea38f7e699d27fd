"""The magic that scales a model's instances by its load."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.autoscale import AUTOSCALE
from nbtriton.magics.common import arguments, magic
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server


@magics_class
class AutoscaleMagics(Magics):
    """``%triton_autoscale``."""

    @magic()
    @argument(
        "model", nargs="?", type=unquoted, metavar="MODEL", help="by default all that are scaled"
    )
    @arguments(tuple(AUTOSCALE.values()))
    @argument("--stop", action="store_true", help="end it; the instances stay as they are")
    def triton_autoscale(self, options: Namespace) -> Any:
        """Add instances of a model while its requests wait too long, and remove them when they rest.

        No request is lost: instances that go finish what they have begun. Without ``--p99`` it shows what is scaled, with
        each change and its reason::

            %triton_autoscale bert --between 1:8 --p99 20ms
            %triton_autoscale
            %triton_autoscale --stop
        """
        from nbtriton.extensions.autoscale import autoscale, running

        model, given = options.model, {name: getattr(options, name) for name in AUTOSCALE}
        if given["p99_ms"] is not None:
            if options.stop:
                raise UsageError("--stop goes with no --p99")
            if model is None:
                raise UsageError("which model? %triton_autoscale MODEL --p99 20ms")
            return autoscale(server(), model, **given)
        found = [one for one in running(server()) if model in (None, one.model)]
        if not found:
            which = "no model" if model is None else f"model '{model}'"
            verb = "is" if model is None else "is not"
            raise UsageError(f"{which} {verb} scaled: %triton_autoscale MODEL --p99 20ms begins it")
        for one in found if options.stop else ():
            one.stop()
        return found[0] if len(found) == 1 else found
