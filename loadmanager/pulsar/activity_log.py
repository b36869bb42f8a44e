"""Diary of a process beside a Pulsar: the events of each round and their explanation, for operators.

    event                                   in memory, diary.txt    diary.jsonl
    -----                                   --------------------    -----------
    a round with an entry for a paragraph   a paragraph             a line for each entry
    another round                           nothing                 a line for each entry
    an hour without a paragraph             one line                nothing
    the first verdict                       a paragraph             nothing
    a score of an hour, or a day            one line, or a table    nothing; scores have a file of their own

A paragraph is short, with the heaviest moves first, and each reason once:

    entry                                            in the paragraph
    -----                                            ----------------
    a stall, its end                                 first
    moves that Pulsar made, or did not make          grouped by reason, the heaviest `SHOWN` of each; the rest counted
    first owners, splits, bundles of brokers that    counted in one sentence; they alone make no paragraph
    left, moves no longer wanted, our own moves

Both files rotate: a full one becomes `.1`, and so on. A file that cannot be written delays nothing; one warning is
logged until it can be written again.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import orjson
import structlog

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
        **_verdict_record(entry.verdict),
        "moved": entry.verdict.acted,
        "bytesPerS": entry.load,
        "because": [*map(_verdict_record, entry.because)],
    }


def _verdict_record(verdict: Verdict) -> dict[str, Any]:
    rounded = _round_figures(verdict)
    explained = {"sentence": rounded.sentence(), "remedy": rounded.remedy(), "why": dict(verdict.why)}
    return {"subject": verdict.subject, "reason": verdict.verdict.value, **explained}


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


log = structlog.get_logger(__name__)

HOUR_MS = 3_600_000
KEPT = 1_000
_MOST_BYTES = 10 * 1024 * 1024
_FILES = 5


class BoundedFile:
    """Rotating file: at most `files` older ones beside it, each of about `most_bytes` at most."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES, files: int = _FILES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._files = files
        self._is_failing = False

    def append(self, text: str) -> None:
        """Append text; log one warning while the file cannot be written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size >= self._most_bytes:
                self._rotate()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            if not self._is_failing:
                log.warning("diary_not_written", path=str(self._path), error=str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def _rotate(self) -> None:
        """Rename each file to the next number."""
        for number in range(self._files - 1, 0, -1):
            older = self._former(number)
            if older.exists():
                older.replace(self._former(number + 1))
        self._path.replace(self._former(1))

    def _former(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class ActivityLog:
    """Diary. Times are in `zone`; None: the time zone of this machine. Without a `folder` it is in memory only."""

    def __init__(self, folder: Path | None, *, kept: int = KEPT, zone: tzinfo | None = None) -> None:
        self._text_file = None if folder is None else BoundedFile(folder / "diary.txt")
        self._records_file = None if folder is None else BoundedFile(folder / "diary.jsonl")
        self._paragraphs: deque[str] = deque(maxlen=kept)
        self._records: deque[dict[str, Any]] = deque(maxlen=kept)
        self.zone = zone
        self.show: Callable[[str], object] = lambda _: None
        """Called with each paragraph."""
        self._counted: Counter[ComparisonReason] = Counter()
        self._quiet_since_ms: int | None = None
        self._rounds = 0

    def round(self, at_ms: int, entries: Sequence[ComparisonEntry], level: UsageLevel | None, standing: int) -> None:
        """Log a round: the entries since the last one, the imbalance, and `standing`, the number of moves of ours that
        Pulsar does not make.
        """
        self._keep(entries)
        self._rounds += 1
        if self._quiet_since_ms is None:
            self._quiet_since_ms = at_ms
        if is_worth_a_paragraph(entries):
            self.note(at_ms, format_level(level), *format_entries([*entries]))
            return
        self._counted.update(entry.reason for entry in entries)
        if at_ms - self._quiet_since_ms >= HOUR_MS:
            self.note(at_ms, self._summarize_quiet_time(at_ms - self._quiet_since_ms, level, standing))

    def note(self, at_ms: int, first: str, *lines: str) -> None:
        """Write a paragraph, which restarts the hour without one."""
        self.remark(at_ms, first, *lines)
        self._quiet_since_ms, self._rounds = at_ms, 0
        self._counted.clear()

    def remark(self, at_ms: int, first: str, *lines: str) -> None:
        """Write a paragraph that is not about an event."""
        when = datetime.fromtimestamp(at_ms / 1000, self.zone).astimezone(self.zone)
        text = "\n".join([f"{when:%Y-%m-%d %H:%M} {first}", *(f"    {line}" for line in lines)])
        self._paragraphs.append(text)
        if self._text_file is not None:
            self._text_file.append(f"{text}\n")
        with contextlib.suppress(OSError):  # the reader of standard output has exited
            self.show(text)

    def text(self, rounds: int) -> str:
        """Return the last `rounds` paragraphs, the newest last."""
        newest = list(self._paragraphs)[-rounds:]
        return "".join(f"{paragraph}\n" for paragraph in newest)

    def records(self, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` entries as JSON objects, the newest first."""
        return list(self._records)[::-1][:limit]

    def _keep(self, entries: Sequence[ComparisonEntry]) -> None:
        records = [as_record(entry) for entry in entries]
        self._records.extend(records)
        if records and self._records_file is not None:
            self._records_file.append("".join(f"{orjson.dumps(record).decode()}\n" for record in records))

    def _summarize_quiet_time(self, quiet_ms: int, level: UsageLevel | None, standing: int) -> str:
        counted = list(format_counts(self._counted))
        parts = [
            f"Nothing to tell for {round(quiet_ms / 60_000)} min and {self._rounds} rounds. {format_level(level)}",
            f"Bundles: {', '.join(counted)}." if counted else "",
            f"Moves that we would make and Pulsar does not: {standing}." if standing else "",
        ]
        return " ".join(part for part in parts if part)
