"""`loadmanager decide`: what a strategy would decide about a cluster, from a dump of it."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
import typer
from typer.core import TyperCommand

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail
from loadmanager.cli.service_runner import given_settings
from loadmanager.cli.text.text_tables import format_table, get_terminal_width, style_text, write_lines
from loadmanager.core.domain.settings import UnknownStrategyError
from loadmanager.errors import InvalidRecordError, LoadManagerError
from loadmanager.lab.decide.dump_decision import DecidedLine, Decider, PlaceDecider, ShedDecider
from loadmanager.lab.decide.split_decision import SplitDecider
from loadmanager.wire.dump_line import DumpLine, decode_line, encode

_NO_TEXT = {
    b"\x1f\x8b": "compressed with gzip",
    codecs.BOM_UTF8: "begins with a byte order mark",
    codecs.BOM_UTF16_LE: "in UTF-16",
    codecs.BOM_UTF16_BE: "in UTF-16",
}
"""Formats that `decide` does not read, by the first bytes of a file."""


class _OptionalSplitName(TyperCommand):
    """Allows `--split` without the name of an algorithm, which Typer does not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer's own context
        words: list[str] = []
        for word, following in zip_longest(args, args[1:], fillvalue="-"):
            words.append("--split=" if word == "--split" and following.startswith("-") else word)
        return super().parse_args(ctx, words)


COMMAND_CLASS = _OptionalSplitName


def decide(
    file: Annotated[
        str, typer.Argument(help="A dump: JSON Lines, one state of the cluster per line; -: standard input.")
    ],
    shed: Annotated[str | None, typer.Option(metavar="NAME", help="Ask this shedding strategy.")] = None,
    place: Annotated[str | None, typer.Option(metavar="NAME", help="Ask this placement strategy.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME]", help="Ask what is to be split, and this algorithm, or the configured one, where."
        ),
    ] = None,
    bundle: Annotated[
        str | None, typer.Option(metavar="BUNDLE", help="The bundle to place or split: tenant/namespace/0x.._0x...")
    ] = None,
    positions: Annotated[
        str | None, typer.Option(metavar="P,...", help="Split positions (hashes) for specified_positions_divide.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting that overrides those of the dump; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Show a strategy's decision about each state in a dump, with the reasons. Nothing is changed."""
    try:
        overrides = given_settings(settings or ())
        if split is None and positions is None:
            decider = _decider(shed, place, bundle, overrides, seed)
        else:
            decider = _split_decider((shed, place), split, bundle, positions, overrides)
        with _open(file) as lines:
            decided = [decider.decide(line, where) for line, where in _read_lines(lines, file)]
    except (LoadManagerError, UnknownStrategyError) as error:
        fail(str(error), EXIT_CONFIGURATION)
    if as_json:
        write_lines(encode(each.to_record()) for each in decided)
    else:
        write_lines(line for number, each in enumerate(decided, start=1) for line in _lines(each, number))


def _decider(
    shed: str | None, place: str | None, bundle: str | None, overrides: Mapping[str, str], seed: int
) -> Decider:
    if (shed is None) == (place is None):
        fail("expected either --shed NAME or --place NAME or --split", EXIT_CONFIGURATION)
    if (place is None) != (bundle is None):
        fail("expected --bundle BUNDLE with --place, and only with it or --split", EXIT_CONFIGURATION)
    if shed is not None:
        return ShedDecider(shed, overrides)
    return PlaceDecider(place or "", bundle or "", overrides, np.random.default_rng(seed))


def _split_decider(
    others: Sequence[str | None],
    split: str | None,
    bundle: str | None,
    positions: str | None,
    overrides: Mapping[str, str],
) -> Decider:
    if split is None:
        fail("expected --positions P,... only with --split", EXIT_CONFIGURATION)
    if any(other is not None for other in others):
        fail("expected either --shed NAME or --place NAME or --split", EXIT_CONFIGURATION)
    return SplitDecider(split, bundle, _positions(positions or ""), overrides)


def _positions(text: str) -> list[int]:
    """Parse comma-separated hashes, decimal or with 0x."""
    try:
        return [int(part, 0) for part in text.split(",") if part.strip()]
    except ValueError:
        fail(f"--positions {text!r}: expected hashes such as 1024 or 0x400, with commas", EXIT_CONFIGURATION)


@contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        if sys.stdin is None:  # the parent process closed it
            fail("-: standard input is closed", EXIT_CONFIGURATION)
        yield sys.stdin.buffer
        return
    try:
        with Path(file).open("rb") as lines:
            yield lines
    except OSError as error:
        fail(f"{file}: {error.strerror}", EXIT_CONFIGURATION)


def _lines(decided: DecidedLine, number: int) -> list[str]:
    width = get_terminal_width()
    lines = [f"{style_text(f'Line {number}', 'bold')}, taken at {decided.taken_at_ms} ms"]
    lines += _decision_lines(decided.decisions, width)
    if decided.candidates is not None:
        lines.append("Drawn from: " + (", ".join(decided.candidates) or "nobody"))
    verdicts = [[verdict.subject, verdict.sentence()] for verdict in decided.verdicts]
    lines += format_table(["Subject", "Why"], verdicts, width)
    if decided.metrics:
        lines.append(", ".join(f"{name} {value:g}" for name, value in decided.metrics.items()))
    return [*lines, ""]


def _decision_lines(decisions: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    if not decisions:
        return ["Nothing to do."]
    is_split = decisions[0]["action"] == "split"
    rows = [
        [
            *(each.get(key) or "-" for key in ("action", "bundle", "source")),
            ", ".join(each["boundaries"]) if is_split else each.get("destination") or "-",
            each["reason"],
        ]
        for each in decisions
    ]
    return format_table(["Action", "Bundle", "From", "At" if is_split else "To", "Reason"], rows, width)


def _read_lines(lines: Iterable[bytes], where: str) -> Iterator[tuple[DumpLine, str]]:
    """Yield each non-blank line with its name in errors. Raises `InvalidRecordError`, also if all lines are blank."""
    number = found = 0
    for number, data in enumerate(lines, start=1):
        name = f"{where}: line {number}"
        for mark, meaning in _NO_TEXT.items():
            if data.startswith(mark):
                raise InvalidRecordError(f"{name}: {meaning}: expected JSON Lines in UTF-8")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRecordError(f"{name}: not UTF-8: {error}") from None
        if text.strip():
            found += 1
            yield decode_line(text, name), name
    if not found:
        raise InvalidRecordError(f"{where}: empty: expected a JSON object on each line")
