"""Reasons: a word for machines, sentences for operators, and a remedy."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple, Self

from loadmanager.core.domain.settings import KEYS

_SETTING = re.compile(r"\{([=#])(\w+)\}")


class ReasonEntry(NamedTuple):
    """Definition of a reason. In texts `{name}` is a figure of `why`, `{=key}` a setting's key with its value."""

    word: str
    sentences: tuple[str, ...]
    remedies: tuple[str, ...]


def entry(word: str, *sentences: str, remedy: str | tuple[str, ...] = ()) -> ReasonEntry:
    """Define a reason. The first sentence whose figures all exist is used, and the first such remedy.

    A field of `PlannerSettings` is replaced by its key: `{=field}` with the value, `{#field}` alone.
    """
    remedies = (remedy,) if isinstance(remedy, str) else remedy
    return ReasonEntry(word, tuple(map(_with_keys, sentences)), tuple(map(_with_keys, remedies)))


def _with_keys(text: str) -> str:
    return _SETTING.sub(lambda found: KEYS[found[2]] if found[1] == "#" else f"{{={KEYS[found[2]]}}}", text)


class Reason(enum.StrEnum):
    """Reason of a decision: its word is the log field, the metric label and the value in the history.

    The class has no members: each subclass has those of one subject, declared as `NAME = entry("name", ...)`.
    `core.diagnosis.reason_catalogue` knows all of them and reads stored words.
    """

    _value_: str
    sentences: tuple[str, ...]
    remedies: tuple[str, ...]

    def __new__(cls, word: str, sentences: tuple[str, ...], remedies: tuple[str, ...]) -> Self:
        self = str.__new__(cls, word)
        self._value_ = word
        self.sentences, self.remedies = sentences, remedies
        return self
