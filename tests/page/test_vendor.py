from __future__ import annotations

import hashlib
from importlib.resources import files

VENDOR = files("loadmanager.http") / "page" / "vendor"
UNCHECKED = {"README.md", "SHA256SUMS"}


def test_every_file_has_the_hash_that_is_listed_and_no_other_file_is_there() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in VENDOR.iterdir()}
    assert {name: digest for name, digest in found.items() if name not in UNCHECKED} == listed


def test_every_script_is_named_with_its_licence() -> None:
    told = (VENDOR / "README.md").read_text()
    names = [each.name for each in VENDOR.iterdir() if each.name not in UNCHECKED]
    assert names
    assert [name for name in names if f"`{name}`" not in told] == []
