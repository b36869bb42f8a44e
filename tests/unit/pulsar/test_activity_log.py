from __future__ import annotations

import json
from datetime import UTC, timedelta, timezone
from pathlib import Path

import pytest

from loadmanager.core.diagnosis.pulsar_comparison import ComparisonEntry
from loadmanager.core.diagnosis.pulsar_tally import UsageLevel
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import ComparisonReason, PlacementReason, SheddingReason
from loadmanager.pulsar.activity_log import HOUR_MS, ActivityLog, BoundedFile

NOON_MS = 1_789_992_000_000
MIB = 1024 * 1024
LEVEL = UsageLevel(3, BrokerId("b1:8080"), 0.6249, 0.401)


def moved(reason: ComparisonReason, bundle: str = "t/n/0x0_0x4", mib: float = 12.345, **why: Figure) -> ComparisonEntry:
    figures: dict[str, Figure] = {"source": "b1:8080", "destination": "b2:8080", "mib_per_s": mib, **why}
    return ComparisonEntry(NOON_MS, Verdict(bundle, reason, acted=True, why=figures), (), mib * MIB)


def a_diary(folder: Path | None = None, kept: int = 10) -> ActivityLog:
    return ActivityLog(folder, kept=kept, zone=UTC)


def test_round_is_a_paragraph_of_plain_sentences() -> None:
    diary = a_diary()
    below = Verdict(
        "b1:8080",
        SheddingReason.BELOW_THRESHOLD,
        acted=False,
        why={
            "usage_percent": 45.678,
            "average_percent": 40.04,
            "loadBalancerBrokerThresholdShedderPercentage": 10.0,
        },
    )
    against = ComparisonEntry(NOON_MS, moved(ComparisonReason.MOVED_AGAINST_US).verdict, (below,), 12 * MIB)
    diary.round(
        NOON_MS, [moved(ComparisonReason.FIRST_OWNER), against, moved(ComparisonReason.MOVED_AS_WE_WOULD)], LEVEL, 0
    )
    assert diary.text(1).splitlines() == [
        "2026-09-21 12:00 Of 3 brokers b1:8080 is the busiest with 62 %, 1.56 times the mean of 40 %.",
        "    t/n/0x0_0x4: Pulsar moved it from b1:8080 to b2:8080, 12 MiB/s, and so would we.",
        (
            "    t/n/0x0_0x4: Pulsar moved it from b1:8080 to b2:8080, 12 MiB/s, and we would not. We, of b1:8080: No"
            " move because usage 46 % is below average 40 % plus loadBalancerBrokerThresholdShedderPercentage 10 %."
        ),
        "    Other bundles: 1 placed at a lookup.",
    ]


def test_stall_comes_first_with_its_explanation_stated_once() -> None:
    diary = a_diary()
    stays = Verdict(
        "t/n/0x0_0x4",
        PlacementReason.OWNER_CHOSEN,
        acted=False,
        why={"broker": "b1:8080", "brokers": 3, "owns_more_of_namespace": 2, "namespace": "t/n", "candidates": 1},
    )
    why: dict[str, Figure] = {"rounds": 2, "bundles": 1, "source": "b1:8080", "passed_over": 2}
    stall = ComparisonEntry(
        NOON_MS, Verdict("pulsar", ComparisonReason.STALLED_ON_OWNER, acted=False, why=why), (stays,)
    )
    alone = ComparisonEntry(NOON_MS, moved(ComparisonReason.WE_ALONE_STAYS).verdict, (stays,), MIB)
    diary.round(NOON_MS, [alone, stall], None, 1)
    head, first, second = diary.text(1).splitlines()
    assert head == "2026-09-21 12:00 No broker has reported."
    assert first.startswith("    Pulsar has stalled: for 2 rounds its strategy selected 1 of the bundles of b1:8080")
    assert "Pulsar, of t/n/0x0_0x4: No move because the destination chosen is its owner b1:8080" in first
    assert "What would help: set loadBalancerDistributeBundlesEvenlyEnabled to false on Pulsar's brokers" in first
    assert second == (
        "    t/n/0x0_0x4: We would move it from b1:8080 to b2:8080, 12 MiB/s, and Pulsar does not: its strategy selects"
        " it, and its placement leaves it there."
    )


def test_heaviest_of_similar_entries_are_listed_and_the_rest_counted() -> None:
    diary = a_diary()
    entries = [moved(ComparisonReason.MOVED_UNSELECTED, f"t/n/{number}", float(number)) for number in range(1, 9)]
    diary.round(NOON_MS, entries, LEVEL, 0)
    lines = diary.text(1).splitlines()
    assert [line.strip().split(":")[0] for line in lines[1:-1]] == [f"t/n/{number}" for number in (8, 7, 6, 5, 4)]
    assert lines[-1] == "    ... and of 3 more bundles the same, 6 MiB/s in all."


def test_idle_rounds_give_one_line_per_hour() -> None:
    diary = a_diary()
    for minute in range(125):
        entries = [moved(ComparisonReason.FIRST_OWNER)] if minute == 3 else []
        diary.round(NOON_MS + minute * 60_000, entries, LEVEL, 2 if minute > 60 else 0)
    first, second = diary.text(100).splitlines()
    assert first.startswith("2026-09-21 13:00 Nothing to tell for 60 min and 61 rounds. Of 3 brokers b1:8080")
    assert first.endswith("Bundles: 1 placed at a lookup.")
    assert second.startswith("2026-09-21 14:00 Nothing to tell for 60 min and 60 rounds.")
    assert second.endswith("Moves that we would make and Pulsar does not: 2.")


def test_idle_hour_starts_at_the_last_note() -> None:
    diary = a_diary()
    diary.round(NOON_MS, [], LEVEL, 0)
    diary.note(NOON_MS + HOUR_MS // 2, "A score.", "Of something.")
    diary.round(NOON_MS + HOUR_MS, [], LEVEL, 0)
    assert diary.text(9) == "2026-09-21 12:30 A score.\n    Of something.\n"


def test_remark_does_not_restart_the_idle_hour() -> None:
    diary = a_diary()
    diary.round(NOON_MS, [], LEVEL, 0)
    diary.remark(NOON_MS + HOUR_MS // 2, "A score.")
    diary.round(NOON_MS + HOUR_MS, [], LEVEL, 0)
    assert [line.partition(" for")[0] for line in diary.text(9).splitlines()] == [
        "2026-09-21 12:30 A score.",
        "2026-09-21 13:00 Nothing to tell",
    ]


def test_times_are_local() -> None:
    diary = ActivityLog(None, zone=timezone(timedelta(hours=5, minutes=30)))
    diary.note(NOON_MS, "Tea.")
    assert diary.text(1) == "2026-09-21 17:30 Tea.\n"
    here = ActivityLog(None)
    here.note(NOON_MS, "Tea.")
    assert here.text(1).endswith("Tea.\n")


def test_newest_entries_stay_in_memory_and_all_go_to_files(tmp_path: Path) -> None:
    diary = a_diary(tmp_path / "beside", kept=2)
    for number in range(3):
        at_ms = NOON_MS + number * 60_000
        diary.round(at_ms, [moved(ComparisonReason.MOVED_UNSELECTED, f"t/n/{number}")], LEVEL, 0)
    assert len(diary.text(9).splitlines()) == 4
    assert [record["subject"] for record in diary.records(9)] == ["t/n/2", "t/n/1"]
    assert len(diary.text(1).splitlines()) == 2
    assert (tmp_path / "beside" / "diary.txt").read_text().count("2026-09-21") == 3
    records = [json.loads(line) for line in (tmp_path / "beside" / "diary.jsonl").read_text().splitlines()]
    assert [record["subject"] for record in records] == ["t/n/0", "t/n/1", "t/n/2"]
    assert records[2] == diary.records(1)[0]


def test_record_has_exact_figures_and_explanations() -> None:
    diary = a_diary()
    because = (Verdict("b1:8080", SheddingReason.NO_BUNDLES, acted=False, why={"usage_percent": 12.3456}),)
    diary.round(
        NOON_MS, [ComparisonEntry(NOON_MS, moved(ComparisonReason.MOVED_AGAINST_US).verdict, because, 12.5)], LEVEL, 0
    )
    (record,) = diary.records(5)
    assert (record["at"], record["reason"], record["moved"], record["bytesPerS"]) == (
        NOON_MS,
        "moved_against_us",
        True,
        12.5,
    )
    assert record["why"]["mib_per_s"] == 12.345
    assert record["because"] == [
        {
            "subject": "b1:8080",
            "reason": "no_bundles",
            "sentence": "No move because it reports no bundle at usage 12 %",
            "remedy": "",
            "why": {"usage_percent": 12.3456},
        }
    ]


def test_full_file_is_rotated(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "diary.txt", most_bytes=10, files=2)
    for number in range(5):
        file.append(f"line {number} of it\n")
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {
        "diary.txt": "line 4 of it\n",
        "diary.txt.1": "line 3 of it\n",
        "diary.txt.2": "line 2 of it\n",
    }


def test_unwritable_folder_is_logged_once_and_blocks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside").write_text("not a folder")
    diary = a_diary(tmp_path / "beside")
    diary.note(NOON_MS, "One.")
    diary.note(NOON_MS, "Two.")
    assert diary.text(9) == "2026-09-21 12:00 One.\n2026-09-21 12:00 Two.\n"
    assert capsys.readouterr().out.count("diary_not_written") == 1
    (tmp_path / "beside").unlink()
    diary.note(NOON_MS, "Three.")
    assert (tmp_path / "beside" / "diary.txt").read_text() == "2026-09-21 12:00 Three.\n"


def test_viewer_sees_each_paragraph_until_it_disconnects() -> None:
    diary, seen = a_diary(), list[str]()
    diary.show = seen.append
    diary.note(NOON_MS, "One.")

    def gone(_: str) -> None:
        raise BrokenPipeError

    diary.show = gone
    diary.note(NOON_MS, "Two.")
    assert seen == ["2026-09-21 12:00 One."]
    assert len(diary.text(9).splitlines()) == 2
