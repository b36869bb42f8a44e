from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.recorded import NEVER, NOON_MS, Disk, a_writer, abandon, kinds, record, same
from support.waiting import patience

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.resources import MAX_AMOUNT, HealthFigures
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import recordable
from loadmanager.history.entry_rows import Entry, HistoryEvent, Report
from loadmanager.history.files import Directory
from loadmanager.history.gaps import GAP, TERM_BEGAN, TERM_ENDED, find_gaps
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import EVENTS
from loadmanager.history.writer import HistoryWriter, WriterLimits
from loadmanager.wire.validation import MAX_COUNT, MAX_TOPICS

amounts = st.floats(0, MAX_AMOUNT) | st.floats(0, 1e4) | st.sampled_from([0.0, 0.0005, 0.0015, 1e12, MAX_AMOUNT])
usages = st.floats(-MAX_AMOUNT, MAX_AMOUNT)
counts = st.integers(0, MAX_COUNT)
figures = st.none() | st.floats(0, MAX_AMOUNT)
healths = st.none() | st.builds(HealthFigures, figures, figures, figures).filter(HealthFigures.by_name)
bounds = st.lists(st.integers(0, 0xFFFFFFFF), min_size=2, max_size=2, unique=True).map(sorted)
namespaces = st.sampled_from(["t/ns", "t/ns-2", "another-tenant/a.longer_name"])


@st.composite
def reports(draw: st.DrawFn) -> Report:
    names = draw(
        st.lists(st.tuples(namespaces, bounds), max_size=6).map(
            lambda each: tuple(dict.fromkeys(f"{ns}/0x{lower:08x}_0x{upper:08x}" for ns, (lower, upper) in each))
        )
    )
    rows = len(names)

    def integers(largest: int) -> list[int]:
        return draw(st.lists(st.integers(0, largest), min_size=rows, max_size=rows))

    load = draw(st.lists(amounts, min_size=4 * rows, max_size=4 * rows))
    report = BrokerReport(
        usage=np.array(draw(st.lists(usages, min_size=10, max_size=10))).reshape(5, 2),
        load=np.array(draw(st.lists(amounts, min_size=4, max_size=4))),
        num_topics=draw(counts),
        num_bundles=draw(counts),
        num_consumers=draw(counts),
        num_producers=draw(counts),
        bundle_names=names,
        bundle_load=np.array(load, dtype=np.float64).reshape(rows, 4),
        bundle_topics=np.array(integers(MAX_TOPICS), dtype=np.int64),
        bundle_sessions=np.array(integers(2 * MAX_COUNT), dtype=np.int64),
        bundle_cache_bytes=np.array(integers(MAX_COUNT), dtype=np.int64),
        last_update_ms=draw(counts),
        start_timestamp_ms=draw(counts),
        version=draw(st.text(max_size=5)),
        load_manager_class=draw(st.text(max_size=5)),
        persistent_enabled=draw(st.booleans()),
        non_persistent_enabled=draw(st.booleans()),
        health=draw(healths),
    )
    return Report(Registration(BrokerId("b:1"), draw(st.integers(0, 2**63 - 1))), recordable(report))


@given(st.lists(st.tuples(reports(), st.integers(-(10**8), 10**8)), min_size=1, max_size=8), st.integers(1, 9))
def test_reports_survive_the_history_exactly_for_any_clock(put: list[tuple[Report, int]], flush_every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Directory.of(folder)
        with a_writer(directory) as writer:
            writer.begin_term(1, NOON_MS)
            for number, (report, shift_ms) in enumerate(put, 1):
                assert writer.put(NOON_MS + shift_ms, report) == number
                if number % flush_every == 0:
                    assert writer.flush(patience())
            assert writer.flush(patience())
        read = list(History(directory).reports())
        assert [(each.sequence, each.at_ms) for each in read] == [
            (number, NOON_MS + shift_ms) for number, (_, shift_ms) in enumerate(put, 1)
        ]
        assert all(same(one, other) for one, (other, _) in zip(read, put, strict=True))


@given(reports())
def test_recordable_is_idempotent(given_report: Report) -> None:
    once = given_report.report
    twice = recordable(once)
    assert twice.bundle_names == once.bundle_names
    assert twice.bundle_load.tobytes() == once.bundle_load.tobytes()


@given(st.lists(st.sampled_from(["put", "flush", "next term"]), max_size=40), st.integers(1, 6))
def test_rows_are_read_back_or_counted_in_a_gap(steps: list[str], queue_rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Directory.of(folder)
        put = 0
        with a_writer(directory, WriterLimits(queue_rows=queue_rows, flush_interval_s=1e6)) as writer:
            epoch = 1
            writer.begin_term(epoch, NOON_MS)
            for step in steps:
                if step == "put":
                    put += 1
                    writer.put(NOON_MS + put, HistoryEvent(f"event {put}"))
                elif step == "flush":
                    assert writer.flush(patience())
                else:
                    epoch += 1
                    writer.begin_term(epoch, NOON_MS + put)
            writer.end_term(NOON_MS + put)
            assert writer.flush(patience())
        history = History(directory)
        read = kinds(history)
        assert read == sorted(read, key=lambda each: each[:2])
        events = [kind for _, _, kind in read if kind not in (TERM_BEGAN, TERM_ENDED, GAP)]
        assert events == sorted(events, key=lambda kind: int(kind.split()[1]))
        assert len(events) + sum(gap.rows or 0 for gap in find_gaps(history)) == put


@given(st.integers(0, 12), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_crash_leaves_whole_files_and_a_gap(files: int, batches: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk()
        disk.left = files
        directory = disk.directory(Path(folder) / "history")
        writer = HistoryWriter(directory, "node-1:8080", NEVER)
        writer.start()
        writer.begin_term(1, NOON_MS)
        written = writer.flush(0.05)
        for number, events in enumerate(batches):
            entries: list[Entry] = [HistoryEvent("x") for _ in range(events)]
            for entry in entries:
                writer.put(NOON_MS + number, entry)
            written = written and writer.flush(patience() if files > len(batches) + 1 else 0.05)
        writer.end_term(NOON_MS + len(batches))
        written = written and writer.flush(0.2)
        abandon(writer)
        disk.left = None
        record(directory, 2, at_ms=NOON_MS + 60_000)
        history = History(directory)
        sequences = [sequence for epoch, sequence, _ in kinds(history) if epoch == 1]
        assert sequences == list(range(len(sequences)))
        assert bool(find_gaps(history)) == (bool(sequences) and not written)
        assert all(batch.num_rows for batch in history.scan(EVENTS))
