"""What a decision is: the steps to take, and for everything looked at, why or why not."""

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
"""Follows the sentence of a bundle that could not be placed where it is pinned."""

_FIELD = re.compile(r"\{(=?)(\w+)\}")


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What became of one broker, bundle or the whole cluster (`subject`), and the numbers that decided.

    In `why`, a setting that decided stands under its configuration key; units are in the names.
    """

    subject: str
    verdict: Reason
    acted: bool
    why: Mapping[str, Figure] = field(default_factory=dict)

    def sentence(self) -> str:
        """The verdict for an operator to read, without its subject."""
        remark = _FIELD.sub(self._fill, _PIN_NOT_KEPT) if "pin_not_kept" in self.why else ""
        return self._sentence() + remark

    def remedy(self) -> str:
        """What would have to change for another verdict, without a full stop; empty where only the load decides."""
        return self._first(self.verdict.remedies) or ""

    def _sentence(self) -> str:
        text = self._first(self.verdict.sentences)
        if text is not None:
            return text
        words = self.verdict.value.replace("_", " ").capitalize()
        figures = ", ".join(f"{name} {_text(value)}" for name, value in self.why.items())
        return f"{words}: {figures}" if figures else words

    def _first(self, texts: Iterable[str]) -> str | None:
        """The first of the texts that has all its figures, with them."""
        for text in texts:
            if all(name in self.why for _, name in _FIELD.findall(text)):
                return _FIELD.sub(self._fill, text)
        return None

    def _fill(self, found: re.Match[str]) -> str:
        with_key, name = found.groups()
        text = self._figure(name)
        return f"{name} {text}" if with_key else text

    def _figure(self, name: str) -> str:
        """The figure, with more digits where rounding would make it look like a setting that it is not."""
        figure = self.why[name]
        text = _text(figure)
        settings = [value for key, value in self.why.items() if not key.islower()]
        misleads = isinstance(figure, float) and any(_text(each) == text and each != figure for each in settings)
        return f"{figure:.9g}" if misleads else text


def _text(figure: Figure) -> str:
    return f"{figure:.2f}".rstrip("0").rstrip(".") if isinstance(figure, float) else str(figure)


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
    """Steps in the order they were decided, for the snapshot of this revision: whoever executes them checks each one
    against what is true then. `metrics` are the strategy's figures, if it keeps any.
    """

    revision: int
    taken_at_s: float
    steps: tuple[Assign | Unload, ...]
    verdicts: tuple[Verdict, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)


DependsOn = Mapping[str, object]


def hash_of(cluster: str, kind: str, steps: Sequence[DependsOn]) -> str:
    """The hash of a plan whose steps depend on this. Recordings of before have no cluster."""
    content = {**({"cluster": cluster} if cluster else {}), "kind": kind, "steps": list(steps)}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
