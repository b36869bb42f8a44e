"""What of the tables was made of which files: `<out>/_made.json`.

A unit's entry says that its parts may be anything before they are written, and what they are when all of them count. So
what a run was making when it was killed is made anew by the next one.

    clean       by unit, what its clean rows were made of
    windows     by unit, what its windows were made of
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b

import orjson

from loadmanager.history.files import Directory
from loadmanager.pipeline.filesystems import put
from loadmanager.pipeline.units import Grain

MADE = "_made.json"

RULES = 3
"""Of how tables are made. Whoever has rows come out otherwise raises it, and all is made anew."""


@dataclass(frozen=True, slots=True)
class Clean:
    """Digests of the files that the clean rows of a unit were made of, and from when to when rows counted.

    `last_files` have rows that may stand into the next unit.
    """

    files: str
    last_files: str
    from_ms: int
    to_ms: int
    size_bytes: int
    epochs: list[int]


ANYTHING = Clean("", "", 0, 0, 0, [])
"""What the clean rows of a unit may be that was being made when a run was killed; of windows it is an empty string."""


@dataclass(slots=True)
class Made:
    """`history` is its URL, `grain` of which length units are; `batches` is how many a stream has taken in."""

    history: str
    grain: Grain
    rules: int = RULES
    clean: dict[str, Clean] = field(default_factory=dict)
    windows: dict[str, str] = field(default_factory=dict)
    batches: int = 0

    def save(self, directory: Directory) -> None:
        """Raises `OSError`."""
        put(directory, MADE, orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))


def load_made(directory: Directory, history: str, new_grain: Grain) -> Made:
    """What there is of this history by these rules; nothing of any other, and where it cannot be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        with directory.open(f"{directory.root}/{MADE}") as file:
            said = orjson.loads(file.read())
        made = Made(**{**said, "clean": {key: Clean(**each) for key, each in said["clean"].items()}})
        if (made.history, made.rules) == (history, RULES):
            return made
    return Made(history, new_grain)


def digest_of(*parts: object) -> str:
    return blake2b(orjson.dumps(parts), digest_size=12).hexdigest()
