"""The magics that look: one request, the state of the server, the graph, events, reasons, the live view and the timeline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic_ns, perf_counter_ns
from typing import TYPE_CHECKING, Any, overload

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_magic,
    magics_class,
    no_var_expand,
    output_can_be_silenced,
)
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError, nearest
from nbtriton.common.packages import needed
from nbtriton.drawing.numbers import count, counted, measure
from nbtriton.drawing.table import Column, table_html, table_text
from nbtriton.lab.explain.explanation import why
from nbtriton.magics.common import (
    arguments,
    evaluate,
    keep,
    keep_option,
    magic,
    parse,
    profile_option,
    read_profile,
    say,
    views,
)
from nbtriton.model.config import format_pbtxt
from nbtriton.model.tensors import format_shape, numpy_dtype, shape_of
from nbtriton.options.blocks import REQUEST
from nbtriton.options.reading import quoted, unquoted
from nbtriton.runtime.engine import InferenceResult, ModelSignature, ServerHistory
from nbtriton.runtime.engine.diagnostics.interpreter import advice
from nbtriton.runtime.engine.events import events
from nbtriton.runtime.engine.shown import preview
from nbtriton.runtime.engine.status import config_of, status, status_table
from nbtriton.serving.server import server

if TYPE_CHECKING:
    from argparse import Namespace

    import pandas as pd


@magics_class
class AskMagics(Magics):
    """``%triton_infer``, ``_status``, ``_dag``, ``_watch``, ``_events``, ``_why`` and ``_timeline``."""

    @no_var_expand
    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @argument(
        "inputs", nargs="*", metavar="INPUT=EXPR", help="whole tensors, batch dimension first"
    )
    @arguments(REQUEST)
    @keep_option
    @line_magic
    def triton_infer(self, line: str) -> Any:
        """Send one request; shows the outputs' shapes and types and where the time went.

        Expressions are Python and see the notebook's variables. The result is a mapping of arrays; of
        a decoupled model it is the list of its responses, each with its time. A sequence is one
        request a line, the first with ``--sequence-start``::

            %triton_infer double IN=np.ones((2, 4), np.float32)
            out = %triton_infer double IN=[[1, 2, 3, 4]]
            out = %triton_infer double --sequence-id 7 --sequence-start IN=[[1, 2, 3, 4]]
        """
        options, values = read_request(self, self.triton_infer, line)
        begun_ns = monotonic_ns()
        given = {one.parameter: getattr(options, one.parameter) for one in REQUEST}
        try:
            signature = server().engine.inspection.signature(options.name, options.version)
            if signature.decoupled:
                result: Any = Responses.of(server().stream(options.name, values, **given))
            else:
                result = server().infer(options.name, values, **given)
        except InvalidArgumentError as error:
            if not error.hint and re.search("correlation ID|START flag", error.message):
                error.hint = "a sequence begins with --sequence-id ID --sequence-start"
            if not (error.hint or values):
                error.hint = _with_inputs(options.name, signature)
            raise
        if isinstance(result, InferenceResult):
            for sentence in _undeclared_shapes(result, signature):
                say(sentence)
            if not line.rstrip().endswith(";"):
                _show_steps(options.name, begun_ns)
        return keep(self.shell, options.out, result)

    @magic()
    @argument("name", type=unquoted, nargs="?", help="by default all models")
    @argument("--live", action="store_true", help="a table that stays up to date, until its stop()")
    @argument(
        "--config", action="store_true", help="print the completed config.pbtxt of each model first"
    )
    def triton_status(self, options: Namespace) -> Any:
        """Return the models, their state, queues and statistics as a DataFrame.

        Times are means per request, in microseconds, shown in milliseconds from 1 ms on.
        ``isolation`` is where the instances live, and ``interpreter_wait`` the share of time that
        instances waited for each other's Python code; if that is long, a line above the table names
        the option to change. If a configuration sets fields that have no effect here, a last column
        ``ignored`` names them::

            %triton_status
            queue = %triton_status double
            table = %triton_status --live
            %triton_status double --config
        """
        if options.name is not None:
            check_known(options.name)
        if options.config:
            for name in dict.fromkeys(model.name for model in server().models()):
                config = config_of(server(), name) if options.name in (None, name) else None
                if config is not None:
                    say(format_pbtxt(config))
        if options.live:
            with needed("a live view"):
                from nbtriton.widgets.table import TableView

            table = TableView(partial(status_table, server(), options.name), server())
            return views.show(table)
        for model in server().models():
            text = advice(model.name, model.interpreter)
            if text and options.name in (None, model.name):
                say(text)
        text = _counted_before(server().history(), options.name)
        if text:
            say(text)
        return status(server(), options.name)

    @magic()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @argument(
        "--live",
        action="store_true",
        help="with the requests that wait and run now, until its stop()",
    )
    def triton_dag(self, options: Namespace) -> Any:
        """Draw the graph of an ensemble: its models and the tensors between them.

        Examples::

            %triton_dag four_times
            graph = %triton_dag four_times --live
        """
        with needed("a drawing"):
            from nbtriton.widgets.calls import dag
            from nbtriton.widgets.dag import DagView

        check_known(options.name)
        if options.live:
            return views.show(DagView.of(server(), options.name))
        return dag(server(), options.name)

    @magic()
    @argument("names", type=unquoted, nargs="*", metavar="NAME", help="by default all models")
    def triton_watch(self, options: Namespace) -> Any:
        """Show queues, instances, batch sizes and rates live, while other cells run.

        The view rests 10 s after the last request and resumes with the next one. ``stop()`` of the
        returned object replaces it with a picture of the last half minute::

            watch = %triton_watch
            watch = %triton_watch double
        """
        with needed("a live view"):
            from nbtriton.widgets.watch import WatchView

        for name in options.names:
            check_known(name)
        return views.show(WatchView(server(), options.names))

    @magic()
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

    @magic()
    @argument("name", type=unquoted, help="a model or an ensemble")
    @profile_option(
        "a profile of %%triton_profile, or its file: predicts what the proposed change would bring"
    )
    def triton_why(self, options: Namespace) -> Any:
        """Say why a model's batches have their sizes, and where its slowest requests spent their time.

        It counts the reasons of the recent batches, compares the slowest 1% of the requests with
        the median, names the bottleneck of an ensemble and proposes one change::

            %triton_why double
            explanation = %triton_why double
        """
        profile = read_profile(self.shell, options.profile) if options.profile else None
        return why(server(), options.name, profile=profile)

    @magic()
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
            return views.show(stream)
        view: Any = timeline(server(), options.name, span_ms=options.span_ms)
        if options.save is not None:
            view.save(options.save)
        return view


def _counted_before(history: ServerHistory, name: str | None) -> str:
    """Return a sentence about the requests before the last load, which the statistics do not include."""
    before = {
        one.model.name: one.moments[-1].requests - one.model.success_count
        for one in history.models
        if one.moments and name in (None, one.model.name)
    }
    words = [f"{count(n)} of '{model}'" for model, n in before.items() if n > 0]
    if not words:
        return ""
    return f"the counts begin with each model's last load; before it were {', '.join(words)}"


def _show_steps(name: str, since_ns: int) -> None:
    """Show the steps of a request to an ensemble over time, where a page can show a picture."""
    if not server().config(name).HasField("ensemble_scheduling"):
        return
    from nbtriton.widgets.show import display, has_kernel

    if has_kernel():
        from nbtriton.lab.explain.timeline import read_request
        from nbtriton.widgets.timeline import timeline_picture

        timeline = read_request(server(), name, since_ns)
        if timeline is not None:
            display(timeline_picture(timeline))


def _with_inputs(name: str, signature: ModelSignature) -> str:
    """Return a line that gives each input a value."""
    batch = (1,) if signature.max_batch_size > 0 else ()
    words = []
    for spec in signature.inputs.values():
        shape = (*batch, *(max(1, size) for size in spec.dims))
        value = f"np.full({shape}, b'text', object)"
        if spec.datatype != "BYTES":
            value = f"np.ones({shape}, '{numpy_dtype(spec.datatype).name}')"
        words.append(f"{spec.name}={value}")
    return f"%triton_infer {quoted(name)} {' '.join(words)}"


def _undeclared_shapes(result: InferenceResult, signature: ModelSignature) -> list[str]:
    """Return a sentence for each output whose shape is not the configuration's."""
    batched = signature.max_batch_size > 0
    found = []
    for name in result:
        shape = shape_of(result.raw(name))[1 if batched else 0 :]
        spec = signature.outputs.get(name)
        if spec is not None and not _fits(shape, spec.dims):
            found.append(
                f"{name} has the shape {format_shape(shape)}{' a row' if batched else ''}, where the configuration "
                f"says {format_shape(spec.dims)}: Triton passes it on as it is, and so does nbtriton"
            )
    return found


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(
        dim in (-1, size) for size, dim in zip(shape, dims, strict=True)
    )


_TO_LOAD = (
    "%%triton_model, %%triton_ensemble and %triton_load load models, and %%triton_config a stand-in by its configuration "
    "alone, after %triton_server --stand-in on"
)


def check_known(name: str) -> None:
    """Raise Triton's error unless a model of this name is loaded."""
    names = server().engine.inspection.model_names()
    if name not in names:
        raise NotFoundError(
            f"Request for unknown model: '{name}' is not found",
            hint=nearest(name, names) or _TO_LOAD,
        )


# A tensor's name, of any alphabet or in quotes, and a single `=`, where a word of the line begins.
# Quotes with a backslash are a Python string, which an escaped quote does not end.
_INPUT = re.compile(r"""([^\W\d][\w.:/\-]*|"[^"\\]+"|'[^'\\]+')\s*=(?!=)\s*""")
# `x --y` and `x -o y` are not Python in practice: they are options.
_OPTION = re.compile(r"(-o|--[a-z][a-z-]*)(?=\s|=|$)")
_QUOTED = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")


def split_inputs(line: str) -> tuple[str, dict[str, str]]:
    """Split a line into its options and its inputs.

    An expression may hold spaces: it reaches to the next ``NAME=`` or option outside of brackets
    and quotes. A name may be in quotes.

    Returns
    -------
    options : str
        What is left of the line.
    inputs : dict of str to str
        Expressions by tensor name.

    Raises
    ------
    UsageError
        An input is given twice.
    """
    options: list[str] = []
    inputs: dict[str, str] = {}
    current = ""
    i = depth = 0
    start = 0
    word = True  # a word may begin here

    def close(end: int) -> None:
        text = line[start:end].strip()
        if current in inputs:
            raise UsageError(f"the input '{current}' is given twice")
        if current:
            inputs[current] = text
        elif text:
            options.append(text)

    while i < len(line):
        if word and depth == 0:
            found = _INPUT.match(line, i)
            if found:
                close(i)
                current, start = unquoted(found[1]), found.end()
                i, word = found.end(), False
                continue
            if current and _OPTION.match(line, i):
                close(i)
                current, start = "", i
        char = line[i]
        quoted = _QUOTED.match(line, i)
        if quoted:
            i, word = quoted.end(), False
            continue
        depth += (char in "([{") - (char in ")]}")
        word = char.isspace()
        i += 1
    close(len(line))
    return " ".join(options), inputs


def read_request(magics: Magics, method: Any, line: str) -> tuple[Namespace, dict[str, Any]]:
    """Return the options of a line, and the values of its inputs.

    Raises
    ------
    UsageError
        A word that is neither.
    """
    head, inputs = split_inputs(line.rstrip().removesuffix(";"))
    # {x} is replaced in the options only: expressions see x anyway.
    options = parse(method, magics.shell.var_expand(head, depth=3))
    if options.inputs:
        raise UsageError(
            f"'{options.inputs[0]}' is neither an option nor an input: write INPUT=expression"
        )
    return options, {
        name: evaluate(magics.shell, text, f"{name}=") for name, text in inputs.items()
    }


# The part of a long stream that people read: its beginning and its end.
_SHOWN_FIRST, _SHOWN_LAST = 15, 5


class Responses(Sequence["InferenceResult"]):
    """The responses to one request; shows each with its time.

    Attributes
    ----------
    times_ms : tuple of float
        When each arrived, in milliseconds after the request was sent.
    interrupted : bool
        True if the user stopped the stream; the request was then cancelled.
    """

    def __init__(
        self,
        responses: Sequence[InferenceResult],
        times_ms: Sequence[float],
        *,
        interrupted: bool = False,
    ) -> None:
        self._responses = tuple(responses)
        self.times_ms = tuple(times_ms)
        self.interrupted = interrupted

    @classmethod
    def of(cls, stream: Iterable[InferenceResult]) -> Responses:
        """Read a stream to its end; an interrupt ends it early and keeps the responses so far.

        Raises
        ------
        TritonError
            The stream ended with an error; its hint has the number of earlier responses.
        """
        started_ns = perf_counter_ns()
        came: list[tuple[InferenceResult, float]] = []
        interrupted = False
        try:
            came.extend((one, (perf_counter_ns() - started_ns) / 1e6) for one in stream)
        except KeyboardInterrupt:
            interrupted = True
        except TritonError as error:
            if came and not error.hint:
                before = counted(len(came), "response")
                error.hint = f"{before} came before it; server.stream(…) has them"
            raise
        return cls([one for one, _ in came], [ms for _, ms in came], interrupted=interrupted)

    @overload
    def __getitem__(self, index: int) -> InferenceResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[InferenceResult]: ...
    def __getitem__(self, index: int | slice) -> InferenceResult | Sequence[InferenceResult]:
        return self._responses[index]

    def __len__(self) -> int:
        return len(self._responses)

    def to_frame(self) -> pd.DataFrame:
        """Return all responses as one DataFrame, the number of the response first in its index."""
        import pandas as pd

        frames = {number: response.to_frame() for number, response in enumerate(self)}
        return pd.concat(frames, names=["response"]) if frames else pd.DataFrame()

    def __repr__(self) -> str:
        return f"<{self._headline()}>"

    def _headline(self) -> str:
        if not self:
            words = "no response"
        else:
            first = self[0]
            words = f"{first.model_name} v{first.model_version}: {counted(len(self), 'response')}"
            words += f", the first after {measure(self.times_ms[0])} ms"
            if len(self) > 1:
                words += f", the last after {measure(self.times_ms[-1])} ms"
        return words + (", interrupted" if self.interrupted else "")

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        headline = self._headline()
        if not self:
            return {"text/plain": headline}
        names = {
            name: datatype for response in self for name, datatype, _, _ in response.describe()
        }
        columns = [Column("response"), Column("after", "ms")]
        columns += [Column(name, datatype) for name, datatype in names.items()]
        shown = list(range(len(self)))
        if len(shown) > _SHOWN_FIRST + _SHOWN_LAST:
            shown = shown[:_SHOWN_FIRST] + shown[-_SHOWN_LAST:]
            headline += f"; the table leaves out {_SHOWN_FIRST} to {shown[-_SHOWN_LAST] - 1}"
        rows = [(n, self.times_ms[n], *(_cell(self[n], name) for name in names)) for n in shown]
        return {
            "text/plain": f"{headline}\n{table_text(columns, rows)}",
            "text/html": table_html(columns, rows, caption=headline),
        }


def _cell(response: InferenceResult, name: str) -> str:
    for found, _, shape, where in response.describe():
        if found == name:
            values = preview(response.raw(name), where)
            return f"{shape} {values}"
    return ""
