"""Tracing: spans of lookups, decisions and moves across processes.

This is how it is when nothing is traced, which costs nothing; `loadmanager.net.otlp` tells a collector of
OpenTelemetry. Which trace something belongs to goes along with its task, and from process to process in the header
`traceparent`, as W3C's Trace Context has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from aiohttp import web

from loadmanager.config import TracingSettings
from loadmanager.errors import ConfigurationError
from loadmanager.util.optional_dependencies import how_to_install

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Attributes = Mapping[str, str | int]


class Trail:
    """A span that other tasks can continue, or several can share."""

    def enter(self) -> None:
        """Make the span current in this context (of `contextvars`)."""

    def end(self, error: Exception | None = None) -> None:
        """End the span."""


NOWHERE = Trail()


class Tracing:
    """Tracing interface; this class does nothing."""

    def close(self) -> None:
        """Export remaining spans; takes a few seconds at most."""

    def headers(self) -> dict[str, str]:
        """Return the trace headers of an outgoing request."""
        return {}

    def serving(self, route: str, handler: Handler) -> Handler:
        """Wrap the handler of a route so that each request gets a span, in the trace of its caller."""
        del route
        return handler

    @contextmanager
    def span(self, name: str, attributes: Attributes, of: Iterable[Trail] = ()) -> Iterator[None]:
        """Open a span in the first trail's trace, linked to the others; without trails in the current trace."""
        del name, attributes, of
        yield

    def here(self) -> Trail:
        """Return the current span."""
        return NOWHERE

    def begin(self, name: str, attributes: Attributes) -> Trail:
        """Begin a span across tasks, until its trail is ended."""
        del name, attributes
        return NOWHERE


OFF = Tracing()


def tracing_of(settings: TracingSettings, service: str, instance: str) -> Tracing:
    """Build tracing from the settings. Raises `ConfigurationError` if OpenTelemetry is configured but not installed."""
    if not settings.otlp_endpoint:
        return OFF
    try:
        from loadmanager.net.otlp import CollectorTracing  # noqa: PLC0415 - needs the optional extra `otel`
    except ModuleNotFoundError as error:
        fix = f"is not installed; install it with: {how_to_install('otel')}"
        raise ConfigurationError(f"{settings.key('otlp_endpoint')}: {error.name} {fix}") from None
    return CollectorTracing(settings.otlp_endpoint, service, instance)
