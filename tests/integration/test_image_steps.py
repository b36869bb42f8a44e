"""Steps of the image's build in a clean folder: install from the files that reach the build, then start.

What each image holds is installed on top of what a smaller one holds, and the tests of the smallest come first: each
package is fetched and compiled once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.deep, pytest.mark.network, pytest.mark.timeout(1_200)]

TOP = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that `.dockerignore` lets through."""
    source = tmp_path_factory.mktemp("image") / "source"
    for line in (TOP / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            wanted = line.removeprefix("!")
            (source / wanted).parent.mkdir(parents=True, exist_ok=True)
            if (TOP / wanted).is_dir():
                shutil.copytree(TOP / wanted, source / wanted, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(TOP / wanted, source / wanted)
    return source


def install(source: Path, extras: str) -> Path:
    target = source.parent / "installed"
    script = str(source / "docker" / "install.sh")
    subprocess.run(["/bin/sh", script, str(source), str(target), extras], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def installed_for_brokers(source: Path) -> Path:
    """Environment of the author of a broker."""
    return install(source, "broker")


@pytest.fixture(scope="module")
def installed_for_agents(source: Path, installed_for_brokers: Path) -> Path:
    """The virtual environment that the image for agents holds."""
    del installed_for_brokers
    return install(source, "agent")


@pytest.fixture(scope="module")
def installed(source: Path, installed_for_agents: Path) -> Path:
    """The one of the image."""
    del installed_for_agents
    return install(source, "fast,node")


def run(installed: Path, *command: str) -> str:
    """The output of a command with nothing on the path but the image's programs, and without the checkout."""
    environment = {"PATH": f"{installed / 'bin'}:{os.defpath}", "HOME": "/nonexistent"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=installed, env=environment)
    return done.stdout


def test_broker_kit_needs_only_aiohttp(installed_for_brokers: Path) -> None:
    kit = "from loadmanager.broker import Hosting; Hosting('http://127.0.0.1:9091')"
    run(installed_for_brokers, "python", "-W", "error", "-c", kit)
    frozen = run(installed_for_brokers, "python", "-m", "pip", "list", "--format", "freeze").splitlines()
    brought = {"aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "idna", "multidict", "propcache", "yarl"}
    found = {line.split("==")[0] for line in frozen} - {"loadmanager", "pip", "setuptools", "typing_extensions"}
    assert found == {"aiohttp", *brought}


def test_command_without_its_packages_names_them(installed_for_brokers: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run(installed_for_brokers, "loadmanager", "--help")
    said = refused.value.stderr
    assert said.startswith(
        "loadmanager: not installed: typer; install what commands need with: pip install 'loadmanager[agent]'"
    )
    assert "aiohttp" not in said, "that is there"


def test_agent_image_has_no_packages_of_nodes(installed_for_agents: Path) -> None:
    packages = next(installed_for_agents.glob("lib/python3*/site-packages"))
    assert not [name for name in ("numpy", "pyarrow") if (packages / name).exists()]
    assert "Run the agent beside a broker" in run(installed_for_agents, "loadmanager", "agent", "--help")
    assert "brokers" in run(installed_for_agents, "loadmanager", "admin", "--help")
    assert "agentPort" in run(installed_for_agents, "loadmanager", "config", "agent")
    assert "Not in this installation" in run(installed_for_agents, "loadmanager", "--help")


@pytest.mark.parametrize("command", [("serve",), ("config", "serve")])
def test_missing_node_packages_are_named_with_the_fix(installed_for_agents: Path, command: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run(installed_for_agents, "loadmanager", *command)
    fix = "install what nodes need with: pip install 'loadmanager[node]'"
    assert refused.value.stderr == f"loadmanager: not installed: numpy; {fix}\n"


def test_image_runs_every_command(installed: Path) -> None:
    assert "serve" in run(installed, "loadmanager", "--help")
    configuration = yaml.safe_load(run(installed, "loadmanager", "config", "serve"))
    assert configuration["webServicePort"] == 8080
    assert "--agent-file" in run(installed, "python", "-m", "loadmanager.dev.demo.demo_broker", "--help")


def test_image_has_the_pinned_versions(installed: Path) -> None:
    pinned = set((TOP / "constraints.txt").read_text(encoding="utf-8").splitlines())
    frozen = run(installed, "python", "-m", "pip", "list", "--format", "freeze").splitlines()
    others = {line.split("==")[0] for line in frozen if line not in pinned}
    assert others <= {"loadmanager", "pip", "setuptools"}
