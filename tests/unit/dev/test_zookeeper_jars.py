from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyspark
import pytest

from loadmanager.dev.embedded import server_files
from loadmanager.dev.embedded.server_files import JARS, class_path, fetch
from loadmanager.errors import EmbeddedServerError

JARS_OF_PYSPARK = Path(pyspark.__path__[0]) / "jars"


class _Files(SimpleHTTPRequestHandler):
    """Every path of a Maven repository is answered with the file of its name."""

    def translate_path(self, path: str) -> str:
        return f"{self.directory}/{path.rpartition('/')[2]}"

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address of a Maven repository, and the folder that it serves."""
    folder = tmp_path / "repository"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def test_jars_are_fetched_once(repository: tuple[str, Path], tmp_path: Path) -> None:
    url, served = repository
    for path in JARS:
        name = path.rpartition("/")[2]
        (served / name).symlink_to(JARS_OF_PYSPARK / name)
    fetched = fetch(url, tmp_path / "cache")
    assert [jar.read_bytes() for jar in fetched] == [(JARS_OF_PYSPARK / jar.name).read_bytes() for jar in fetched]
    assert sorted((tmp_path / "cache").iterdir()) == sorted(fetched)
    for file in served.iterdir():
        file.unlink()
    assert fetch(url, tmp_path / "cache") == fetched


def test_wrong_checksum_is_refused_and_not_kept(repository: tuple[str, Path], tmp_path: Path) -> None:
    url, served = repository
    first = next(iter(JARS))
    (served / first.rpartition("/")[2]).write_bytes(b"not the jar")
    with pytest.raises(EmbeddedServerError, match=rf"{url}/{re.escape(first)} cannot be fetched: its SHA-256 is "):
        fetch(url, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_unreachable_repository_is_named_with_the_alternative(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"^no ZooKeeper: http://127.0.0.1:1/org.*pip install 'pyspark<5'$"):
        fetch("http://127.0.0.1:1", tmp_path / "cache")


def test_jars_of_an_installed_pyspark_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {Path(jar).parent for jar in class_path().split(":")} == {JARS_OF_PYSPARK}
    monkeypatch.setattr(server_files, "_find_in_pyspark", list)
    monkeypatch.setattr(server_files, "fetch", lambda: [Path("/cache/one.jar"), Path("/cache/two.jar")])
    assert class_path() == "/cache/one.jar:/cache/two.jar"
