"""OpenTelemetry traces of lookups, decisions and moves across processes, exported over OTLP/HTTP to a collector.

Only a fraction of requests starts a trace, because there are many lookups. Work that no request caused, such as a
round, always does. Work that belongs to a caller's trace is exported if the caller sampled it. The current trace
follows the task, and crosses processes in the header `traceparent` (W3C Trace Context).
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from aiohttp import web
from opentelemetry.context import Context, attach
from opentelemetry.trace import INVALID_SPAN, Link, NoOpTracer, Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from loadmanager import __version__
from loadmanager.errors import ConfigurationError
from loadmanager.util.optional_dependencies import how_to_install

if TYPE_CHECKING:  # of the optional extra `otel`
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.sampling import Sampler

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Attributes = Mapping[str, str | int]

SAMPLED_REQUESTS = 0.01
"""Fraction of requests that start a trace if the client sends none: enough of thousands of lookups a second. A client
that needs more sends a sampled `traceparent`.
"""
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_COLLECTOR = re.compile(r"https?://[^/\s]+/?")  # without a path: the exporter appends v1/traces
"""Variable with the URL of the collector. It is OpenTelemetry's own, as those for headers and certificates are."""
_EXPORT_TIMEOUT_S = 5
_MOST_LINKS = 32
_FAILED = 500
_FORMAT = TraceContextTextMapPropagator()
_NO_TRACER = NoOpTracer()


@dataclass(frozen=True, slots=True)
class Tracing:
    """Spans of this process: of `requests`, and of its `own` work. Without an `exporter` nothing is traced."""

    requests: Tracer = _NO_TRACER
    own: Tracer = _NO_TRACER
    exporter: SpanProcessor | None = None

    def close(self) -> None:
        """Export remaining spans; takes a few seconds at most."""
        if self.exporter is not None:
            self.exporter.shutdown()

    def headers(self) -> dict[str, str]:
        """Return the trace headers of an outgoing request."""
        carrier = dict[str, str]()
        _FORMAT.inject(carrier)
        return carrier

    def serving(self, route: str, handler: Handler) -> Handler:
        """Wrap a handler so that each request gets a span in its caller's trace."""
        if self.exporter is None:
            return handler

        async def traced(request: web.Request) -> web.StreamResponse:
            given = _FORMAT.extract(request.headers, Context())
            attributes = {"http.request.method": request.method, "http.route": route, "url.path": request.path}
            name = f"{request.method} {route}"
            with self.requests.start_as_current_span(name, given, SpanKind.SERVER, attributes) as span:
                response = await handler(request)
                span.set_attribute("http.response.status_code", response.status)
                if response.status >= _FAILED:
                    span.set_status(StatusCode.ERROR)
                return response

        return traced

    def span(self, name: str, attributes: Attributes, of: Iterable[Span] = ()) -> AbstractContextManager[Span]:
        """Open a span in the trace of the first span in `of`, linked to the others; of none, in the current trace."""
        if self.exporter is None:
            return nullcontext(INVALID_SPAN)
        spans = [*islice(of, 1 + _MOST_LINKS)]
        parent = set_span_in_context(spans[0]) if spans else None
        links = [Link(span.get_span_context()) for span in spans[1:]]
        return self.own.start_as_current_span(name, parent, attributes=dict(attributes), links=links)

    def begin(self, name: str, attributes: Attributes) -> Span:
        """Begin a span that may cross tasks, until `end_span`."""
        return self.own.start_span(name, attributes=dict(attributes))


OFF = Tracing()


def enter_span(span: Span) -> None:
    """Make the span current in this context (of `contextvars`)."""
    attach(set_span_in_context(span))


def end_span(span: Span, error: Exception | None = None) -> None:
    """End the span, as failed if there is an error."""
    if error is not None:
        span.set_status(StatusCode.ERROR, str(error))
    span.end()


def tracing_of(service: str, instance: str) -> Tracing:
    """Build tracing for the collector in the environment.

    Raises `ConfigurationError` for an invalid URL, and if the collector's packages are not installed.
    """
    collector = os.environ.get(ENDPOINT, "")
    if not collector:
        return OFF
    if not _COLLECTOR.fullmatch(collector):
        raise ConfigurationError(f"{ENDPOINT}: expected a URL such as http://collector:4318 (got {collector!r})")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        fix = f"is not installed; install it with: {how_to_install('otel')}"
        raise ConfigurationError(f"{ENDPOINT}: {error.name} {fix}") from None
    resource = Resource({"service.name": service, "service.instance.id": instance, "service.version": __version__})
    exporter = BatchSpanProcessor(OTLPSpanExporter(timeout=_EXPORT_TIMEOUT_S))

    def tracer(root: Sampler) -> Tracer:
        """Return a tracer whose new traces are sampled by `root`."""
        provider = TracerProvider(ParentBased(root), resource, shutdown_on_exit=False)
        provider.add_span_processor(exporter)
        return provider.get_tracer("loadmanager", __version__)

    return Tracing(tracer(TraceIdRatioBased(SAMPLED_REQUESTS)), tracer(ALWAYS_ON), exporter)
