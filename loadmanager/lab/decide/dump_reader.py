"""Reader of dumps: JSON Lines, with errors that name the line."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from loadmanager.errors import InvalidRecordError
from loadmanager.wire.dump_line import DumpLine, decode_line

_NO_TEXT = {
    b"\x1f\x8b": "compressed with gzip",
    codecs.BOM_UTF8: "begins with a byte order mark",
    codecs.BOM_UTF16_LE: "in UTF-16",
    codecs.BOM_UTF16_BE: "in UTF-16",
}
"""What the first bytes of a file say that was not written for `decide`."""


def read_lines(lines: Iterable[bytes], where: str) -> Iterator[tuple[DumpLine, str]]:
    """Each line that is not blank, and its name in errors. Raises `InvalidRecordError`, also when there is none."""
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
