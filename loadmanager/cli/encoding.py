"""Standard output on terminals that are not UTF-8: characters that they lack are replaced, so that no command fails."""

from __future__ import annotations

import codecs
import io
import json
import sys

_ERRORS = "loadmanager_replace"
_PLAIN = str.maketrans("─│·▁▂▃▄▅▆▇█", "-|..:-=+*%#")
"""Characters that tables, bars and curves are drawn with."""


def replace_unencodable() -> None:
    """Have every later `print` replace what standard output cannot encode: those of tables and curves by ASCII ones,
    all others by the escapes of JSON, so that JSON stays valid.
    """
    codecs.register_error(_ERRORS, _replace)
    if isinstance(sys.stdout, io.TextIOWrapper):  # not closed by whoever started the process
        sys.stdout.reconfigure(errors=_ERRORS)


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "it is registered for output"
    return json.dumps(error.object[error.start : error.end].translate(_PLAIN))[1:-1], error.end
