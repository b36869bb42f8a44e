"""Bundle lineage: everything in a history about a bundle, and about those with overlapping ranges, across terms.

| table | contribution |
|---|---|
| decisions | steps with the verdicts behind them, and verdicts without a step |
| moves | one entry each, with its end, and its predicted and measured effect |
| operations | operator commands on the bundle, its namespace, or a broker that owned it |
| events | boundaries of its namespace, leaders, lost brokers that had owned it, gaps |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.names import BundleName, BundleRange, InvalidNameError
from loadmanager.core.domain.plan import Verdict
from loadmanager.history.gaps import GAP, TERM_BEGAN
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import DECISIONS, EVENTS, MOVES, OPERATIONS
from loadmanager.wire.checkpoint_codec import unquoted
from loadmanager.wire.lineage_bodies import BundleLineage, LineageEntry

MOST_ENTRIES = 1_000

_CUT, _ELECTED, _BROKER_GONE = "namespace", "leader_elected", "broker_gone"
_EVENTS = (_CUT, _ELECTED, _BROKER_GONE, TERM_BEGAN, GAP)
_CUT_ANEW = '{"ranges"'
_NEVER_DONE = ("preview_shed", "preview_drain")
_PLANNED = "plan_executed"

Row = dict[str, Any]


def read_lineage(
    history: History,
    name: BundleName,
    from_ms: int,
    to_ms: int,
    most: int = MOST_ENTRIES,
    on_fault: OnFault | None = None,
) -> BundleLineage:
    """Return the lineage of a hash range, its newest entries. Unusable files go to `on_fault`."""
    entries = _LineageBuilder(history, name, from_ms, to_ms, on_fault).entries()
    kept = entries[-most:]
    return BundleLineage(bundle=str(name), since=from_ms, until=to_ms, omitted=len(entries) - len(kept), entries=kept)


class _LineageBuilder:
    def __init__(self, history: History, name: BundleName, from_ms: int, to_ms: int, on_fault: OnFault | None) -> None:
        self._history = history
        self._namespace = str(name.namespace)
        self._prefix = f"{self._namespace}/"
        self._range = name.range
        self._bounds = (from_ms, to_ms)
        self._on_fault = on_fault

    def entries(self) -> list[LineageEntry]:
        entries = [*self._decisions(), *self._moves()]
        brokers = {each for entry in entries for each in (entry.source, entry.destination) if each}
        entries += self._events(brokers)
        entries += self._operations(brokers, planned=any(entry.reason == _PLANNED for entry in entries))
        entries.sort(key=lambda entry: (entry.epoch, entry.sequence))
        return list(_merge_repeats(entries))

    def _concerns(self, bundle: str | None) -> bool:
        """Return True if the bundle is this one or overlaps with it."""
        if not bundle or not bundle.startswith(self._prefix):
            return False
        try:
            other = BundleRange.parse(bundle.removeprefix(self._prefix))
        except InvalidNameError:
            return False
        return other.lower < self._range.upper and self._range.lower < other.upper

    def _scan(self, table: str) -> Iterator[pa.RecordBatch]:
        return self._history.scan(table, *self._bounds, on_fault=self._on_fault)

    def _decisions(self) -> Iterator[LineageEntry]:
        for batch in self._scan(DECISIONS):
            about = {*self._rows_about(batch, "steps", "bundle"), *self._rows_about(batch, "verdicts", "subject")}
            for row in batch.take(pa.array(sorted(about), pa.int64())).to_pylist():
                if row["kind"] not in _NEVER_DONE:
                    yield from self._decision(row)

    def _rows_about(self, batch: pa.RecordBatch, column: str, field: str) -> list[int]:
        """Return the rows that name a bundle of this namespace."""
        lists = batch.column(column)
        names = pc.list_flatten(lists).field(field)
        rows: list[int] = pc.list_parent_indices(lists).filter(pc.starts_with(names, self._prefix)).unique().to_pylist()
        return rows

    def _decision(self, row: Row) -> Iterator[LineageEntry]:
        verdicts: dict[str, list[Verdict]] = {}
        for each in row["verdicts"] or ():
            verdicts.setdefault(each["subject"], []).append(_verdict(each))
        moved = set()
        for step in row["steps"] or ():
            if self._concerns(step["bundle"]):
                moved.add(step["bundle"])
                because = [*verdicts.get(step["source"] or "", ()), *verdicts.get(step["bundle"], ())]
                sentence = ". ".join(each.sentence() for each in because if each.acted) or _words(step["reason"])
                yield _entry(
                    row, row["kind"], step["bundle"], sentence, step["reason"] or "",
                    source=step["source"], destination=step["destination"],
                )  # fmt: skip
        for subject, about in verdicts.items():
            if self._concerns(subject) and subject not in moved:
                for each in about:
                    yield _entry(
                        row, row["kind"], subject, each.sentence(), each.verdict.value,
                        acted=each.acted, detail=dict(each.why),
                    )  # fmt: skip

    def _moves(self) -> Iterator[LineageEntry]:
        """Yield one entry per move, at its begin, or at its end if another leader began it."""
        begun: dict[tuple[int, int], LineageEntry] = {}
        for batch in self._scan(MOVES):
            mask = pc.starts_with(batch.column("bundle").cast(pa.string()), self._prefix)
            for row in batch.filter(mask).to_pylist():
                if not self._concerns(row["bundle"]):
                    continue
                place = (row["epoch"], row["sequence"] if row["kind"] == "began" else row["move"] or -1)
                if place not in begun:
                    begun[place] = _entry(
                        row, "move", row["bundle"], "", row["reason"] or "",
                        source=row["source"], destination=row["destination"],
                    )  # fmt: skip
                _add_to_move(begun[place], row)
        for entry in begun.values():
            entry.sentence = _describe_move(entry)
            yield entry

    def _events(self, brokers: set[str]) -> Iterator[LineageEntry]:
        before: list[str] | None = None
        for batch in self._scan(EVENTS):
            wanted = pc.is_in(batch.column("kind").cast(pa.string()), pa.array(_EVENTS))
            for row in batch.filter(wanted).to_pylist():
                kind, subject = row["kind"], row["subject"]
                body = orjson.loads(row["body"]) if row["body"] and kind in (TERM_BEGAN, GAP) else {}
                if kind == _ELECTED:
                    yield _entry(row, "leader", None, f"{subject} leads, epoch {row['epoch']}")
                elif kind in (TERM_BEGAN, GAP):
                    gap = body if kind == GAP else body.get("gap") and {**body["gap"], "previous": body["previous"]}
                    if gap:
                        yield _entry(row, "gap", None, f"rows may be missing: {gap['why']}", detail=gap)
                elif kind == _BROKER_GONE and subject in brokers:
                    yield _entry(row, kind, None, f"{subject} is gone: its bundles go to others", source=subject)
                elif kind == _CUT and subject == self._namespace and (row["body"] or "").startswith(_CUT_ANEW):
                    after = self._parts(orjson.loads(row["body"])["ranges"])
                    if before is not None and after != before:
                        sentence = f"cut anew: {', '.join(before)} became {', '.join(after)}"
                        yield _entry(row, "cut", None, sentence, detail={"before": before, "after": after})
                    before = after

    def _parts(self, ranges: Iterable[str]) -> list[str]:
        return [each for each in ranges if self._concerns(f"{self._prefix}{each}")]

    def _operations(self, brokers: set[str], *, planned: bool) -> Iterator[LineageEntry]:
        """Yield operator commands on the bundle, its namespace, or a broker that owned it; and executed plans."""
        for row in self._history.rows(OPERATIONS, *self._bounds, on_fault=self._on_fault):
            path = row["path"]
            text = f"{path} {row['before']} {row['after']}"
            concerns = (
                path.endswith((self._namespace, f"{self._namespace}/unload"))
                or any(self._concerns(f"{self._prefix}{word[:21]}") for word in text.split(self._prefix)[1:])
                or any(f"/brokers/{broker}/" in path for broker in brokers)
                or (planned and path.endswith("/execute"))
            )
            if concerns:
                sentence = f"{row['operation']} by {row['who']} from {row['address']}: {row['status']}"
                detail = {name: row[name] for name in ("who", "address", "path", "status", "request_id")}
                yield _entry(row, "operation", None, sentence, detail=detail)


def _entry(row: Row, kind: str, bundle: str | None, sentence: str, reason: str = "", **others: Any) -> LineageEntry:  # noqa: ANN401 - fields
    return LineageEntry(
        at=row["at_ms"],
        last_at=row["at_ms"],
        epoch=row["epoch"],
        sequence=row["sequence"],
        kind=kind,
        bundle=bundle,
        sentence=sentence,
        reason=reason,
        **others,
    )


def _verdict(recorded: Row) -> Verdict:
    why = unquoted(orjson.loads(recorded["why"] or "{}"))
    return Verdict(recorded["subject"], reason_of(recorded["reason"]), acted=recorded["acted"], why=why)


def _add_to_move(entry: LineageEntry, row: Row) -> None:
    detail = entry.detail
    match row["kind"]:
        case "began":
            detail |= {"imbalance": row["imbalance_before"], "predicted": row["imbalance_after"]}
        case "measured":
            detail |= {"measured": row["imbalance_after"]}
        case ended:
            entry.acted = ended == "done"
            entry.destination = row["destination"] if entry.acted else entry.destination
            detail |= {"end": ended, "outcome": row["outcome"]}
            if row["started_ms"] is not None:
                detail["tookMs"] = row["ended_ms"] - row["started_ms"]
            if error := orjson.loads(row["detail"] or "{}").get("error"):
                detail["error"] = error


def _describe_move(move: LineageEntry) -> str:
    detail = move.detail
    match detail.get("end"):
        case "done":
            outcome = "moved" if move.destination else "released"
        case "kept":
            outcome = f"not moved: {detail.get('error') or _words(str(detail['outcome']))}; its owner kept it"
        case _:
            outcome = "moving; its end is not recorded"
    took = f" in {detail['tookMs']} ms" if "tookMs" in detail else ""
    figures = [f"{name} {detail[name]:.3g}" for name in ("imbalance", "predicted", "measured") if detail.get(name)]
    return f"{outcome}{took} ({_words(move.reason)}){': ' if figures else ''}{', '.join(figures)}"


def _words(reason: str | None) -> str:
    return (reason or "").replace("_", " ")


def _merge_repeats(entries: Iterable[LineageEntry]) -> Iterator[LineageEntry]:
    """Merge repeats of a non-decision with the same reason into one entry with a count."""
    last: dict[tuple[str, str | None], LineageEntry] = {}
    for entry in entries:
        key = (entry.kind, entry.bundle)
        former = last.get(key)
        if former is not None and not entry.acted and not former.acted and former.reason == entry.reason:
            former.times, former.last_at = former.times + 1, entry.at
            former.sentence, former.detail = entry.sentence, entry.detail
            continue
        last[key] = entry
        yield entry
