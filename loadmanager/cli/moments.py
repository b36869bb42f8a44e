"""Moments as options have them, and as people read them: always UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from loadmanager.cli.exits import EXIT_CONFIGURATION, fail


def read_moment(option: str, text: str | None) -> int | None:
    """Milliseconds since 1970; the process ends, naming the option, when the text is none."""
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"{option} {text!r}: expected a time such as 2026-01-31T12:00:00, or milliseconds since 1970",
            EXIT_CONFIGURATION,
        )
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def show_moment(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
