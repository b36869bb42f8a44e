from __future__ import annotations

import time

import pytest

from loadmanager.cli.text.numbers import read_duration, read_moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [(None, None), ("1700000000000", 1_700_000_000_000), ("1970-01-01T00:00:01", 1_000), ("1970-01-01", 0)],
)
def test_moment_is_a_time_or_milliseconds(text: str | None, moment: int | None) -> None:
    assert read_moment("--since", text) == moment


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1_800), ("1h30m", 5_400), ("2d", 172_800)])
def test_duration_is_a_moment_in_the_past_or_seconds(text: str, seconds: float) -> None:
    before = time.time()
    moment = read_moment("--since", text)
    assert moment is not None
    assert before - seconds - 0.001 <= moment / 1000 <= time.time() - seconds + 0.001
    assert read_duration("--for", text) == seconds


def test_plain_number_is_seconds() -> None:
    assert (read_duration("--for", "0"), read_duration("--for", "1.5")) == (0.0, 1.5)


@pytest.mark.parametrize("text", ["yesterday", "12x", "h", "-5m", "٣h", "1.2.3", "²"])
def test_invalid_time_ends_with_2_and_names_the_option(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_moment("--since", text)
    assert ended.value.code == 2
    assert f"--since {text!r}: expected a time such as" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        read_duration("--for", text)
    assert f"--for {text!r}: expected seconds" in capsys.readouterr().err
