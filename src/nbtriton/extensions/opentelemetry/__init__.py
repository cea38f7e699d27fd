"""Traces as OpenTelemetry spans (docs/tracing.md).

A completed trace determines the spans and their times; the SDK batches and sends them. No global tracer provider is
set: the user's program may have one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from time import monotonic_ns, time_ns
from typing import Any

from nbtriton.common.packages import needed
from nbtriton.runtime.engine import Activity, SpanContext, Trace, TraceSample
from nbtriton.serving.frontends.tracing import SPAN_NUMBERS, OpenTelemetry

# https://www.w3.org/TR/trace-context/#traceparent-header; later versions may add fields.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


# Spans of one trace have one offset: it changes only if the clock was set, or the machine was suspended.
_JUMP_NS = 100_000_000


def read_traceparent(parent: str, state: str = "") -> SpanContext | None:
    """Return the client's span from its header fields; None without a valid one.

    Examples
    --------
    >>> read_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").flags
    1
    >>> read_traceparent("00-00000000000000000000000000000000-b7ad6b7169203331-01")
    """
    found = _TRACEPARENT.fullmatch(parent.strip())
    if found is None or (found[4] and parent.startswith("00")):
        return None
    trace_id, span_id, flags = (int(found[at], 16) for at in (1, 2, 3))
    if not trace_id or not span_id:
        return None
    return SpanContext(trace_id, span_id, flags & 1, state)


class SpanExport:
    """Export of completed traces to a collector, on a thread of the SDK.

    Parameters
    ----------
    options : OpenTelemetry

    Raises
    ------
    UnsupportedError
        The packages of the extra ``otel`` are missing.
    """

    def __init__(self, options: OpenTelemetry) -> None:
        with needed("trace mode opentelemetry", package="opentelemetry"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        self.options = options
        self._resource = Resource.create(
            {"service.name": "triton-inference-server", **options.resource}
        )
        self._scope = InstrumentationScope("triton-server")
        url = options.url if "://" in options.url else f"http://{options.url}"
        # The SDK refuses a batch larger than the queue; Triton's does not.
        largest = min(options.bsp_max_export_batch_size, options.bsp_max_queue_size)
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=url),
            max_queue_size=options.bsp_max_queue_size,
            schedule_delay_millis=options.bsp_schedule_delay,
            max_export_batch_size=largest,
        )
        self._offset_ns = 0

    def settings(self) -> dict[str, str]:
        """Return the settings as Triton reports them."""
        options = self.options
        given = {"url": options.url} if options.url != OpenTelemetry().url else {}
        if options.resource:
            given["resource"] = ",".join(f"{k}={v}" for k, v in options.resource.items())
        return given | {name: str(getattr(options, name)) for name in SPAN_NUMBERS}

    parent = staticmethod(read_traceparent)

    def export(self, sample: TraceSample, remote: SpanContext | None) -> None:
        """Queue the spans of a completed trace.

        Parameters
        ----------
        sample : TraceSample
        remote : SpanContext or None
            The client's span.
        """
        assert sample.span is not None
        # Traces have the times of `time.monotonic_ns`, which stands while the machine is suspended.
        offset_ns = time_ns() - monotonic_ns()
        if abs(offset_ns - self._offset_ns) > _JUMP_NS:
            self._offset_ns = offset_ns
        spans = {0: sample.span}
        around: list[Activity] = []
        for trace in sample.traces:
            around += [*trace.before, *trace.after]
            if trace.span is not None:
                spans[trace.id] = trace.span
        if sample.timestamps:
            for trace in sample.traces:
                if trace.model and trace.activities:
                    self._export_request(trace, spans[trace.parent_id])
        self._export_span(
            "InferRequest", sample.span, remote, sample.start_ns, monotonic_ns(), around
        )

    def close(self) -> None:
        """Send the queued spans and end the thread."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _export_request(self, trace: Trace, parent: SpanContext) -> None:
        """Export a request's span and the span of its execution."""
        assert trace.span is not None
        moments = [each for each in trace.activities if isinstance(each, Activity)]
        computing = [each for each in moments if each.name.startswith("COMPUTE_")]
        if computing:
            first, last = computing[0].ns, computing[-1].ns
            self._export_span("compute", trace.span.child(), trace.span, first, last, computing)
        attributes: dict[str, Any] = {
            "triton.model_name": trace.model,
            "triton.model_version": trace.version,
            "triton.trace_id": trace.id,
            "triton.trace_parent_id": trace.parent_id,
        }
        if trace.request_id:
            attributes["triton.request_id"] = trace.request_id.encode(
                errors="backslashreplace"  # it may not be UTF-8
            ).decode()
        rest = [each for each in moments if each not in computing]
        first, last = moments[0].ns, moments[-1].ns
        self._export_span(trace.model, trace.span, parent, first, last, rest, attributes)

    def _export_span(
        self,
        name: str,
        span: SpanContext,
        parent: SpanContext | None,
        start_ns: int,
        end_ns: int,
        activities: Iterable[Activity],
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanKind

        events = [Event(each.name, timestamp=each.ns + self._offset_ns) for each in activities]
        self._processor.on_end(
            ReadableSpan(
                name,
                context=_context(span),
                parent=None if parent is None else _context(parent),
                resource=self._resource,
                attributes=attributes,
                events=events,
                kind=SpanKind.SERVER,
                instrumentation_scope=self._scope,
                start_time=start_ns + self._offset_ns,
                end_time=end_ns + self._offset_ns,
            )
        )


def _context(span: SpanContext) -> Any:
    from opentelemetry.trace import SpanContext as Context
    from opentelemetry.trace import TraceFlags, TraceState

    state = TraceState.from_header([span.state]) if span.state else None
    return Context(span.trace_id, span.span_id, False, TraceFlags(span.flags), state)
