"""Plans: the steps of a decision, and a verdict on everything considered."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.reasons import Reason

Figure = float | int | str

_PIN_NOT_KEPT = "; it is pinned to {pinned_to}, which {pin_not_kept}"
"""Suffix of the sentence on a pinned bundle that could not be placed on its broker."""

_FIELD = re.compile(r"\{(=?)(\w+)\}")


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Decision on one broker, bundle or the whole cluster (`subject`), with the figures behind it.

    In `why`, settings are under their configuration keys; units are part of the names.
    """

    subject: str
    verdict: Reason
    acted: bool
    why: Mapping[str, Figure] = field(default_factory=dict)

    def sentence(self) -> str:
        """Return the verdict as a sentence for operators, without its subject."""
        remark = _FIELD.sub(self._fill, _PIN_NOT_KEPT) if "pin_not_kept" in self.why else ""
        return self._sentence() + remark

    def remedy(self) -> str:
        """Return the change that would lead to another verdict, without a full stop; empty if only load decides."""
        return self._first(self.verdict.remedies) or ""

    def _sentence(self) -> str:
        text = self._first(self.verdict.sentences)
        if text is not None:
            return text
        words = self.verdict.value.replace("_", " ").capitalize()
        figures = ", ".join(f"{name} {_format_figure(value)}" for name, value in self.why.items())
        return f"{words}: {figures}" if figures else words

    def _first(self, texts: Iterable[str]) -> str | None:
        """Format the first of the texts whose figures all exist."""
        for text in texts:
            if all(name in self.why for _, name in _FIELD.findall(text)):
                return _FIELD.sub(self._fill, text)
        return None

    def _fill(self, found: re.Match[str]) -> str:
        with_key, name = found.groups()
        text = self._figure(name)
        return f"{name} {text}" if with_key else text

    def _figure(self, name: str) -> str:
        """Format a figure, with more digits where rounding would make it equal to a setting, or a setting 0."""
        figure = self.why[name]
        text = _format_figure(figure)
        if text == "0" and figure and not name.islower():
            return f"{figure:.2g}"
        settings = [value for key, value in self.why.items() if not key.islower()]
        misleads = isinstance(figure, float) and any(
            _format_figure(each) == text and each != figure for each in settings
        )
        return f"{figure:.9g}" if misleads else text


def _format_figure(figure: Figure) -> str:
    return f"{figure:z.2f}".rstrip("0").rstrip(".") if isinstance(figure, float) else str(figure)


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a free bundle to `destination`."""

    bundle: str
    destination: Registration
    reason: Reason


@dataclass(frozen=True, slots=True)
class Unload:
    """Take a bundle from `source`; with a destination it is a transfer, without one it becomes free."""

    bundle: str
    source: Registration
    destination: Registration | None
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Steps in order of decision, for the snapshot of this revision; the executor checks each against the current
    state. `metrics` are the strategy's figures, if any.
    """

    revision: int
    taken_at_s: float
    steps: tuple[Assign | Unload, ...]
    verdicts: tuple[Verdict, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def unloads(self) -> tuple[Unload, ...]:
        return tuple(step for step in self.steps if isinstance(step, Unload))


DependsOn = Mapping[str, object]


def hash_plan(cluster: str, kind: str, steps: Sequence[DependsOn]) -> str:
    """Hash the preconditions of a plan's steps. `cluster` is empty in old recordings."""
    content = {**({"cluster": cluster} if cluster else {}), "kind": kind, "steps": list(steps)}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
