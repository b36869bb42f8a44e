"""The classes of a JVM as they were when an earlier one ended: to be mapped, not read and verified one by one.

    spark-<programs>-<versions>.jsa        the archive
    ....new                                what a JVM leaves when it ends; it counts once it has been there for a while
    ....begun                              one of those that run will leave it: as long as this is new, no other has to

Of a JVM that starts Spark, half of the time goes into its classes. Whatever is wrong with an archive, a JVM that cannot
use it does without: an older one, one of other JARs, or one of which only a part was written.
"""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress
from pathlib import Path

from loadmanager.embedded.jvm import Java, cache_folder

_SETTLED_S = 60.0
_BEGUN_S = 3600.0
_QUIET = "-Xlog:disable"
"""A JVM names each class that it cannot archive, on standard output."""
_PLAIN = re.compile(r"[-.\w/]+")


def class_archive_options(java: Java, jars: Path, folder: Path | None = None) -> list[str]:
    """What `java` is to be told, with these JARs as its class path, to use the archive in `folder` (by default the
    user's cache), or to leave one. Nothing where it cannot be kept, or this Java has none of its own to add to.
    """
    folder = folder or cache_folder()
    if folder is None or not _PLAIN.fullmatch(str(folder)) or not (java.home / "lib/server/classes.jsa").exists():
        return []
    archive = folder / _name_of(java, jars)
    new, begun = archive.with_suffix(".new"), archive.with_suffix(".begun")
    try:
        if _age_s(new) > _SETTLED_S:
            new.replace(archive)
            _forget_others(archive)
        if archive.exists():
            return [f"-XX:SharedArchiveFile={archive}", _QUIET]
        if _age_s(begun) > _BEGUN_S:
            begun.unlink()
        begun.touch(exist_ok=False)
    except OSError:  # another one was faster, or is leaving its archive right now
        return []
    return [f"-XX:ArchiveClassesAtExit={new}", _QUIET]


def _name_of(java: Java, jars: Path) -> str:
    """Other programs, or other versions of the same, have another archive."""
    programs = f"{java.executable.resolve()} {jars.resolve()}"
    stamps = [path.stat().st_mtime_ns for path in (java.executable.resolve(), jars)]
    return f"spark-{_digest(programs)}-{_digest(f'{java.version} {stamps}')}.jsa"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _age_s(path: Path) -> float:
    """How long ago the file was written; -1 where there is none."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return -1.0


def _forget_others(archive: Path) -> None:
    """What is left of other versions of these programs."""
    for path in archive.parent.glob(f"{archive.name.rpartition('-')[0]}-*"):
        if path != archive:
            with suppress(OSError):
                path.unlink()
