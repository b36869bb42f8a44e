"""What a reason is: a word, what it says to people, and what would have to change for another decision."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple, Self

from loadmanager.core.domain.settings import KEYS

_SETTING = re.compile(r"\{([=#])(\w+)\}")


class ReasonEntry(NamedTuple):
    """In texts `{name}` stands for a figure of `why`, and `{=key}` for a setting's key and its value."""

    word: str
    sentences: tuple[str, ...]
    remedies: tuple[str, ...]


def entry(word: str, *sentences: str, remedy: str | tuple[str, ...] = ()) -> ReasonEntry:
    """Of several sentences, or remedies, the first is said that has all its figures.

    Where they name a field of `PlannerSettings`, its key is said: `{=field}` with the value, `{#field}` alone.
    """
    remedies = (remedy,) if isinstance(remedy, str) else remedy
    return ReasonEntry(word, tuple(map(_with_keys, sentences)), tuple(map(_with_keys, remedies)))


def _with_keys(text: str) -> str:
    return _SETTING.sub(lambda found: KEYS[found[2]] if found[1] == "#" else f"{{={KEYS[found[2]]}}}", text)


class Reason(enum.StrEnum):
    """Why something was done or was not done: its word is the log field, the metric label and what the history keeps.

    It has no members: each subclass has those of one subject, declared as `NAME = entry("name", ...)`. What was written
    down is read by `core.diagnosis.reason_catalogue`, which knows them all.
    """

    _value_: str
    sentences: tuple[str, ...]
    remedies: tuple[str, ...]

    def __new__(cls, word: str, sentences: tuple[str, ...], remedies: tuple[str, ...]) -> Self:
        self = str.__new__(cls, word)
        self._value_ = word
        self.sentences, self.remedies = sentences, remedies
        return self
