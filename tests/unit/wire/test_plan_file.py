"""A plan's file: it says what it is, in a form that others read; whatever is forged in it, or is garbage, is found."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import snapshot
from support.plan_files import SETTINGS, Edit, a_file, a_plan, carrying, column, put

from loadmanager.core.certificate.certificate import certify
from loadmanager.core.certificate.checking import find_faults
from loadmanager.core.effect import effect_of
from loadmanager.core.leading.plans import KeptPlan
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.plan_file import Packed, decode, encode


def faults(*edits: Edit) -> list[str]:
    return find_faults(*decode(a_file(*edits)))


def test_a_plan_that_is_what_it_says_has_no_faults() -> None:
    plan, certified = a_plan()
    read, claims = decode(encode(plan, Packed.of(certified)))
    assert find_faults(read, claims) == []
    assert read.figures == certified.figures
    assert read.after.tolist() == certified.after.tolist()
    assert claims.hash == plan.hash


FIGURES = [
    "level",
    "heatBefore",
    "heatAfter",
    "bound",
    "boundInBudget",
    "noiseFloor",
    "loadMoved",
    "leastLoad",
    "bundlesMoved",
    "leastBundles",
]


@pytest.mark.parametrize("figure", FIGURES)
def test_each_forged_figure_is_found(figure: str) -> None:
    def forge(content: dict[str, Any], _: dict[str, Any]) -> None:
        before = content["figures"][figure]
        content["figures"][figure] = before + 1 if isinstance(before, int) else before * 1.001 + 0.001

    (fault,) = faults(forge)
    assert fault.startswith(f"figures.{figure}: ")


@pytest.mark.parametrize(
    ("path", "forged", "field"),
    [
        (("gap",), 1.0001, "gap"),
        (("loadGap",), None, "loadGap"),
        (("loadGap",), 1.0, "loadGap"),
        (("boundBy",), "prices", "boundBy"),
        (("hash",), "0" * 64, "hash"),
        (("kind",), "drain", "hash"),
        (("steps", 0, "version"), 8, "hash"),
        (("steps", 0, "destination"), ["c:8080", 1], "hash"),
        (("steps", 0, "source"), ["b:8080", 1], "steps[0]"),
        (("steps", 0, "bundle"), "tenant/a/none", "steps[0]"),
        (("proof", "budgetPeak"), 9.0, "figures.boundInBudget"),
        (("proof", "loadPeak"), 9.0, "figures.leastLoad"),
        (("proof", "movesPeak"), 9.0, "figures.leastBundles"),
        (("proof", "bounds"), [], "figures.bound"),
    ],
)
def test_what_else_is_forged_is_found(path: tuple[str | int, ...], forged: object, field: str) -> None:
    assert any(fault.startswith(f"{field}: ") for fault in faults(put(*path, to=forged)))


def test_a_plan_with_a_step_too_many_or_too_few_is_found() -> None:
    assert any(fault.startswith("hash: ") for fault in faults(put("steps", to=[])))

    def twice(content: dict[str, Any], _: dict[str, Any]) -> None:
        content["steps"] *= 2

    assert any("moved twice" in fault for fault in faults(twice))


def test_a_step_to_who_may_not_own_the_bundle_is_found() -> None:
    only_a = column("mayOwn", lambda _: np.array([[True, False, False]]))
    assert any("may not own" in fault for fault in faults(only_a))


@pytest.mark.parametrize(
    "name", ["need", "perNeed", "cost", "sigma", "owner", "loadPrice", "movesPrice", "budgetPrice"]
)
def test_other_columns_have_other_figures(name: str) -> None:
    assert faults(
        column(name, lambda found: found[::-1] if found.dtype.kind == "i" else found * 2 + found.dtype.type(0.1))
    )


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (put("formatVersion", to=2), "plan: formatVersion"),
        (put("figures", "bound", to="high"), "plan: figures.bound"),
        (put("brokers", to=["a:8080", "b:8080"]), "mayOwn"),
        (put("brokers", to=["a:8080"] * 3), "brokers"),
        (put("proof", "bounds", 0, "brokers", to=[3]), "proof.bounds[0].brokers"),
        (put("proof", "bounds", 0, "resource", to=9), "proof.bounds[0].resource"),
        (put("proof", "bounds", 0, "kind", to="luck"), "plan: proof.bounds.0.kind"),
        (lambda _, columns: columns.pop("need"), "need"),
        (lambda _, columns: columns.pop("prices"), "prices"),
        (column("need", lambda found: found[:, :1]), "need"),
        (column("need", lambda found: found.astype(np.float64)), "need"),
        (column("need", lambda found: -found), "need"),
        (column("cost", lambda found: found * np.nan), "cost"),
        (column("owner", lambda found: found + 3), "owner"),
        (column("classes", lambda found: found - 1), "classes"),
        (column("mayOwn", lambda found: found & False), "mayOwn"),
        (column("loadResource", lambda found: found + 2), "loadResource"),
        (column("bundles", lambda found: found[:-1] * 0 + 0xFF), "bundles"),
        (column("bundles", lambda found: np.concatenate([found, [10], found[:10]]).astype(np.uint8)), "need"),
        (column("bundles", lambda found: np.where(found == ord("b"), ord("c"), found).astype(np.uint8)), "bundles"),
    ],
)
def test_garbage_is_refused_with_its_field_and_what_to_do(edit: Edit, field: str) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        decode(a_file(edit))
    assert str(refused.value).startswith(f"{field}")


@pytest.mark.parametrize("data", [b"", b"garbage", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="the file is no plan, or is cut off"):
        decode(data)


def test_what_would_unpack_to_more_than_memory_is_refused() -> None:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("plan.npy", "w") as entry:
        for _ in range(1025):
            entry.write(bytes(1 << 20))
    with pytest.raises(InvalidRecordError, match="unpacks to"):
        decode(written.getvalue())


@given(data=st.data())
def test_a_file_with_any_byte_changed_is_refused_or_judged(data: st.DataObject) -> None:
    file = bytearray(encode(PLAN[0], Packed.of(PLAN[1])))
    at = data.draw(st.integers(0, len(file) - 1))
    file[at] = data.draw(st.integers(0, 255))
    try:
        find_faults(*decode(bytes(file)))
    except InvalidRecordError as error:
        assert "again" in str(error) or "plan" in str(error)  # noqa: PT017 - both ends are right


PLAN = a_plan()


def test_a_large_plan_is_a_small_file() -> None:
    """20,000 bundles with names as they are: so a hundred thousand are a few megabytes."""
    rng = np.random.default_rng(0)
    hosts = {f"b{k}": carrying(f"b{k}", rng.lognormal(0, 1, 1000).tolist()) for k in range(20)}
    given_large = snapshot(hosts)
    certified = certify(given_large, SETTINGS, [])
    plan = KeptPlan("shed", 1, 2, (), (), effect_of(given_large, []))
    packed = Packed.of(certified)
    assert sum(column.nbytes for column in packed.columns.values()) < 40 * len(certified.bundles)
    file = encode(plan, packed)
    assert len(file) < 30 * len(certified.bundles)
    assert find_faults(*decode(file)) == []
