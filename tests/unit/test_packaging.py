from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]


def imported() -> dict[str, set[str]]:
    """The packages outside of the standard library that modules of ours import, and by which modules."""
    found: dict[str, set[str]] = {}
    for path in (CHECKOUT / "loadmanager").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(CHECKOUT)))
    return {name: by for name, by in found.items() if name not in sys.stdlib_module_names | {"loadmanager"}}


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;! ]", requirement)[0]).lower()


def test_every_imported_package_is_declared() -> None:
    wanted = ("broker", "client", "agent", "node", "embedded", "pipeline", "fast", "otel")
    optional = [each for extra in wanted for each in PROJECT["optional-dependencies"][extra]]
    declared = {name_of(each) for each in optional}
    providers = packages_distributions()
    undeclared = {
        name: sorted(by) for name, by in imported().items() if not declared & set(map(name_of, providers[name]))
    }
    assert not undeclared


def test_every_declared_package_is_imported() -> None:
    providers = packages_distributions()
    used = {name_of(each) for name in imported() for each in providers[name]}
    kits = [each for extra in ("broker", "client", "agent") for each in PROJECT["optional-dependencies"][extra]]
    assert {name_of(each) for each in kits} <= used


def test_client_imports_only_packages_of_its_extra() -> None:
    script = "import sys; was = {*sys.modules}; import loadmanager.client; print(*{*sys.modules} - was)"
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    loaded = {name.partition(".")[0] for name in printed.split()}
    providers = packages_distributions()
    brought = with_all_they_need(name_of(each) for each in PROJECT["optional-dependencies"]["client"])
    others = {name for name in loaded & providers.keys() if not brought & set(map(name_of, providers[name]))}
    assert others == {"loadmanager"}


def with_all_they_need(packages: Iterable[str]) -> set[str]:
    """The distributions, and those that they require, as far as they are installed."""
    found: set[str] = set()
    wanted = list(packages)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            with contextlib.suppress(PackageNotFoundError):  # of another Python
                wanted += [name_of(each) for each in requires(name) or [] if "extra ==" not in each]
    return found


def test_source_distribution_has_files_linked_from_the_readme() -> None:
    commands = [line.split() for line in (CHECKOUT / "MANIFEST.in").read_text().splitlines()]
    files = {CHECKOUT / name for command, *names in commands if command == "include" for name in names}
    folders = {CHECKOUT / names[0] for command, *names in commands if command == "recursive-include"}
    assert all(path.exists() for path in files | folders)
    linked = re.findall(r"\]\(([^)#:]+)[^)]*\)", (CHECKOUT / "README.md").read_text())
    wanted = {CHECKOUT / link for link in linked if not link.startswith("benchmarks/")}
    assert {path for path in wanted if path not in files and not folders & {path, *path.parents}} == set()


def test_there_are_no_common_dependencies() -> None:
    assert PROJECT["dependencies"] == []


def test_licence_is_named_and_present() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert [each for name in PROJECT["license-files"] for each in CHECKOUT.glob(name)]


@pytest.mark.parametrize(("kit", "lacking"), [("client", "mmh3"), ("broker", "aiohttp")])
def test_missing_package_of_a_kit_is_named_with_its_extra(kit: str, lacking: str) -> None:
    script = f"import sys; sys.modules['{lacking}'] = None; import loadmanager.{kit}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: {lacking} is not installed: pip install 'loadmanager[{kit}]'"
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("page", sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")]), ids=str)
def test_every_table_row_belongs_to_a_table(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for rows in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert re.match(r"\|.*\n\|[-:| ]+\|\n", rows), f"no heading above {rows[:80]!r}"
