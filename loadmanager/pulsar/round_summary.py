"""Summary of a round for operators: short, the heaviest moves first, and each reason once.

entry                                            in the summary
-----                                            --------------
a stall, its end                                 first
moves that Pulsar made, or did not make          grouped by reason, the heaviest `SHOWN` of each; the rest is counted
first owners, splits, bundles of brokers that    counted in one sentence; they alone make no paragraph
left, moves no longer wanted, our own moves
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
    ComparisonReason.FIRST_OWNER: "placed at a lookup",
    ComparisonReason.OWNER_LEFT: "without an owner, as their broker left",
    ComparisonReason.PULSAR_SPLIT: "split or new by a split",
    ComparisonReason.NO_LONGER_WANTED: "no longer to be moved",
    ComparisonReason.MOVED_BY_US: "moved by us",
}
_TOLD = frozenset((*_FIRST, *PULSARS_MOVES, *WE_ALONE))


def is_worth_a_paragraph(entries: Iterable[ComparisonEntry]) -> bool:
    """Tell if any entry needs a paragraph."""
    return any(entry.reason in _TOLD for entry in entries)


def format_entries(entries: Sequence[ComparisonEntry]) -> list[str]:
    """Return the lines of a paragraph, without the time."""
    shown: set[str] = set()
    lines = [_format_entry(entry, shown) for entry in entries if entry.reason in _FIRST]
    for reason in [*PULSARS_MOVES, *WE_ALONE]:
        group = sorted((entry for entry in entries if entry.reason is reason), key=lambda entry: -entry.load)
        lines += [_format_entry(entry, shown) for entry in group[:SHOWN]]
        if len(group) > SHOWN:
            load = sum(entry.load for entry in group[SHOWN:]) / _MIB
            lines.append(f"... and of {len(group) - SHOWN} more bundles the same, {round_figure(load)} MiB/s in all.")
    counted = list(format_counts(Counter(entry.reason for entry in entries)))
    return [*lines, *([f"Other bundles: {', '.join(counted)}."] if counted else [])]


def format_counts(counts: Mapping[ComparisonReason, int]) -> Iterator[str]:
    """Yield a phrase for each reason that is only counted."""
    for reason, text in _COUNTED.items():
        if counts.get(reason):
            yield f"{counts[reason]} {text}"


def format_level(level: UsageLevel | None) -> str:
    """Return a sentence about the imbalance of the brokers."""
    if level is None:
        return "No broker has reported."
    return (
        f"Of {level.brokers} brokers {level.busiest} is the busiest with {round_figure(100 * level.highest)} %,"
        f" {level.max_over_mean:.2f} times the mean of {round_figure(100 * level.mean)} %."
    )


def as_record(entry: ComparisonEntry) -> dict[str, Any]:
    """Return the entry as a JSON object. Figures in `why` are exact; those in sentences are rounded."""
    return {
        "at": entry.at_ms,
        "subject": entry.verdict.subject,
        "reason": entry.reason.value,
        "moved": entry.verdict.acted,
        "sentence": _round_figures(entry.verdict).sentence(),
        "remedy": _round_figures(entry.verdict).remedy(),
        "bytesPerS": entry.load,
        "why": dict(entry.verdict.why),
        "because": [
            {
                "subject": each.subject,
                "reason": each.verdict.value,
                "sentence": _round_figures(each).sentence(),
                "remedy": _round_figures(each).remedy(),
                "why": dict(each.why),
            }
            for each in entry.because
        ],
    }


def round_figure(figure: float) -> str:
    """Return a figure with two significant digits; from 10 on as a whole number."""
    if abs(figure) >= 10:  # noqa: PLR2004 - two digits before the point
        return f"{figure:.0f}"
    return f"{figure:.1f}".removesuffix(".0")


def _format_entry(entry: ComparisonEntry, shown: set[str]) -> str:
    """Return the entry with its explanations and one remedy; those in `shown` are left out."""
    own = _round_figures(entry.verdict)
    parts = [f"{own.subject}: {own.sentence()}." if own.subject != "pulsar" else f"{own.sentence()}."]
    whose = "We" if entry.reason in PULSARS_MOVES else "Pulsar"
    explained = [_round_figures(each) for each in entry.because[:SHOWN]]
    parts += [_once(f"{whose}, of {each.subject}: {each.sentence()}.", shown) for each in explained]
    helps = [f"What would help: {each.remedy()}." for each in (own, *explained) if each.remedy()]
    parts += [_once(text, shown) for text in helps[:1]]
    shown.update(helps)
    return " ".join(part for part in parts if part)


def _once(text: str, shown: set[str]) -> str:
    if text in shown:
        return ""
    shown.add(text)
    return text


def _round_figures(verdict: Verdict) -> Verdict:
    """Return the verdict with rounded figures; settings stay exact."""
    why: dict[str, Figure] = {
        name: round_figure(figure) if isinstance(figure, float) and name.islower() else figure
        for name, figure in verdict.why.items()
    }
    return replace(verdict, why=why)
