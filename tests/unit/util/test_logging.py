from __future__ import annotations

import pytest
import structlog

from loadmanager.util.logging import configure_logging

HOSTILE = "/a\x1b]0;mine\x07\x9b2J\u2028b"


@pytest.mark.parametrize("json_lines", [True, False])
def test_control_characters_are_escaped(*, json_lines: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(json_lines=json_lines)
    log = structlog.get_logger()
    log.info("asked", path=HOSTILE, among=[HOSTILE])
    log.error("failed", exc_info=ValueError(HOSTILE))
    shown = capsys.readouterr().err
    assert "ValueError" in shown
    assert [each for each in shown if not each.isprintable() and each != "\n"] == []
    assert shown.count("x1b]0;mine") + shown.count("u001b]0;mine") == 3
