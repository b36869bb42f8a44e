from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import snapshot
from support.plan_files import FORGED, GARBAGE, SETTINGS, Edit, a_file, a_plan, carrying

from loadmanager.core.planning.certificate.plan_certificate import certify
from loadmanager.core.planning.certificate.plan_verification import find_faults
from loadmanager.core.planning.plan_effect import compute_effect
from loadmanager.core.protocol.plan_machine import KeptPlan
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.plan_file import PackedCertificate, decode, encode


def faults(*edits: Edit) -> list[str]:
    return find_faults(*decode(a_file(*edits)))


def test_a_plan_that_is_what_it_says_has_no_faults() -> None:
    plan, certified = a_plan()
    read, claims = decode(encode(plan, PackedCertificate.of(certified)))
    assert find_faults(read, claims) == []
    assert read.figures == certified.figures
    assert read.after.tolist() == certified.after.tolist()
    assert claims.hash == plan.hash


@pytest.mark.parametrize(("edit", "field"), FORGED)
def test_what_is_forged_is_found(edit: Edit, field: str) -> None:
    assert any(fault.startswith(f"{field}") for fault in faults(edit))


@pytest.mark.parametrize(("edit", "field"), GARBAGE)
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
    file = bytearray(encode(PLAN[0], PackedCertificate.of(PLAN[1])))
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
    plan = KeptPlan("shed", 1, 2, (), (), compute_effect(given_large, []))
    packed = PackedCertificate.of(certified)
    assert sum(column.nbytes for column in packed.columns.values()) < 40 * len(certified.bundles)
    file = encode(plan, packed)
    assert len(file) < 30 * len(certified.bundles)
    assert find_faults(*decode(file)) == []
