"""Spans of a lookup, a decision and a move, over all processes that take part in it.

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
    """A place in a trace that others take up: other tasks, or what is done for several at once."""

    def enter(self) -> None:
        """What is done in this context (of `contextvars`) from now on belongs there."""

    def end(self, error: Exception | None = None) -> None:
        """What was begun with it is over."""


NOWHERE = Trail()


class Tracing:
    """What a process tells of what it does."""

    def close(self) -> None:
        """Tell what was not told yet; takes a few seconds at most."""

    def headers(self) -> dict[str, str]:
        """What tells another process to which trace the request belongs that it is sent."""
        return {}

    def serving(self, route: str, handler: Handler) -> Handler:
        """The handler of that route, with a span for each request, of the trace that the request belongs to."""
        del route
        return handler

    @contextmanager
    def span(self, name: str, attributes: Attributes, of: Iterable[Trail] = ()) -> Iterator[None]:
        """What is done within belongs to the first trail, and is linked to the others; without any, to the task's."""
        del name, attributes, of
        yield

    def here(self) -> Trail:
        """Where the task is now."""
        return NOWHERE

    def begin(self, name: str, attributes: Attributes) -> Trail:
        """A span that several tasks see through, until its trail is ended."""
        del name, attributes
        return NOWHERE


OFF = Tracing()


def tracing_of(settings: TracingSettings, service: str, instance: str) -> Tracing:
    """As configured. `ConfigurationError` where OpenTelemetry is wanted and not installed."""
    if not settings.otlp_endpoint:
        return OFF
    try:
        from loadmanager.net.otlp import CollectorTracing  # noqa: PLC0415 - needs the optional extra `otel`
    except ModuleNotFoundError as error:
        fix = f"is not installed; install it with: {how_to_install('otel')}"
        raise ConfigurationError(f"{settings.key('otlp_endpoint')}: {error.name} {fix}") from None
    return CollectorTracing(settings.otlp_endpoint, settings.otlp_lookup_sample_ratio, service, instance)
