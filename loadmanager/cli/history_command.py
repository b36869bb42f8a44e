"""`loadmanager history`: list the tables of a history, show rows, and import load from other sources.

Exit codes: 0 done; 1 an unusable file or a failing file system; 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import Progress as Bar

from loadmanager.cli.admin.request_command import group, words
from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.text.numbers import MIB, From, To, format_moment, read_range
from loadmanager.cli.text.text_tables import format_table, write_lines
from loadmanager.errors import ConfigurationError, HistoryFileError, LoadManagerError
from loadmanager.history.files import Directory
from loadmanager.history.gaps import find_gaps
from loadmanager.history.load_import import Importer, Progress, json_line
from loadmanager.history.reader import History
from loadmanager.history.synthetic_fleet import SyntheticFleet, import_series, read_series
from loadmanager.history.table_schemas import TABLES, wanted_columns
from loadmanager.util import clock
from loadmanager.util.logging import configure_logging

_BOUNDS = ("range_lower", "range_upper")
_SHOWN_CHARACTERS = 60


history = group("What the leader saw and did: look at it, bring in load from elsewhere.")
_import = group("Bring in load that no leader of ours recorded.")
history.add_typer(_import, name="import")

_Where = Annotated[
    str, typer.Argument(metavar="URL", help="Directory or URL of the history, such as s3://bucket/prefix.")
]
_Into = Annotated[str, typer.Argument(metavar="URL", help="Directory or URL of the history to import into.")]
_Columns = Annotated[str | None, typer.Option(help="Only these columns, separated by commas.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


@history.command("ls")
def ls(url: _Where, as_json: _Json = False) -> None:  # noqa: FBT002 - a flag
    """List the tables with their sizes and time ranges, and the gaps."""
    faults = _Faults()
    with _one_line_errors():
        read = History.existing(url)
        with _progress("tables") as advance:
            infos = []
            for done, name in enumerate(TABLES, 1):
                infos.append(read.info(name, faults))
                advance(done, len(TABLES))
        gaps = find_gaps(read, faults)
    if as_json:
        write_lines(orjson.dumps(each).decode() for each in [*infos, *({"gap": gap} for gap in gaps)])
    else:
        rows = [
            [
                *(each.table, each.files, each.rows, f"{each.size_bytes / MIB:.2f}"),
                *(format_moment(each.from_ms), format_moment(each.to_ms)),
                "-".join(str(epoch) for epoch in dict.fromkeys(each.epochs or ())),
            ]
            for each in infos
        ]
        _print_table(["table", "files", "rows", "MiB", "from", "to", "epochs"], rows)
        if gaps:
            missing = [
                [format_moment(g.from_ms), format_moment(g.to_ms), "?" if g.rows is None else g.rows, g.why]
                for g in gaps
            ]
            _print_table(["missing from", "to", "rows", "because"], missing)
    faults.end()


@history.command("show")
def show(
    url: _Where,
    table: Annotated[str, typer.Argument(help=f"One of {', '.join(TABLES)}.")],
    from_: From = None,
    to: To = None,
    columns: _Columns = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of rows; 0: all.")] = 50,
    as_json: _Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Show rows of a table in the order of recording."""
    faults, wanted = _Faults(), None if columns is None else words(columns)
    with _one_line_errors():
        found = History.existing(url).rows(table, *read_range(from_, to), wanted, faults)
        rows = islice(found, limit) if limit else found
        if as_json:
            write_lines(json_line(row) for row in rows)
        else:
            shown, names = list(rows), wanted_columns(table, wanted).names
            _print_table(names, [[_format_cell(name, row[name]) for name in names] for row in shown])
            if limit and len(shown) == limit:
                print(f"the first {limit} rows; --limit 0 shows all", file=sys.stderr)
    faults.end()


@_import.command("csv")
def csv_series(
    url: _Into,
    files: Annotated[list[Path], typer.Argument(help="timestamp,series,value; or timestamp,value, a file per series.")],
    bundles: Annotated[int, typer.Option(min=1, help="Number of bundles to create.")] = 1000,
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers that own them.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; equal seeds create equal bundles.")] = 1,
    rate: Annotated[float, typer.Option(min=0, help="Mean messages/s of a bundle.")] = 100.0,
    message_bytes: Annotated[float, typer.Option(min=0, help="Mean bytes of a message.")] = 1000.0,
    for_: Annotated[
        float | None, typer.Option("--for", min=1, help="Duration in seconds; default: that of the shortest series.")
    ] = None,
    fill_gaps: Annotated[
        int, typer.Option(min=0, help="Replace up to this many missing values in a row by the last value.")
    ] = 0,
) -> None:
    """Create the load of many bundles from recorded series, by time shifts and heavy-tailed scaling."""
    if brokers > bundles:
        fail(f"--brokers {brokers}: more than --bundles {bundles}", EXIT_CONFIGURATION)
    with _one_line_errors():
        series = read_series(files, fill_gaps)
    fleet = SyntheticFleet(bundles, brokers, seed, rate, message_bytes, for_)
    with _importing(url, f"{len(series)} series, seed {seed}") as importer, _progress("steps") as advance:
        import_series(importer, series, fleet, advance)


class _Faults:
    """Unusable files: each is reported at once, and the exit code is 1 if there were any."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def __call__(self, error: HistoryFileError) -> None:
        if str(error) not in self._reported:
            self._reported.add(str(error))
            print(f"left out: {error}", file=sys.stderr)

    def end(self) -> None:
        if self._reported:
            raise SystemExit(EXIT_FAILURE)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    configure_logging(json_lines=False, level="error")
    try:
        yield
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    except LoadManagerError as error:
        fail(str(error), EXIT_FAILURE)
    except OSError as error:
        fail(f"{error.filename or 'the history'}: {error.strerror or error}", EXIT_FAILURE)


@contextmanager
def _importing(url: str, source: str) -> Iterator[Importer]:
    """Import rows. An interrupted import is closed too: the rows written so far are kept."""
    with _one_line_errors():
        importer = Importer(Directory.of(url), source, clock.now_ms())
        try:
            yield importer
        except KeyboardInterrupt:
            print("interrupted: what was written until now stays", file=sys.stderr)
        importer.finish(clock.now_ms())
    print(f"{importer.reports} reports, {importer.rows} rows in {importer.files} files")


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """Show a progress bar on standard error, if that is a terminal. A total of 0 means unknown."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _format_cell(name: str, value: object) -> str:
    """Format a cell for people, possibly shortened; JSON has the full value."""
    if name == "at_ms" and isinstance(value, int):
        return format_moment(value)
    if name in _BOUNDS and isinstance(value, int):
        return f"0x{value:08x}"
    if isinstance(value, list):
        return f"{len(value)}"
    text = "" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _print_table(headings: list[str], rows: list[list[Any]]) -> None:
    """Print a table at full width, also on narrow terminals."""
    write_lines(format_table(headings, [[str(cell) for cell in row] for row in rows], None))
