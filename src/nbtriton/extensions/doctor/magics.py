"""The magic that looks for what is wrong with a model or a configuration."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.doctor import DOCTOR, doctor
from nbtriton.magics import common
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server


@magics_class
class DoctorMagics(Magics):
    """``%triton_doctor``."""

    @common.magic()
    @argument(
        "target", nargs="?", default="", type=unquoted, metavar="NAME|DIR",
        help="a loaded model (by default all); or a repository, a model's directory or a config.pbtxt",
    )  # fmt: skip
    @common.arguments(tuple(DOCTOR.values()))
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
        given = vars(options)
        target, known = given.pop("target"), server().engine.registry
        if target and target not in {*known.entries, *known.absent} and _is_path(target):
            return doctor(Path(target).expanduser())
        if not options.test:
            common.read_options(self.shell, given)
            del given["line"]
            return doctor(server(), target, **given)
        from nbtriton.magics.live import LiveRun

        run = LiveRun.begin(self.shell, target, given)
        return run.of(lambda: doctor(server(), target, **given))


def _is_path(text: str) -> bool:
    return "/" in text or text in (".", "..") or Path(text).expanduser().exists()
