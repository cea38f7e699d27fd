"""The magics that explain: the recorder's events, reasons, requests and batches over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.common.packages import needed
from nbtriton.lab.explain.explanation import why
from nbtriton.magics import common
from nbtriton.options.reading import unquoted
from nbtriton.runtime.engine.events import events
from nbtriton.serving.server import server

if TYPE_CHECKING:
    from argparse import Namespace


@magics_class
class ExplainMagics(Magics):
    """``%triton_events``, ``%triton_why`` and ``%triton_timeline``."""

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
