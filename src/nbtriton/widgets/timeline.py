"""Requests and batches over time, on the page: zoomed and walked through, and live while requests come."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any, TypeVar
from weakref import ref

import traitlets

from nbtriton.drawing.scene import fitting, to_svg
from nbtriton.drawing.timeline import Span, TimelineLanes, timeline_scenes, timeline_text
from nbtriton.lab.explain.timeline import Timeline, mark_of, marks, read_timeline
from nbtriton.lab.explain.trace import ModelRecords
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.widgets.activity import little_endian
from nbtriton.widgets.publisher import most_read, reading_gap_for
from nbtriton.widgets.selection import SelectingView, spanning
from nbtriton.widgets.show import KeptViews, live_wanted, makes_views_only
from nbtriton.widgets.static import StaticView, marked
from nbtriton.widgets.view import asset, movement_of

# Per frame, for all models together: five times a second, that is more than a picture can show.
_MOST = 200
_LEAST = 10
# How often strips are looked for, if there are none: records have to be read for them.
_NO_STRIPS_S = 5.0
_MOST_SPANS = 500
# Per model when a page opens: more than the recorder keeps by default.
_MOST_AT_ONCE = 4096
# A batch may be recorded later than one that ended after it and was already sent.
_LATE_NS = 100_000_000
# Static timelines that can still be zoomed; older ones are pictures.
_SNAPSHOTS = 8

_Record = TypeVar("_Record", BatchRecord, RequestRecord)


class LiveTimeline(SelectingView):
    """Lanes of instances, requests that drop into batches, slots of sequences, resources.

    Parameters
    ----------
    timeline : Timeline
        What is shown first.
    read : callable, optional
        Reads the newest timeline, of all records or of so many of each model; without it nothing changes.
    server : Server, optional
        The server whose records are read while the view is live.
    asked_ms : float, optional
        How far back it shows; by default as far as the newest 40 batches reach. Without `read` it
        shows the span of the timeline, like the picture.
    """

    _esm = asset("timeline.js", "timeline-records.js", "timeline-pen.js", "timeline-words.js")
    _css = asset("timeline.css")

    models: Any = traitlets.List().tag(sync=True)
    marks: Any = traitlets.List().tag(sync=True)
    strips: Any = traitlets.List().tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)
    span_ms = traitlets.Float(0.0).tag(sync=True)
    # 0: as much as the newest batches need
    asked_ms = traitlets.Float(0.0).tag(sync=True)
    # The time of 0 ms: selections are on the clock of `time.monotonic_ns`.
    begin_ns = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        timeline: Timeline,
        read: Callable[..., Timeline] | None = None,
        server: Any = None,
        asked_ms: float | None = None,
        **options: Any,
    ) -> None:
        self._timeline = timeline
        self._read = read
        self._server = server
        self._whole = True
        self._newest_ns = 0
        self._sent: dict[tuple[str, int], int] = {}
        self._counted = 0
        self._strips_due_s = -float("inf")
        self._instances: dict[str, list[str]] = {}
        self._known: Sequence[Any] = ()
        self._marks = {(mark.letter, mark.words): at for at, mark in enumerate(marks())}
        super().__init__(
            title=timeline.name,
            span_ms=timeline.span_ms,
            asked_ms=timeline.span_ms if read is None else asked_ms or 0.0,
            # 0: nothing is recorded yet
            begin_ns=timeline.begin_ns or monotonic_ns(),
            resting=read is None,
            marks=[[mark.letter, mark.role, mark.words, mark.pattern] for mark in marks()],
            models=_structure(timeline.models),
            strips=_strips(timeline.models),
            **options,
        )

    def handle_message(self, content: dict[str, Any]) -> None:
        """Handle a message of a page; the hub is not needed if nothing moves."""
        if self._read is not None:
            super().handle_message(content)
        elif content.get("kind") == "open":
            self.refresh()
        else:
            self._handle_command(content)

    def _handle_opened(self) -> None:
        self._whole = True

    def _handle_command(self, content: dict[str, Any]) -> None:
        if content.get("kind") == "trace":
            timeline = self._timeline if self._read is None else self._read()
            trace = json.dumps(timeline.trace()).encode()
            self.send({**content, "name": f"{timeline.name}-trace.json"}, [trace])
        elif content.get("kind") == "find":
            self.send({**content, "found": self._find(str(content.get("text", "")))})
        else:
            super()._handle_command(content)

    def _find(self, text: str) -> bool:
        """Select the newest request with a number or a client's id; return whether there is one."""
        found = [one for one in self._recorded() if text in (str(one.number), one.request_id)]
        if found:
            # Steps have the id of the request that led to them.
            newest = max(found, key=lambda one: (not one.caller, one.arrival_ns))
            self.selected = spanning([newest], request=newest.number)
        return bool(found)

    def _recorded(self) -> list[RequestRecord]:
        records = (*self._records(0, _MOST_AT_ONCE), *self._inside())
        return [one for each in records for one in (*each.requests, *each.in_flight)]

    def movement(self) -> Hashable:
        """Return a value that changes with every request to one of its models."""
        if self._server is None:
            return ()
        return movement_of(self._server, self._clock(), {model["name"] for model in self.models})

    def refresh(self) -> None:
        """Send everything: a page that opens later reads only the last frame."""
        self._whole = True
        super().refresh()

    def _observe(self) -> bool:
        return True

    def _send_state(self, state: bool) -> None:  # noqa: ARG002 -- all is read as it is sent
        with self.hold_sync():
            if self._read is not None and self._is_outdated():
                begin_s = time.thread_time()
                self._timeline = timeline = self._read(most_read(len(self._known)))
                gap_s = reading_gap_for(time.thread_time() - begin_s)
                self.models = _structure(timeline.models)
                shift = (timeline.begin_ns - self.begin_ns) / 1e6
                self.strips = _strips(timeline.models, shift)
                self._strips_due_s = self._clock() + max(
                    gap_s, 0.0 if self.strips else _NO_STRIPS_S
                )
            self.frame = self._encoded()

    def _is_outdated(self) -> bool:
        """Return True if lanes were added or removed, or the strips, if any, are old."""
        self._known = self._server.models()
        before = self._instances
        self._instances = {one.name: [i.name for i in one.instances] for one in self._known}
        return self._instances != before or self._clock() >= self._strips_due_s

    def _encoded(self) -> bytes:
        """Write everything, or everything not yet sent, as one buffer of little-endian float64.

        ::

            sequence, 1 if it replaces all earlier frames, batches, requests,
            batches since then that were not sent, now, and how many of these batches and requests are in flight;
            then for each batch
                model, lane, begin, end, rows, requests, mark, longest wait, failed, number
            and for each request
                model, lane or -1, arrival, left, answered, rows, failed, number

        Items in flight come last, in every frame, and end now.
        """
        whole, self._whole = self._whole, False
        since = 0 if whole else max(0, self._newest_ns - _LATE_NS)
        if whole:
            self._sent.clear()
        self.frames_sent += 1
        batches: list[tuple[float, ...]] = []
        requests: list[tuple[float, ...]] = []
        lanes = [
            {name: lane for lane, name in enumerate(one.instances)} for one in self._timeline.models
        ]
        most = _MOST_AT_ONCE if whole else max(_LEAST, _MOST // max(1, len(self.models)))
        for at, one in enumerate(self._records(since, most)):
            places, unsent = lanes[at], self._unsent("batch", one.batches, most)
            batches += [self._batch(at, places, batch) for batch in unsent]
            new = self._unsent("request", one.requests, most)
            requests += [self._request(at, places, request) for request in new]
        ended, answered = len(batches), len(requests)
        timeline = self._timeline
        now_ns = monotonic_ns()
        if self._read is None:  # as it was
            now_ns = timeline.begin_ns + int(timeline.span_ms * 1e6)
        for at, one in enumerate(self._inside()):
            places = lanes[at]
            running = [batch._replace(end_ns=now_ns) for batch in one.running[-most:]]
            batches += [self._batch(at, places, batch) for batch in running]
            inside = [request._replace(answered_ns=now_ns) for request in one.in_flight[-most:]]
            requests += [self._request(at, places, request) for request in inside]
        self._sent = {
            key: end for key, end in self._sent.items() if end > self._newest_ns - 2 * _LATE_NS
        }
        executed = self._executed()
        if whole:
            self._counted = executed
        else:
            self._counted += ended
        numbers = array("d", (self.frames_sent, whole, len(batches), len(requests)))
        numbers.extend((max(0, executed - self._counted), self._ms(now_ns)))
        numbers.extend((len(batches) - ended, len(requests) - answered))
        for row in (*batches, *requests):
            numbers.extend(row)
        return little_endian(numbers)

    def _inside(self) -> Sequence[ModelRecords]:
        """Return the items in flight for each model that has records."""
        if self._server is None or self._read is None:
            return self._timeline.records
        in_flight = self._server.in_flight()
        return [
            ModelRecords(name, (), (), (), [one for one in in_flight if one.model == name])
            for name in self._with_records()
        ]

    def _with_records(self) -> list[str]:
        """Return the names of the models that have records."""
        return [model["name"] for model in self.models if model["records"]]

    def _executed(self) -> int:
        """Return how many batches its models have executed, as the server counts them."""
        if self._server is None:
            return 0
        names = {model["name"] for model in self.models}
        return sum(
            one.execution_count
            for one in self._known
            if one.name in names and one.platform != "ensemble"
        )

    def _records(self, since_ns: int, most: int) -> Iterable[ModelRecords]:
        server, span = self._server, {"since_ns": since_ns, "most": most}
        if server is None or self._read is None:
            return self._timeline.records
        return [
            ModelRecords(name, server.requests(name, **span), server.batches(name, **span))
            for name in self._with_records()
        ]

    def _unsent(self, kind: str, records: Sequence[_Record], most: int) -> list[_Record]:
        found = []
        for record in records:
            if isinstance(record, BatchRecord):
                number, end = record.requests[0], record.end_ns
            else:
                number, end = record.number, record.answered_ns
            if (kind, number) not in self._sent:
                self._sent[kind, number] = end
                self._newest_ns = max(self._newest_ns, end)
                found.append(record)
        return found[-most:]

    def _batch(self, at: int, lanes: Mapping[str, int], batch: BatchRecord) -> tuple[float, ...]:
        mark = mark_of(batch)
        return (
            at, lanes.get(batch.instance, 0), self._ms(batch.start_ns), self._ms(batch.end_ns),
            batch.batch_size, len(batch.requests), self._marks.get((mark.letter, mark.words), len(self._marks) - 1),
            batch.queue_ns / 1e6, batch.failed, batch.requests[0],
        )  # fmt: skip

    def _request(
        self, at: int, lanes: Mapping[str, int], request: RequestRecord
    ) -> tuple[float, ...]:
        batch = request.batch
        left = batch.start_ns if batch is not None else request.answered_ns
        return (
            at, -1 if batch is None else lanes.get(batch.instance, -1),
            self._ms(request.arrival_ns), self._ms(left), self._ms(request.answered_ns),
            request.size, bool(request.status), request.number,
        )  # fmt: skip

    def _ms(self, at_ns: int) -> float:
        return (at_ns - self.begin_ns) / 1e6

    def static(self) -> TimelineView:
        """Return the newest batches as a picture."""
        return timeline_view(self._timeline if self._read is None else self._read())


def live_timeline(
    server: Any, name: str, *, span_ms: float | None = None, **options: Any
) -> LiveTimeline:
    """Make the live timeline of a model; parameters as for `read_timeline`."""

    def read(most: int | None = None) -> Timeline:
        return read_timeline(server, name, span_ms, most=most)

    return LiveTimeline(read(), read, server, span_ms, **options)


def _structure(models: Sequence[TimelineLanes]) -> list[dict[str, Any]]:
    """Return the part that is sent only when it changes."""
    return [
        {"name": one.name, "lanes": list(one.lanes), "records": not (one.strips and not one.lanes)}
        for one in models
    ]


def _strips(models: Sequence[TimelineLanes], shift_ms: float = 0.0) -> list[list[Any]]:
    def encoded(span: Span) -> list[Any]:
        return [span.begin_ms + shift_ms, span.end_ms + shift_ms, span.label, span.level]

    return [
        [at, strip.name, [*map(encoded, strip.spans[-_MOST_SPANS:])]]
        for at, one in enumerate(models)
        for strip in one.strips
    ]


@dataclass(frozen=True, slots=True, repr=False)
class TimelineView(StaticView):
    """Requests and batches over time; saved as ``.json`` it is a trace that Perfetto opens.

    Attributes
    ----------
    timeline : Timeline
        The part that is drawn, and everything recorded.
    """

    timeline: Timeline | None = None
    # A result in `Out` keeps no server.
    _server: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    # The one that pages show, once there is one: a selection is in it.
    _live: list[LiveTimeline] = field(default_factory=list, repr=False, compare=False)

    def _shown(self) -> LiveTimeline:
        assert self.timeline is not None
        if not self._live or self._live[0].comm is None:
            shown = LiveTimeline(self.timeline, server=self._server and self._server())
            shown.selected = self._live[0].selected if self._live else {}
            self._live[:] = [shown]
        return self._live[0]

    @property
    def selection(self) -> Any:
        """The requests that are selected on the page, as a DataFrame."""
        return self._shown().selection

    def select(self, value: Any) -> None:
        """Select in all views of the page, as `SelectingView.select`."""
        self._shown().select(value)

    def _display_(self) -> LiveTimeline:
        """Return what marimo shows."""
        return self._shown()

    def trace(self) -> dict[str, Any]:
        """Return everything recorded in Chrome's trace event format."""
        assert self.timeline is not None
        return self.timeline.trace()

    def save(self, path: str | Path) -> Path:
        """Write it to a file: the trace as ``.json``, else as `StaticView.save`."""
        path = Path(path)
        if path.suffix != ".json":
            return StaticView.save(self, path)
        path.write_text(json.dumps(self.trace()), encoding="utf-8")
        return path

    def _repr_mimebundle_(self, **_options: object) -> dict[str, Any]:
        bundle = StaticView._repr_mimebundle_(self)
        if self.timeline is None or not live_wanted():
            return bundle
        widget = self._shown()
        _snapshots.keep(widget)
        bundle["text/html"] = marked(widget.place, self.html)
        return {**bundle, **(widget.widget_data() if makes_views_only() else {})}


# A page asks them for their contents when it shows them, so they must stay alive.
_snapshots = KeptViews(_SNAPSHOTS)


def timeline_view(timeline: Timeline, server: Any = None) -> TimelineView:
    """Return a timeline as a picture, which a page turns into a view that can be zoomed."""
    models, span_ms, finding = timeline.models, timeline.span_ms, timeline.finding
    scenes = timeline_scenes(models, span_ms=span_ms, finding=finding)
    words = timeline_text(models, span_ms=span_ms, finding=finding)
    html = f'<div class="nbt-timeline nbt-static">{fitting(scenes)}</div>'
    return TimelineView(
        html, words, to_svg(scenes[1]), timeline=timeline, _server=server and ref(server)
    )


def timeline_picture(timeline: Timeline) -> StaticView:
    """Return a timeline as one small picture: many of them stand in a notebook, so each is there once."""
    models, span_ms, finding = timeline.models, timeline.span_ms, timeline.finding
    scene, *_ = timeline_scenes(models, span_ms=span_ms, finding=finding)
    html = f'<div class="nbt-timeline nbt-static">{fitting([scene])}</div>'
    return StaticView(html, finding)
