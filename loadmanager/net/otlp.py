"""OpenTelemetry export: spans over OTLP/HTTP to a collector.

Only a fraction of lookups starts a trace, because there are many; the leader's own decisions and moves always do. Work
that belongs to a caller's trace is exported if the caller sampled it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from aiohttp import web
from opentelemetry.context import Context, attach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes as AnyAttributes

from loadmanager import __version__
from loadmanager.net.tracing import Attributes, Handler, Tracing, Trail

_PATH = "/v1/traces"
_PATIENCE_S = 5
SAMPLED_REQUESTS = 0.01
"""Fraction of requests that start a trace if the client sends none: enough of thousands of lookups a second. A client
that needs more sends a sampled `traceparent`.
"""
_FAILED = 500
_FORMAT = TraceContextTextMapPropagator()


class CollectorTracing(Tracing):
    """Exports spans of `service` to the collector at `endpoint` (its URL without path), in a background thread. Spans
    that cannot be sent are dropped.
    """

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        resource = Resource({"service.name": service, "service.instance.id": instance, "service.version": __version__})
        sampler = ParentBased(_PartOfRequests(SAMPLED_REQUESTS))
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False, span_limits=SpanLimits(max_links=32))
        exporter = OTLPSpanExporter(endpoint.rstrip("/") + _PATH, timeout=_PATIENCE_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("loadmanager", __version__)

    def close(self) -> None:
        self._provider.shutdown()

    def headers(self) -> dict[str, str]:
        carrier = dict[str, str]()
        _FORMAT.inject(carrier)
        return carrier

    def serving(self, route: str, handler: Handler) -> Handler:
        async def traced(request: web.Request) -> web.StreamResponse:
            given = _FORMAT.extract(request.headers, Context())
            attributes = {"http.request.method": request.method, "http.route": route, "url.path": request.path}
            name = f"{request.method} {route}"
            with self._tracer.start_as_current_span(name, given, SpanKind.SERVER, attributes) as span:
                response = await handler(request)
                span.set_attribute("http.response.status_code", response.status)
                if response.status >= _FAILED:
                    span.set_status(StatusCode.ERROR)
                return response

        return traced

    @contextmanager
    def span(self, name: str, attributes: Attributes, of: Iterable[Trail] = ()) -> Iterator[None]:
        spans = [trail.span for trail in of if isinstance(trail, _SpanTrail)]
        parent = set_span_in_context(spans[0]) if spans else None
        links = [Link(span.get_span_context()) for span in spans[1:]]
        with self._tracer.start_as_current_span(name, parent, attributes=dict(attributes), links=links):
            yield

    def here(self) -> Trail:
        return _SpanTrail(get_current_span())

    def begin(self, name: str, attributes: Attributes) -> Trail:
        return _SpanTrail(self._tracer.start_span(name, attributes=dict(attributes)))


class _SpanTrail(Trail):
    def __init__(self, span: Span) -> None:
        self.span = span

    def enter(self) -> None:
        attach(set_span_in_context(self.span))

    def end(self, error: Exception | None = None) -> None:
        if error is not None:
            self.span.set_status(Status(StatusCode.ERROR, str(error)))
        self.span.end()


class _PartOfRequests(Sampler):
    """Sampler that keeps a fraction of new request traces, and all other new traces."""

    def __init__(self, ratio: float) -> None:
        self._of_requests = TraceIdRatioBased(ratio)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: AnyAttributes = None,
        links: Sequence[Link] | None = None,
        trace_state: object = None,
    ) -> SamplingResult:
        del trace_state
        by = self._of_requests if kind is SpanKind.SERVER else ALWAYS_ON
        return by.should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self) -> str:
        return f"PartOfRequests({self._of_requests.get_description()})"
