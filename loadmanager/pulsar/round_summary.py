"""Summary of a round for people: short, the heaviest first, and nothing twice.

what was said                                     how it is told
------------------------------------------------  -----------------------------------------------------------------
a stall, its end                                  first
moves of Pulsar's, what it leaves undone          by what is said of them, the heaviest `SHOWN` of each; the others
                                                  are counted
first owners, splits, bundles of brokers that     counted in one sentence, and no reason for a paragraph
left, what we no longer want, our own moves
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadmanager.core.diagnosis.pulsar_comparison import PULSARS_MOVES, STALLS, WE_ALONE, ComparisonEntry
from loadmanager.core.diagnosis.pulsar_tally import UsageLevel
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import ComparisonReason

SHOWN = 5
_MIB = 1024 * 1024
_FIRST = (*STALLS, ComparisonReason.STALL_OVER)
_COUNTED: Mapping[ComparisonReason, str] = {
    ComparisonReason.FIRST_OWNER: "given an owner as somebody asked for them",
    ComparisonReason.OWNER_LEFT: "without their owner, which left",
    ComparisonReason.PULSAR_SPLIT: "split, or made by a split",
    ComparisonReason.NO_LONGER_WANTED: "to be moved by us no more",
    ComparisonReason.MOVED_BY_US: "moved by us",
}
_TOLD = frozenset((*_FIRST, *PULSARS_MOVES, *WE_ALONE))


def is_worth_a_paragraph(entries: Iterable[ComparisonEntry]) -> bool:
    """Return true if an entry is out of the ordinary."""
    return any(entry.reason in _TOLD for entry in entries)


def tell(entries: Sequence[ComparisonEntry]) -> list[str]:
    """A line for each thing that is told, without the time."""
    said: set[str] = set()
    lines = [_told(entry, said) for entry in entries if entry.reason in _FIRST]
    for reason in [*PULSARS_MOVES, *WE_ALONE]:
        group = sorted((entry for entry in entries if entry.reason is reason), key=lambda entry: -entry.load)
        lines += [_told(entry, said) for entry in group[:SHOWN]]
        if len(group) > SHOWN:
            load = sum(entry.load for entry in group[SHOWN:]) / _MIB
            lines.append(f"... and of {len(group) - SHOWN} more bundles the same, {people(load)} MiB/s in all.")
    counted = list(count(Counter(entry.reason for entry in entries)))
    return [*lines, *([f"Other bundles: {', '.join(counted)}."] if counted else [])]


def count(counts: Mapping[ComparisonReason, int]) -> Iterator[str]:
    """Yield a part of a sentence for each reason that is only counted."""
    for reason, text in _COUNTED.items():
        if counts.get(reason):
            yield f"{counts[reason]} {text}"


def tell_level(level: UsageLevel | None) -> str:
    """Return a sentence about the imbalance of the brokers."""
    if level is None:
        return "No broker has reported."
    return (
        f"Of {level.brokers} brokers {level.busiest} is the busiest with {people(100 * level.highest)} %,"
        f" {level.max_over_mean:.2f} times the mean of {people(100 * level.mean)} %."
    )


def as_record(entry: ComparisonEntry) -> dict[str, Any]:
    """The entry as a JSON object; figures are whole, sentences for people."""
    return {
        "at": entry.at_ms,
        "subject": entry.verdict.subject,
        "reason": entry.reason.value,
        "moved": entry.verdict.acted,
        "sentence": _rounded(entry.verdict).sentence(),
        "remedy": _rounded(entry.verdict).remedy(),
        "bytesPerS": entry.load,
        "why": dict(entry.verdict.why),
        "because": [
            {
                "subject": each.subject,
                "reason": each.verdict.value,
                "sentence": _rounded(each).sentence(),
                "remedy": _rounded(each).remedy(),
                "why": dict(each.why),
            }
            for each in entry.because
        ],
    }


def people(figure: float) -> str:
    """Rounded as people say it."""
    if abs(figure) >= 10:  # noqa: PLR2004 - two digits before the point
        return f"{figure:.0f}"
    return f"{figure:.1f}".removesuffix(".0")


def _told(entry: ComparisonEntry, said: set[str]) -> str:
    """The entry, then what explains it and what would help, unless that was `said` before."""
    own = _rounded(entry.verdict)
    parts = [f"{own.subject}: {own.sentence()}." if own.subject != "pulsar" else f"{own.sentence()}."]
    whose = "We" if entry.reason in PULSARS_MOVES else "Pulsar"
    explained = [_rounded(each) for each in entry.because[:SHOWN]]
    parts += [_once(f"{whose}, of {each.subject}: {each.sentence()}.", said) for each in explained]
    helps = [f"What would help: {each.remedy()}." for each in (own, *explained) if each.remedy()]
    parts += [_once(text, said) for text in helps[:1]]
    said.update(helps)
    return " ".join(part for part in parts if part)


def _once(text: str, said: set[str]) -> str:
    if text in said:
        return ""
    said.add(text)
    return text


def _rounded(verdict: Verdict) -> Verdict:
    """With figures as people say them; settings are what they are."""
    why: dict[str, Figure] = {
        name: people(figure) if isinstance(figure, float) and name.islower() else figure
        for name, figure in verdict.why.items()
    }
    return replace(verdict, why=why)
