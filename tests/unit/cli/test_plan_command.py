from __future__ import annotations

from pathlib import Path

from support.plan_files import a_file, a_plan, put
from typer.testing import CliRunner, Result

from loadmanager.cli.plan_command import plan
from loadmanager.wire.plan_file import PackedCertificate, encode


def verify(path: Path) -> Result:
    return CliRunner().invoke(plan, ["verify", str(path)])


def test_a_plan_that_is_what_it_says_ends_with_0_and_both_gaps(tmp_path: Path) -> None:
    made, certified = a_plan()
    (tmp_path / "plan").write_bytes(encode(made, PackedCertificate.of(certified)))
    done = verify(tmp_path / "plan")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "shed, 1 steps: it is what it says." in done.stdout
    assert "no assignment can be below" in done.stdout
    assert "heat by bound: " in done.stdout
    assert "load moved by the least: " in done.stdout


def test_a_forged_one_ends_with_1_and_the_field(tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(a_file(put("gap", to=1.0), put("figures", "leastLoad", to=0.2)))
    done = verify(tmp_path / "plan")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "figures.leastLoad: 0.2 is said, " in done.stderr
    assert "gap: 1 is said, " in done.stderr


def test_what_is_no_plan_and_what_is_not_there_end_with_1(tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(b"garbage")
    done = verify(tmp_path / "plan")
    assert done.exit_code == 1
    assert "the file is no plan, or is cut off" in done.stderr
    missing = verify(tmp_path / "none")
    assert missing.exit_code == 1
    assert "No such file" in missing.stderr
