"""For how long what was reported stands: the rule that all windows follow.

What a report says of a bundle stands from when it came until the first of these:

- anybody's next report of this bundle, or of one that has hashes in common with it: it was split or merged
- `broker_gone` of the broker that reported it
- the end of its leader's term: `term_ended`, or for want of it the next `term_began`
- the end of the range
- 15 minutes have passed: a broker reports at least so often

So a bundle is carried by one broker at a time, and what it carries is counted once. What a report says of the broker
itself, its resources, stands likewise until the broker's next report.

What comes later is what (`at_ms`, `epoch`, `sequence`) say; of reports of one millisecond the last one stands. What
a leader recorded after the end of its term is left out, and ends nothing: the next one records the same. What was
imported (epoch 0) has no term.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.core.load import IntArray
from loadmanager.history.gaps import IMPORTED, TERM_BEGAN, TERM_ENDED
from loadmanager.history.schemas import KEYS
from loadmanager.pipeline.arrays import NEVER_MS, codes_of, differs, named

STANDS_MS = 900_000
"""How long a report stands at the most."""

BROKER_GONE, BROKER_REGISTERED = "broker_gone", "broker_registered"
FLEET_EVENTS = (BROKER_GONE, BROKER_REGISTERED, TERM_BEGAN, TERM_ENDED)
"""The kinds of events that say for how long reports stand, and who is there."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends reports before their time.

    `terms` has when the terms of epochs ended, without those of which it is not known. `gone` has the brokers that
    went (`broker`), and when: `at_ms`, `epoch` and `sequence`.
    """

    terms: Mapping[int, int]
    gone: pa.Table


def ends_of(events: pa.Table, epochs: Iterable[int]) -> Ends:
    """From rows of `fleet_events`; the terms of these epochs, which have reports, and of the events' own."""
    began, ended = (_first_ms(events, kind) for kind in (TERM_BEGAN, TERM_ENDED))
    begun = sorted(began)
    terms = {}
    for epoch in {*epochs, *events.column("epoch").unique().to_pylist()}:
        after = bisect_right(begun, epoch)
        if epoch in ended:
            terms[epoch] = ended[epoch]
        elif epoch > IMPORTED and after < len(begun):
            terms[epoch] = began[begun[after]]
    gone = events.filter(pc.equal(events.column("kind"), BROKER_GONE)).select([*KEYS, "subject"])
    return Ends(dict(sorted(terms.items())), gone.rename_columns([*KEYS, "broker"]))


def standing(broker_reports: pa.Table, ends: Ends, end_ms: int) -> pa.Table:
    """Each report that stands, in their order: `at_ms`, `epoch`, `sequence`, `broker` and until when. That is
    `until_ms` of itself, and `ends_ms` what it says of bundles if nobody reports them before.

    From `clean_broker_reports` of a range that ends before `end_ms`.
    """
    reports = _of_their_terms(broker_reports, ends.terms).filter(pc.field("at_ms") < end_ms)
    by, brokers = codes_of(reports.column("broker"))
    gone = _of_their_terms(ends.gone, ends.terms)
    gone = gone.append_column("by", _codes_in(brokers, gone.column("broker")))
    gone = gone.filter(pc.is_valid(gone.column("by")))
    keys = [_joined(reports.column(name), gone.column(name)) for name in KEYS]
    whose = _joined(by, gone.column("by"))
    next_ms, gone_ms = _what_follows(keys, whose, reports=len(by))
    at_ms, epoch, sequence = (each[: len(by)] for each in keys)
    ends_ms = np.minimum(np.minimum(at_ms + STANDS_MS, end_ms), np.minimum(gone_ms, _terms(epoch, ends.terms)))
    order = np.lexsort((sequence, epoch, at_ms))
    columns = {"at_ms": at_ms, "epoch": epoch, "sequence": sequence}
    columns |= {"until_ms": np.minimum(ends_ms, next_ms), "ends_ms": ends_ms}
    found = {name: pa.array(values[order], pa.int64()) for name, values in columns.items()}
    return pa.table(found).add_column(len(KEYS), "broker", named(by[order], brokers))


def _first_ms(events: pa.Table, kind: str) -> dict[int, int]:
    """When the first event of this kind was, by epoch. What was imported has no term."""
    is_one = pc.and_(pc.equal(events.column("kind"), kind), pc.greater(events.column("epoch"), IMPORTED))
    found = events.filter(is_one).group_by("epoch").aggregate([("at_ms", "min")])
    return dict(zip(found.column("epoch").to_pylist(), found.column("at_ms_min").to_pylist(), strict=True))


def _codes_in(names: pa.Array, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """What `codes_of` made of these names; null for others."""
    return pc.index_in(column.cast(pa.string()), value_set=names)


def _joined(one: IntArray | pa.ChunkedArray, other: pa.ChunkedArray) -> IntArray:
    return np.concatenate([np.asarray(each, dtype=np.int64) for each in (one, other)])


def _what_follows(keys: list[IntArray], whose: IntArray, reports: int) -> tuple[IntArray, IntArray]:
    """When the same broker's next row is, and when it is gone the next time: that is what rows after `reports` say."""
    at_ms, epoch, sequence = keys
    order = np.lexsort((sequence, epoch, at_ms, whose))
    sorted_ms = at_ms[order]
    ends_run = np.roll(differs(whose[order]), -1)  # the first row of all differs, so the last one ends a run
    next_ms = np.full(len(order), NEVER_MS)
    next_ms[order] = np.where(ends_run, NEVER_MS, np.roll(sorted_ms, -1))
    went = np.flatnonzero(order >= reports)
    first = np.searchsorted(went, np.arange(len(order)), side="right")
    gone_ms = np.full(len(order), NEVER_MS)
    has = np.flatnonzero(first < len(went))
    then = went[first[has]]
    is_same = whose[order[then]] == whose[order[has]]
    gone_ms[order[has[is_same]]] = sorted_ms[then[is_same]]
    return next_ms[:reports], gone_ms[:reports]


def _of_their_terms(rows: pa.Table, terms: Mapping[int, int]) -> pa.Table:
    """Without what leaders recorded after the ends of their terms: it ends nothing either."""
    at_ms, epoch = (rows.column(name).to_numpy() for name in ("at_ms", "epoch"))
    return rows.filter(pa.array(at_ms <= _terms(epoch, terms)))


def _terms(epochs: IntArray, terms: Mapping[int, int]) -> IntArray:
    """When the term of each of these ended."""
    found, which = np.unique(epochs, return_inverse=True)
    return np.array([terms.get(int(epoch), NEVER_MS) for epoch in found], dtype=np.int64)[which]
