"""The example that checks a plan's file with numpy alone agrees with `loadmanager plan verify`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.plan_files import FORGED, GARBAGE, Edit, a_file, a_plan

from examples.verify_plan import main
from loadmanager.wire.plan_file import PackedCertificate, encode


def test_what_is_sound_for_us_is_sound_for_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, certified = a_plan()
    (tmp_path / "plan").write_bytes(encode(made, PackedCertificate.of(certified)))
    assert main(str(tmp_path / "plan")) == 0
    assert capsys.readouterr().out == "it is what it says\n"


@pytest.mark.parametrize("edit", [edit for edit, _ in (*FORGED, *GARBAGE)])
def test_the_example_refuses_what_the_command_refuses(tmp_path: Path, edit: Edit) -> None:
    (tmp_path / "plan").write_bytes(a_file(edit))
    try:
        with np.errstate(all="raise"):
            code = main(str(tmp_path / "plan"))
    except (AssertionError, LookupError, TypeError, ValueError):
        return  # of no form that it knows
    assert code == 1
