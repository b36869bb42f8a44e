"""Options `--from` and `--to`: a range of time in a history."""

from __future__ import annotations

from typing import Annotated

import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail
from loadmanager.cli.text.numbers import read_moment

From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Start: ISO 8601 (UTC), or ms since 1970.")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End (exclusive), in the same form.")]


def read_range(from_: str | None, to: str | None) -> tuple[int | None, int | None]:
    """Return the range in ms since 1970. An invalid or empty one ends the process and names the option."""
    from_ms, to_ms = read_moment("--from", from_), read_moment("--to", to)
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        fail(f"--to {to}: expected a moment after --from", EXIT_CONFIGURATION)
    return from_ms, to_ms
