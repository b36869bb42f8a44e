"""An OpenTelemetry collector: receives OTLP from processes and keeps the spans."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.servers import LoopbackServer


@dataclass(frozen=True, slots=True)
class Told:
    """A span and the service that exported it."""

    service: str
    instance: str
    name: str
    trace: str
    span: str
    parent: str
    links: tuple[str, ...]
    is_error: bool
    attributes: dict[str, str | int]


@dataclass(slots=True)
class Collector(LoopbackServer):
    """Items received, in order."""

    told: list[Told] = field(default_factory=list)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/traces", self._take)]

    def of(self, trace: str) -> dict[tuple[str, str], Told]:
        """The spans of a trace by service and name."""
        return {(each.service, each.name): each for each in self.told if each.trace == trace}

    async def _take(self, request: web.Request) -> web.Response:
        content = ExportTraceServiceRequest.FromString(await request.read())
        for resource in content.resource_spans:
            who = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.told += [_told(who, span) for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")


def _told(who: dict[str, str], span: Span) -> Told:
    attributes = {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
    return Told(
        service=who["service.name"],
        instance=who["service.instance.id"],
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=tuple(link.trace_id.hex() for link in span.links),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=attributes,
    )
