from __future__ import annotations

from pathlib import Path

import pytest

from loadmanager.errors import ConfigurationError
from loadmanager.leader.audit.audit_log import AuditFile


def test_rotation_keeps_former_files_and_deletes_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path), most_bytes=5_000)
    file.start()
    lines = [f"{number:09}" for number in range(2_000)]
    for line in lines:
        file.write(line)
    file.close()
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, 5))]
    kept = [line for each in [*reversed(files[1:]), path] for line in each.read_text().splitlines()]
    assert kept == lines[-len(kept) :]
    assert 4_000 <= sum(each.stat().st_size for each in files) <= 5_000


def test_existing_file_is_appended_to(tmp_path: Path) -> None:
    for line in ("one", "two"):
        file = AuditFile(str(tmp_path / "audit.jsonl"), most_bytes=5_000)
        file.start()
        file.write(line)
        file.close()
    assert (tmp_path / "audit.jsonl").read_text() == "one\ntwo\n"


def test_unwritable_file_is_refused_by_its_key(tmp_path: Path) -> None:
    file = AuditFile(str(tmp_path / "no such folder" / "audit.jsonl"), most_bytes=5_000)
    with pytest.raises(ConfigurationError, match=r"auditLogFile .*no such folder.*: No such file"):
        file.start()
    file.close()


def test_hanging_disk_drops_lines_without_blocking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = AuditFile(str(tmp_path / "audit.jsonl"), most_bytes=5_000)
    for number in range(10_001):  # no writer thread runs
        file.write(str(number))
    assert capsys.readouterr().out.count("audit_not_written") == 1
