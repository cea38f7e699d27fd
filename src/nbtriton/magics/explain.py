"""The magics that explain: the recorder's events, and what is wrong with a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.common.packages import needed
from nbtriton.lab.explain.diagnosis import doctor
from nbtriton.lab.explain.explanation import why
from nbtriton.magics import common
from nbtriton.options.reading import unquoted
from nbtriton.runtime.engine.copies import bounces, copies
from nbtriton.runtime.engine.events import events
from nbtriton.serving.server import server

if TYPE_CHECKING:
    from argparse import Namespace


@magics_class
class ExplainMagics(Magics):
    """``%triton_events``, ``%triton_copies``, ``%triton_why``, ``%triton_timeline``, ``%triton_doctor``."""

    @common.magic()
    @argument("name", type=unquoted, nargs="?", default="", help="by default all models")
    @argument(
        "--by", choices=("event", "request", "batch"), default="event",
        help="what a row is (by default an event)",
    )  # fmt: skip
    def triton_events(self, options: Namespace) -> Any:
        """Return what happened to the last requests and batches, as a DataFrame.

        The server's recorder keeps the last 512 of each model, through reloads and sweeps
        (``%triton_server --recorder`` sets how many)::

            %triton_events
            frame = %triton_events double --by request
        """
        return events(server(), options.name, by=options.by)

    @common.magic()
    @argument("--clear", action="store_true", help="reset the counts after this table")
    def triton_copies(self, options: Namespace) -> Any:
        """Return the copies between host and GPUs, a row for each edge and direction, as a DataFrame.

        Each row has the writer and the reader of the tensor, its bytes, and the device's time, per
        copy and per request. If a step makes a tensor leave a GPU only to come back, it is named
        above the table, with the line of the configuration or of the model's code that causes it::

            %triton_copies
            frame = %triton_copies --clear
        """
        frame = copies(server(), clear=options.clear)
        for sentence in bounces(frame):
            print(sentence)  # noqa: T201
        return frame

    @common.magic()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @common.profile_option(
        "a profile of %%triton_profile, or its file: predicts what the proposed change would bring"
    )
    def triton_why(self, options: Namespace) -> Any:
        """Say why a model's batches have their sizes, and where its slowest requests spent their time.

        It counts the reasons of the recent batches, compares the slowest 1% of the requests with
        the median, names the bottleneck of an ensemble and proposes one change::

            %triton_why double
            explanation = %triton_why double
        """
        profile = common.read_profile(self.shell, options.profile) if options.profile else None
        return why(server(), options.name, profile=profile)

    @common.magic()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @argument(
        "--span-ms", type=float, metavar="MS",
        help="how far back (by default as far as the newest 40 batches reach)",
    )  # fmt: skip
    @argument(
        "--save", type=unquoted, metavar="FILE",
        help="write it: .json is a trace of all that is recorded, for Perfetto; or .svg, .html, .txt",
    )  # fmt: skip
    @argument("--live", action="store_true", help="with the requests that come, until its stop()")
    def triton_timeline(self, options: Namespace) -> Any:
        """Draw requests and batches over time, per instance, with the reason why each batch left.

        On a page it can be zoomed and moved with the mouse and the keyboard, and shows the times of
        each request. Letters and colours give the reason: F full, D delay, I an idle instance, P
        preferred size. A file for Perfetto (https://ui.perfetto.dev) has everything recorded::

            %triton_timeline double
            picture = %triton_timeline double --span-ms 50
            stream = %triton_timeline double --live
        """
        with needed("a drawing"):
            from nbtriton.widgets.calls import timeline
            from nbtriton.widgets.timeline import live_timeline

        if options.live:
            if options.save is not None:
                raise UsageError("--save writes what is recorded now: leave out --live")
            stream = live_timeline(server(), options.name, span_ms=options.span_ms)
            return common.views.show(stream)
        view: Any = timeline(server(), options.name, span_ms=options.span_ms)
        if options.save is not None:
            view.save(options.save)
        return view

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
