"""Golden traces: compares the protocol with recorded files. `--rewrite-traces` records them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from protocol.golden_traces import COMMANDS, RULE, retrace

TRACES = Path(__file__).parent / "traces"
README = TRACES / "README.md"


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.txt")), ids=lambda path: path.stem)
def test_protocol_equals_its_golden_trace(path: Path, pytestconfig: pytest.Config) -> None:
    expected = path.read_text(encoding="utf-8")
    found = retrace(expected)
    assert "VIOLATION" not in found
    if pytestconfig.getoption("--rewrite-traces"):
        path.write_text(found, encoding="utf-8")
    else:
        assert found.splitlines() == expected.splitlines(), "if intended: --rewrite-traces"


def test_unknown_command_is_named() -> None:
    with pytest.raises(ValueError, match=r"'explode node-0': expected one of begin, start, .*"):
        retrace("cluster nodes=1 brokers=0 bundles=1 topics=0\nexplode node-0\n")
    with pytest.raises(ValueError, match="the first command is `cluster`"):
        retrace("begin\n")


def test_trace_changes_with_an_additional_request() -> None:
    """One more request makes a longer trace."""
    text = "cluster nodes=1 brokers=2 bundles=1 topics=1\nbegin idle\nuse topic-0\n"
    more = text + "use topic-0\n"
    assert len(retrace(more).split(RULE)[1]) > len(retrace(text).split(RULE)[1])


def test_readme_names_every_trace_and_command() -> None:
    readme = README.read_text(encoding="utf-8")
    assert not [path.name for path in TRACES.glob("*.txt") if f"({path.name})" not in readme]
    assert not [name for name in COMMANDS if f"`{name}" not in readme]
