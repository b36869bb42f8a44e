"""Reading a dump: JSON Lines, with errors that name the line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loadmanager.errors import InvalidRecordError
from loadmanager.wire.dump import DumpLine, decode_line


def read_lines(lines: Iterable[bytes], where: str) -> Iterator[tuple[DumpLine, str]]:
    """Each line that is not blank, and its name in errors. Raises `InvalidRecordError`, also when there is none."""
    number = found = 0
    for number, data in enumerate(lines, start=1):
        name = f"{where}: line {number}"
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRecordError(f"{name}: not UTF-8: {error}") from None
        if text.strip():
            found += 1
            yield decode_line(text, name), name
    if not found:
        raise InvalidRecordError(f"{where}: empty: expected a JSON object on each line")
