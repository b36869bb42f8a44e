"""Which archive of classes a JVM is to use or to leave; and that one that cannot be used does no harm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from loadmanager.embedded.class_archive import class_archive_options
from loadmanager.embedded.jvm import Java, get_java

JARS = Path(pyspark.__path__[0]) / "jars"
LONG_AGO = (0, 0)


class Programs:
    """A Java with an archive of its own, JARs, and a cache for what is added to it."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.jars = folder / "cache", folder / "jars"
        self.base = folder / "java/lib/server/classes.jsa"
        executable = folder / "java/bin/java"
        for each in (self.cache, self.jars, self.base.parent, executable.parent):
            each.mkdir(parents=True)
        executable.touch()
        self.base.touch()
        self.java = Java(executable, 21, "test")

    def options(self) -> list[str]:
        return class_archive_options(self.java, self.jars, self.cache)

    def leave(self, options: Sequence[str]) -> Path:
        """As a JVM does that was told to, some time ago."""
        new = Path(options[0].removeprefix("-XX:ArchiveClassesAtExit="))
        new.touch()
        os.utime(new, LONG_AGO)
        return new


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_what_one_leaves_is_used_by_those_that_start_later(programs: Programs) -> None:
    left = programs.leave(programs.options())
    expected = [f"-XX:SharedArchiveFile={left.with_suffix('.jsa')}", "-Xlog:disable"]
    assert programs.options() == programs.options() == expected
    assert not left.exists()


def test_one_of_those_that_run_leaves_it_and_after_a_while_another(programs: Programs) -> None:
    first = programs.options()
    assert first[0].startswith(f"-XX:ArchiveClassesAtExit={programs.cache}/spark-")
    assert programs.options() == []
    (begun,) = programs.cache.iterdir()
    os.utime(begun, LONG_AGO)
    assert programs.options() == first


def test_what_is_being_written_is_left_alone(programs: Programs) -> None:
    new = programs.leave(programs.options())
    os.utime(new)
    assert programs.options() == []
    assert new.exists()


def test_other_jars_have_another_archive_and_the_old_one_is_deleted(programs: Programs) -> None:
    programs.leave(programs.options())
    (before,) = (each.removeprefix("-XX:SharedArchiveFile=") for each in programs.options()[:1])
    os.utime(programs.jars, LONG_AGO)
    new = programs.leave(programs.options())
    assert Path(before).exists()
    assert programs.options()[0] == f"-XX:SharedArchiveFile={new.with_suffix('.jsa')}"
    assert [each.suffix for each in programs.cache.iterdir() if each.stem == Path(before).stem] == []


def test_where_none_can_be_kept_nothing_is_said(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "two words").mkdir()
    assert class_archive_options(programs.java, programs.jars, tmp_path / "two words") == []
    assert class_archive_options(programs.java, programs.jars, tmp_path / "not there") == []
    programs.base.unlink()
    assert programs.options() == []


@pytest.fixture
def java() -> Java:
    found = get_java()
    if not (found.home / "lib/server/classes.jsa").exists():
        pytest.skip(f"{found.executable} has no archive of its own")
    return found


def run(java: Java, *options: str) -> str:
    """What a small program prints."""
    command = [str(java.executable), *options, "-cp", f"{JARS}/*", "org.apache.zookeeper.version.VersionInfoMain"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""
    assert "version" in done.stdout
    return str(done.stdout)


def test_a_jvm_takes_its_classes_from_what_another_one_has_left_and_none_of_both_says_more(
    java: Java, tmp_path: Path
) -> None:
    options = class_archive_options(java, JARS, tmp_path)
    plain = run(java)
    assert run(java, *options) == plain
    os.utime(options[0].removeprefix("-XX:ArchiveClassesAtExit="), LONG_AGO)
    options = class_archive_options(java, JARS, tmp_path)
    assert run(java, *options) == plain
    told = run(java, *options, "-Xlog:class+load")
    assert "org.apache.zookeeper.version.VersionInfoMain source: shared objects file (top)" in told
    (archive,) = tmp_path.glob("*.jsa")
    half = archive.read_bytes()[: archive.stat().st_size // 2]
    archive.unlink()
    archive.write_bytes(half)
    assert run(java, *options) == plain


@pytest.mark.parametrize("content", [b"", b"no archive", b"\0" * 10_000_000])
def test_what_is_no_archive_does_no_harm(java: Java, tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "spark.jsa"
    archive.write_bytes(content)
    assert run(java, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") == run(java)
