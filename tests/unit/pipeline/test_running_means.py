"""The leader's running means, against those of the leader's own model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from support.averaged import clean_rows
from support.builders import bundle, owned
from support.frames import Timed, history_of, reported

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.load import LONG_WINDOW
from loadmanager.history.rows import Report
from loadmanager.history.schemas import BUNDLE_REPORTS
from loadmanager.pipeline.packing import Packer, unpacked
from loadmanager.pipeline.running_means import (
    Sampling,
    gone_on,
    nothing_known,
    running_means,
    samples_of,
    with_ranges,
)
from loadmanager.pipeline.schemas import METRICS


def model_after(entries: Sequence[Timed]) -> ClusterModel:
    model = ClusterModel()
    names: dict[str, dict[str, Report]] = defaultdict(dict)
    for _, entry in entries:
        assert isinstance(entry, Report)
        for name in entry.report.bundle_names:
            names[name.rpartition("/")[0]][name] = entry
    for namespace, bundles in names.items():
        model.set_namespace(namespace, sorted(bundles), [owned(bundles[name].registration) for name in sorted(bundles)])
    for _, entry in entries:
        assert isinstance(entry, Report)
        model.apply_report(entry.registration, entry.report)
    return model


def assert_equal_to_the_leaders(found: pa.Table, entries: Sequence[Timed]) -> None:
    model = model_after(entries)
    rows = found.to_pylist()
    assert len({row["bundle"] for row in rows}) == len(rows)
    leaders = {name: each for space in ("tenant/ns", "t/other") for name, each in model.bundle_averages(space).items()}
    assert {row["bundle"] for row in rows} == leaders.keys()
    for row in rows:
        averages = leaders[row["bundle"]]
        assert [row[f"short_{name}"] for name in METRICS] == averages.short.tolist()
        assert [row[f"long_{name}"] for name in METRICS] == averages.long.tolist()
        assert (row["short_samples"], row["long_samples"]) == (averages.short_samples, averages.long_samples)
        assert row["topics"] == averages.topics


def fractions(count: int, seed: int = 1) -> list[Timed]:
    """Reports with loads that cannot be averaged without rounding, and a bundle that comes and goes."""
    rng = np.random.default_rng(seed)
    names = [bundle(1), bundle(2), bundle(3, "t/other")]
    return [
        (
            number * 1000,
            reported("a", {name: tuple(rng.lognormal(3, 2, 4)) for name in names[: 3 - (number % 7 == 0)]}),
        )
        for number in range(count)
    ]


def rows_of(folder: Path, entries: Sequence[Timed]) -> pa.Table:
    return clean_rows(history_of(folder, entries), BUNDLE_REPORTS)


def test_the_leaders_running_means_come_out_to_the_last_bit(tmp_path: Path) -> None:
    entries = fractions(LONG_WINDOW + 50)
    assert_equal_to_the_leaders(running_means(nothing_known(), samples_of(rows_of(tmp_path, entries))), entries)


def test_they_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    entries = fractions(20)
    rows = rows_of(tmp_path, entries)
    mixed = rows.take(np.random.default_rng(3).permutation(len(rows)))
    assert_equal_to_the_leaders(running_means(nothing_known(), samples_of(mixed)), entries)


def test_reports_of_a_later_leader_count_later_though_it_numbers_them_from_the_beginning(tmp_path: Path) -> None:
    entries = fractions(20)
    history_of(tmp_path, entries[:12], epoch=1, first=100)
    rows = clean_rows(history_of(tmp_path, entries[12:], epoch=2), BUNDLE_REPORTS)
    for given in (rows, rows.take(np.arange(len(rows))[::-1])):
        assert_equal_to_the_leaders(running_means(nothing_known(), samples_of(given)), entries)


def test_running_means_go_on_from_earlier_ones_and_count_nothing_twice(tmp_path: Path) -> None:
    entries = fractions(30)
    early, whole = rows_of(tmp_path / "early", entries[:14]), rows_of(tmp_path / "whole", entries)
    before = running_means(nothing_known(), samples_of(early))
    assert_equal_to_the_leaders(running_means(with_ranges(before), samples_of(whole)), entries)
    again = running_means(with_ranges(before), samples_of(early))
    assert by_bundle(again) == by_bundle(before)


def by_bundle(means: pa.Table) -> dict[str, object]:
    return {row["bundle"]: row for row in means.to_pylist()}


def test_bundles_are_divided_among_tasks_which_go_on_from_what_was_known(tmp_path: Path) -> None:
    entries = fractions(30)
    early, whole = rows_of(tmp_path / "early", entries[:14]), rows_of(tmp_path / "whole", entries)
    tasks, first = 3, packed("clean_bundle_reports", early)
    (before,) = gone_on(Sampling(1)(0, ["clean_bundle_reports/a"], {"clean_bundle_reports/a": first}))
    contents = {
        "clean_bundle_reports/b": packed("clean_bundle_reports", whole.slice(len(early) + 9)),
        "clean_bundle_reports/a": packed("clean_bundle_reports", whole.slice(0, len(early) + 9)),
        "running_means/b": before.data,
    }
    given = [pair for number, path in enumerate(contents) for pair in Sampling(tasks)(number, [path], contents)]
    assert {number for number, _ in given} <= set(range(tasks))
    made = [each for number in range(tasks) for each in gone_on(pair for pair in given if pair[0] == number)]
    assert len(made) > 1
    assert {(each.table, each.part) for each in made} == {("running_means", "all")}
    assert_equal_to_the_leaders(pa.concat_tables(unpacked(each.data) for each in made), entries)


def packed(table: str, rows: pa.Table) -> bytes:
    packer = Packer()
    packer.add(table, "all", rows)
    (made,) = packer.packed()
    return made.data
