"""Golden traces: the protocol does in each situation what its file shows. `--rewrite-traces` writes the files anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from protocol.golden_traces import COMMANDS, RULE, retrace

TRACES = Path(__file__).parent / "traces"
README = TRACES / "README.md"

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.txt")), ids=lambda path: path.stem)
def test_the_protocol_does_what_its_trace_shows(path: Path, pytestconfig: pytest.Config) -> None:
    expected = path.read_text(encoding="utf-8")
    found = retrace(expected)
    assert "VIOLATION" not in found
    if pytestconfig.getoption("--rewrite-traces"):
        path.write_text(found, encoding="utf-8")
    else:
        assert found.splitlines() == expected.splitlines(), "if that is meant: --rewrite-traces"


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(ValueError, match=r"'explode node-0': expected one of begin, start, .*"):
        retrace("cluster nodes=1 brokers=0 bundles=1 topics=0\nexplode node-0\n")
    with pytest.raises(ValueError, match="the first command is `cluster`"):
        retrace("begin\n")


def test_a_trace_shows_every_change_of_the_protocol() -> None:
    """One more request, or one more write, makes another file."""
    text = "cluster nodes=1 brokers=2 bundles=1 topics=1\nbegin idle\nuse topic-0\n"
    more = text + "use topic-0\n"
    assert len(retrace(more).split(RULE)[1]) > len(retrace(text).split(RULE)[1])


def test_the_readme_names_every_trace_and_every_command() -> None:
    readme = README.read_text(encoding="utf-8")
    assert not [path.name for path in TRACES.glob("*.txt") if f"({path.name})" not in readme]
    assert not [name for name in COMMANDS if f"`{name}" not in readme]
