"""Reasons: a word for machines, sentences for operators, and a remedy."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Self

from loadmanager.core.domain.settings import KEYS

_SETTING = re.compile(r"\{([=#])(\w+)\}")


@dataclass(slots=True)
class ReasonEntry:
    """Definition of a reason. In texts `{name}` is a figure of `why`, `{=key}` a setting's key with its value."""

    sentences: tuple[str, ...]
    remedies: tuple[str, ...]
    word: str = ""


def entry(*sentences: str, remedy: str | tuple[str, ...] = ()) -> ReasonEntry:
    """Define a reason. The first sentence whose figures all exist is used, and the first such remedy.

    A field of `PlannerSettings` is replaced by its key: `{=field}` with the value, `{#field}` alone.
    """
    remedies = (remedy,) if isinstance(remedy, str) else remedy
    return ReasonEntry(tuple(map(_with_keys, sentences)), tuple(map(_with_keys, remedies)))


def _with_keys(text: str) -> str:
    return _SETTING.sub(lambda found: KEYS[found[2]] if found[1] == "#" else f"{{={KEYS[found[2]]}}}", text)


class _ReasonType(enum.EnumMeta):
    """Metaclass of reasons: the word of an entry is its name in lower case."""

    def __new__(metacls, cls: str, bases: tuple[type, ...], classdict: enum._EnumDict) -> _ReasonType:
        for name, value in classdict.items():
            if isinstance(value, ReasonEntry):
                value.word = name.lower()
        return super().__new__(metacls, cls, bases, classdict)


class Reason(enum.StrEnum, metaclass=_ReasonType):
    """Reason of a decision: its word is the log field, the metric label and the value in the history.

    The class has no members: each subclass has those of one subject, declared as `NAME = entry(...)`.
    `core.diagnosis.reason_catalogue` knows all of them and reads stored words.
    """

    _value_: str
    sentences: tuple[str, ...]
    remedies: tuple[str, ...]

    def __new__(cls, declared: ReasonEntry) -> Self:
        self = str.__new__(cls, declared.word)
        self._value_ = declared.word
        self.sentences, self.remedies = declared.sentences, declared.remedies
        return self
