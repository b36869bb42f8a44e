from __future__ import annotations

from pathlib import Path

from loadmanager.dev.demo.evidence import (
    DemoJournal,
    find_json,
    read_journal,
    read_journals,
)
from loadmanager.util.atomic_write import write_json


def test_journal_keeps_records_of_earlier_processes(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for number in (1, 2):
        with DemoJournal(path) as journal:
            journal.append({"number": number})
    assert read_journal(path) == [{"number": 1}, {"number": 2}]
    assert read_journals([path, tmp_path / "missing.jsonl"]) == [{"number": 1}, {"number": 2}]


def test_record_is_readable_once_appended(tmp_path: Path) -> None:
    with DemoJournal(tmp_path / "journal.jsonl") as journal:
        journal.append({"number": 1})
        assert read_journal(tmp_path / "journal.jsonl") == [{"number": 1}]


def test_truncated_record_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"number":1}\n{"numb')
    assert read_journal(path) == [{"number": 1}]


def test_file_is_reread_when_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    assert find_json(path) is None
    for content in ({"url": "one"}, {"url": "two"}):
        write_json(path, content)
        assert find_json(path) == content
    assert [file.name for file in tmp_path.iterdir()] == ["ready"]
