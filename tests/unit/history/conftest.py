from __future__ import annotations

from pathlib import Path

import pytest

from loadmanager.history.files import Directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory.of(str(tmp_path / "history"))
