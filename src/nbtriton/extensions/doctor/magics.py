"""The magic that looks for what is wrong with a model or a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.doctor.diagnosis import doctor
from nbtriton.magics import common
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server

if TYPE_CHECKING:
    from argparse import Namespace


@magics_class
class DoctorMagics(Magics):
    """``%triton_doctor``."""

    @common.magic()
    @argument(
        "target", nargs="?", default="", type=unquoted, metavar="NAME|DIR",
        help="a loaded model (by default all); or a repository, a model's directory or a config.pbtxt",
    )  # fmt: skip
    @argument(
        "--test", action="store_true",
        help="test the models themselves, on batches of chosen rows",
    )  # fmt: skip
    @argument(
        "--inputs", metavar="EXPR", help="rows to test with, a mapping of arrays (by default generated)"
    )  # fmt: skip
    @argument(
        "--duration-s", type=float, default=30.0, metavar="S", help="longest test of a model (30)"
    )
    def triton_doctor(self, options: Namespace) -> Any:
        """Look for errors and settings that cannot work as intended, without traffic: cause and fix of each.

        Errors are in Triton's words; settings that Triton accepts although they cannot work as
        intended come with the rule behind them. With ``--test`` it runs a copy of a model: does a
        row's result depend on its neighbours, on padding, order or batch size, does each request
        get its own answer, is it safe in two instances at once? It shows its progress, and ends in
        time::

            %triton_doctor
            diagnosis = %triton_doctor double --test
        """
        inputs = (
            common.evaluate(self.shell, unquoted(options.inputs), "--inputs ")
            if options.inputs
            else None
        )
        known = {*server().engine.registry.entries, *server().engine.registry.absent}
        if options.target and options.target not in known and _is_path(options.target):
            return doctor(Path(options.target).expanduser())
        if not options.test:
            return doctor(server(), options.target, inputs=inputs)
        from nbtriton.magics.live import LiveRun

        visible = not options.line.rstrip().endswith(";")
        run = LiveRun(self.shell, options.target, visible=visible)
        return run.of(
            lambda: doctor(
                server(), options.target, test=True, inputs=inputs, duration_s=options.duration_s,
                observer=run.observe,
            )
        )  # fmt: skip


def _is_path(text: str) -> bool:
    return "/" in text or text in (".", "..") or Path(text).expanduser().exists()
