"""The example that checks a plan's file with numpy alone agrees with `loadmanager plan verify`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plan_files import a_file, a_plan, put

from examples.verify_plan import main
from loadmanager.wire.plan_file import Packed, encode


def test_what_is_sound_for_us_is_sound_for_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, certified = a_plan()
    (tmp_path / "plan").write_bytes(encode(made, Packed.of(certified)))
    assert main(str(tmp_path / "plan")) == 0
    assert capsys.readouterr().out == "it is what it says\n"


@pytest.mark.parametrize(
    "figure", ["level", "heatBefore", "heatAfter", "bound", "boundInBudget", "loadMoved", "leastLoad"]
)
def test_what_is_forged_for_us_is_forged_for_others(tmp_path: Path, figure: str) -> None:
    (tmp_path / "plan").write_bytes(a_file(put("figures", figure, to=0.5)))
    assert main(str(tmp_path / "plan")) == 1


def test_another_hash_is_found(tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(a_file(put("steps", 0, "version", to=8)))
    with pytest.raises(AssertionError, match="hash"):
        main(str(tmp_path / "plan"))
