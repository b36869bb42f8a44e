"""Logging for every process: structlog, one event a line, to standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging(*, json_lines: bool, level: str = "info") -> None:
    """Send events at `level` and above to standard error, as JSON lines or as readable text.

    Log records of libraries take the same form, from warnings on. Of kazoo only errors: the store logs the state of its
    session itself.
    """
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()  # escapes control characters itself
    if not json_lines:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        *([] if json_lines else [_without_commands]),
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("kazoo").setLevel(logging.ERROR)


def _without_commands(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters in log values: untrusted text must not control a terminal."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def printable(text: str) -> str:
    """Escape unprintable characters in the text, except line ends."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )
