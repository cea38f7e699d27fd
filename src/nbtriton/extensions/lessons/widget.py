"""Figures of the scheduler: played, stepped through and changed on the page; a picture in the file."""

from __future__ import annotations

import ast
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from nbtriton.common.errors import InvalidArgumentError, TritonError, nearest
from nbtriton.drawing.numbers import nice_ticks
from nbtriton.drawing.scene import fitting, to_json, to_svg
from nbtriton.drawing.table import table_html
from nbtriton.drawing.timeline import Bar, TimelineLanes, timeline_text
from nbtriton.extensions.lessons.checking import Mark, Progress, check
from nbtriton.extensions.lessons.definition import Exercise
from nbtriton.extensions.lessons.figures import batch_frame, batch_rows, picture_of
from nbtriton.extensions.lessons.running import ScenarioRun, run, traced
from nbtriton.extensions.lessons.scenarios import (
    SCENARIO,
    SCENARIOS,
    Scenario,
    ScenarioSettings,
    preferred_of,
)
from nbtriton.extensions.lessons.scenes import figure_scenes, stage_scenes
from nbtriton.extensions.lessons.stage import FigurePicture
from nbtriton.model.config import is_ensemble
from nbtriton.options.table import signed
from nbtriton.widgets.show import KeptViews, display, has_kernel, live_wanted, makes_views_only
from nbtriton.widgets.static import StaticView, marked

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.extensions.lessons.live import FigureWidget
    from nbtriton.runtime.engine import Server


# Figures that can be played at the same time; of an older one the picture stays.
_WIDGETS = 16


class Figure:
    """A figure of the scheduler; shows itself, and can be changed.

    Attributes
    ----------
    scenario : Scenario
        As it is now, with what was changed on the page.
    exercise : Exercise or None
        What is to be predicted before it shows what happens.
    """

    def __init__(self, scenario_run: ScenarioRun, exercise: Exercise | None = None) -> None:
        self._first = self._scenario_run = scenario_run
        self.exercise = exercise
        self._lock = threading.RLock()
        self._widget: FigureWidget | None = None
        self._handle: Any = None
        self._mark: list[str] = []
        self._moved = -1
        self._hidden = False
        if exercise is not None:
            known = Progress.of_user().read().get(exercise.key, {})
            self._hidden = not known.get("solved")

    # -- what it knows -------------------------------------------------------------------------

    @property
    def scenario(self) -> Scenario:
        """Models and arrivals as they are now."""
        return self._scenario_run.scenario

    @property
    def batches(self) -> pd.DataFrame:
        """One row for each batch, in the order in which they left; times in milliseconds."""
        return batch_frame(self._scenario_run)

    @property
    def finding(self) -> str:
        """One sentence about what scenario_run."""
        return self._picture().finding

    def _picture(self) -> FigurePicture:
        return picture_of(self._scenario_run, hidden=self._hidden)

    # -- changes -------------------------------------------------------------------------------

    @signed(SCENARIO)
    def change(self, **changes: Unpack[ScenarioSettings]) -> Figure:
        """Run it anew with other arrivals or settings, and redraw it.

        Parameters
        ----------
        **changes
            See `ScenarioSettings`.

        Raises
        ------
        InvalidArgumentError, ConfigError
            What cannot be read, and what Triton would refuse; the figure stays as it was.

        Examples
        --------
        >>> nt.lessons.figure("one_instance").change(instances=2).finding
        'slow has 2 instances, and up to 2 batches ran at once: 2 of 4 requests waited, the longest for 20 ms.'
        """
        with self._lock:
            self._scenario_run = run(self.scenario.changed(**changes))
            self._redraw()
        return self

    def reset(self) -> Figure:
        """Show it as it was at first."""
        with self._lock:
            self._scenario_run = self._first
            self._redraw()
        return self

    def _handle_command(self, content: dict[str, Any]) -> None:
        """The reader changed something on the page; this may be any thread."""
        with self._lock:
            self._moved, problem = -1, ""
            try:
                self._obey(content)
            except TritonError as error:
                problem = error.message + (f" ({error.hint})" if error.hint else "")
            self._redraw(problem)

    def _obey(self, content: dict[str, Any]) -> None:
        kind = content.get("kind")
        if kind == "edit":
            changes: dict[str, Any] = {
                str(name): _value(str(name), value) for name, value in content["changes"].items()
            }
            self._scenario_run = run(self.scenario.changed(**changes))
        elif kind == "move":
            self._move(int(content["request"]), float(content["at_ms"]))
        elif kind == "reset":
            self._scenario_run = self._first
        elif kind == "show":
            self._hidden = False
        elif kind == "check" and self.exercise is not None:
            mark = check(None, self.exercise, _answer(str(content.get("answer", ""))))
            self._mark = _mark_lines(mark)
            self._hidden = self._hidden and not mark.correct

    def _move(self, at: int, at_ms: float) -> None:
        arrivals = list(self.scenario.arrivals)
        if not 0 <= at < len(arrivals):
            return
        moved = replace(arrivals[at], at_ms=max(0.0, round(at_ms, 3)))
        arrivals[at] = moved
        self._scenario_run = run(self.scenario.changed(arrivals=arrivals))
        self._moved = next(k for k, one in enumerate(self.scenario.arrivals) if one is moved)

    def _redraw(self, problem: str = "") -> None:
        if self._widget is not None:
            with self._widget.hold_sync():
                self._send()
                self._widget.problem = problem
        if not problem and self._handle is not None:
            self._handle.update(self._form())

    # -- what is shown -------------------------------------------------------------------------

    @property
    def widget(self) -> FigureWidget:
        """What a page shows instead of the picture."""
        from nbtriton.extensions.lessons.live import FigureWidget  # anywidget

        with self._lock:
            if self._widget is None or self._widget.comm is None:  # never shown, or closed
                self._widget = FigureWidget(self._handle_command)
                self._send()
                _widgets.keep(self._widget)
            return self._widget

    def _send(self) -> None:
        """Write everything into the traits of the widget: one message."""
        widget = self._widget
        assert widget is not None
        picture = self._picture()
        with widget.hold_sync():
            widget.title, widget.finding = picture.title, picture.finding
            widget.stages = [
                [to_json(stage.scene), stage.places, list(stage.plot)]
                for stage in stage_scenes(picture)
            ]
            widget.moments = [[moment.at_ms, moment.words] for moment in picture.moments]
            widget.span_ms = picture.span_ms
            ticks = nice_ticks(0.0, picture.span_ms, 40)
            widget.grid_ms = ticks[1] - ticks[0]
            # What is to be predicted is not changed before.
            widget.fields = [] if self._hidden else _fields(self.scenario)
            widget.question = self.exercise.question if self.exercise and self._hidden else ""
            widget.mark = self._mark
            widget.moved = self._moved

    def static(self) -> StaticView:
        """Return it as a picture, with its batches as a table."""
        picture = self._picture()
        scenes = figure_scenes(picture)
        words = _text(picture)
        parts = [f'<div class="nbt-figure nbt-static">{fitting(scenes)}']
        if self._hidden and self.exercise is not None:
            parts.append(self.exercise._repr_html_())
            words = f"{words}\n{self.exercise!r}"
        else:
            moments = [[f"{moment.at_ms:g}", moment.words] for moment in picture.moments]
            parts.append(
                "<details><summary>moment by moment</summary>"
                f"{table_html(('at_ms', 'what happens'), moments)}</details>"
            )
            rows = [
                [", ".join(value) if isinstance(value, list) else value for value in row.values()]
                for row in batch_rows(self._scenario_run)
            ]
            columns = tuple(batch_rows(self._scenario_run)[0]) if rows else ("batches",)
            parts.append(
                f"<details><summary>the batches as a table</summary>{table_html(columns, rows)}</details>"
            )
        return StaticView("".join(parts) + "</div>", words, to_svg(scenes[-1]))

    def _form(self) -> StaticView:
        """Return the static form, with the mark of the live one where that can be shown."""
        static = self.static()
        if not live_wanted():
            return static
        data = self.widget.widget_data() if makes_views_only() else {}
        return StaticView(marked(self.widget.place, static.html), static.text, static.svg, data)

    def save(self, path: str | Path) -> Path:
        """Write it to a file: ``.svg``, ``.html`` or text, by the file's ending."""
        return self.static().save(path)

    def __repr__(self) -> str:
        return self.static().text

    def _repr_mimebundle_(self, **_options: object) -> dict[str, Any]:
        return self._form()._repr_mimebundle_()

    def _ipython_display_(self) -> None:
        # With a handle: what is changed on the page is what the notebook saves.
        if has_kernel():
            self._handle = display(self._form(), display_id=True)
        else:
            display(self.static())


# A page asks them for nothing, but sends what the reader changes, so they live on.
_widgets = KeptViews(_WIDGETS)


@signed(SCENARIO)
def figure(
    what: str | Scenario | Exercise | Server,
    model: str = "",
    *,
    request_count: int = 12,
    **changes: Unpack[ScenarioSettings],
) -> Figure:
    """Draw what the scheduler does with a few requests, to be played, stepped through and changed.

    Parameters
    ----------
    what : str, Scenario, Exercise or Server
        One of ``two_models``, ``one_instance``, ``three_instances``, ``batch_forms``,
        ``sequence_slots`` and ``ensemble_request``; what `nbtriton.lessons.scenario` or
        `nbtriton.lessons.predict_batches` made; or a server, with a model whose newest requests are shown.
    model : str
        Of a server.
    request_count : int
        Of a server: how many of the clients' newest ones.
    **changes
        See `ScenarioSettings`.

    Returns
    -------
    Figure
        ``.batches`` is a DataFrame, ``.finding`` a sentence; ``change()`` runs it anew. What a server
        did is shown as it was; changed, it is what the schedulers would do with the recorded arrivals
        and mean execution times.

    Raises
    ------
    InvalidArgumentError, ConfigError, NotFoundError
        No such figure, or nothing that it could be made of.

    Examples
    --------
    >>> nt.lessons.figure("batch_forms").finding
    'While request 1 ran, requests 2, 3 and 4 gathered: they left together at 20 ms, as one batch.'
    >>> nt.lessons.figure("batch_forms", dynamic_batching=False).batches["rows"].tolist()
    [1, 1, 1, 1, 1]
    """
    if isinstance(what, Exercise):
        if what.scenario is None or changes:
            raise InvalidArgumentError(
                f"exercise '{what.name}' has no scenario"
                if what.scenario is None
                else f"exercise '{what.name}' is drawn as it is asked",
                hint="@nt.lessons.predict_batches makes one that has",
            )
        return Figure(run(what.scenario), what)
    if isinstance(what, str):
        if what not in SCENARIOS:
            raise InvalidArgumentError(
                f"there is no figure '{what}'",
                hint=nearest(what, SCENARIOS) or ", ".join(SCENARIOS),
            )
        what = SCENARIOS[what]()
    if isinstance(what, Scenario):
        return Figure(run(what.changed(**changes)))
    if not hasattr(what, "requests"):
        raise InvalidArgumentError(
            f"{type(what).__name__} is nothing that a figure is made of",
            hint="a name, a scenario, an exercise, or a server and a model",
        )
    if not model:
        raise InvalidArgumentError("of which model?", hint="nt.lessons.figure(server, 'm')")
    made = Figure(traced(what, model, requests=request_count))
    return made.change(**changes) if changes else made


_LABELS = {
    "arrivals": "requests at (ms)",
    "instances": "instances",
    "execution_ms": "execution (ms)",
    "max_batch_size": "max_batch_size",
    "dynamic_batching": "dynamic_batching",
    "max_queue_delay_us": "queue delay (µs)",
    "preferred": "preferred sizes",
}


def _fields(scenario: Scenario) -> list[list[Any]]:
    """Return what can be changed on the page: name, label, kind and value of each."""
    found: list[tuple[str, str, Any]] = [("arrivals", "text", scenario.arrivals_text)]
    models = [model for model in scenario.models if not is_ensemble(model.config)]
    config = models[0].config
    found.append(("instances", "number", str(sum(one.count for one in config.instance_group))))
    if len(models) == 1 and len(models[0].times_ms) == 1:
        found.append(("execution_ms", "number", f"{models[0].times_ms[0][1]:g}"))
    if config.max_batch_size:
        found.append(("max_batch_size", "number", str(config.max_batch_size)))
    if config.max_batch_size and not config.HasField("sequence_batching"):
        batching = config.dynamic_batching
        found.append(("dynamic_batching", "checkbox", config.HasField("dynamic_batching")))
        found.append(("max_queue_delay_us", "number", str(batching.max_queue_delay_microseconds)))
        sizes = " ".join(map(str, preferred_of(config)))
        found.append(("preferred", "text", sizes))
    return [[name, _LABELS[name], kind, value] for name, kind, value in found]


def _value(name: str, given: object) -> object:
    """Read what the reader typed."""
    words = str(given).replace(",", " ").split()
    if name == "arrivals":
        return str(given)
    if name == "dynamic_batching":
        return bool(given)
    try:
        if name == "preferred":
            return [int(word) for word in words]
        if name == "execution_ms":
            return float(words[0])
        return int(words[0])
    except (ValueError, IndexError):
        raise InvalidArgumentError(
            f"{_LABELS.get(name, name)}: '{given}' is no number", hint="such as 2"
        ) from None


def _answer(typed: str) -> object:
    """Read ``[1, 3]``, ``1, 3`` or ``1 3``."""
    words = typed.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words:
        return ...
    try:
        return [ast.literal_eval(word) for word in words]
    except (ValueError, SyntaxError):
        raise InvalidArgumentError(f"'{typed}' is no answer", hint="such as [1, 3]") from None


def _mark_lines(mark: Mark) -> list[str]:
    lines = [{True: "right", False: "wrong", None: "open"}[mark.correct], mark.verdict]
    lines += mark.feedback.splitlines()
    if mark.shows_hint:
        lines.append(f"Hint: {mark.exercise.hint}")
    return [*lines, mark.note] if mark.note else lines


def _text(picture: FigurePicture) -> str:
    """Return it for a terminal."""
    models = [
        TimelineLanes(
            model.name,
            model.instances,
            tuple(
                Bar(
                    one.lane, one.begin_ms, one.end_ms, one.rows, len(one.labels), one.mark,
                    max(
                        (one.begin_ms - r.arrival_ms for r in picture.requests
                         if r.model == at and r.label in one.labels),
                        default=0.0,
                    ),
                )
                for one in picture.batches
                if one.model == at
            ),
            (),
        )
        for at, model in enumerate(picture.models)
    ]  # fmt: skip
    lines = [picture.title]
    if picture.predicted:
        return "\n".join([*lines, picture.finding])
    return "\n".join(
        [*lines, timeline_text(models, span_ms=picture.span_ms, finding=picture.finding)]
    )
