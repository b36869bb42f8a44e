"""`loadmanager config`: the configuration files that this version understands, with every key commented."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from loadmanager.config import AgentSettings, Settings, render_yaml


class Process(StrEnum):
    SERVE = "serve"
    AGENT = "agent"


_MODELS: dict[Process, type[Settings | AgentSettings]] = {Process.SERVE: Settings, Process.AGENT: AgentSettings}


def config(
    process: Annotated[Process, typer.Argument(help="Whose configuration.")] = Process.SERVE,
) -> None:
    """Print the default configuration as YAML, every key with what it means and what is allowed."""
    print(render_yaml(_MODELS[process]), end="")
