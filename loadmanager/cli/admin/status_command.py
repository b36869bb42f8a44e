"""`loadmanager admin status`: the whole service on one screen, once or again and again."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Annotated, Any

import typer

from loadmanager.cli.admin.node_requests import NoNodeReachableError, get
from loadmanager.cli.admin.request_command import Procedure, show_json
from loadmanager.cli.admin.service_client import NodeRefusedError, Service
from loadmanager.cli.admin.status_screen import draw
from loadmanager.cli.text.text_tables import get_terminal_width, style_text, wrap_text

_FLEET = "/loadbalance/v1/fleet"
_DECISIONS = "/loadbalance/v1/decisions"
_MOVES = "unload,unload_failed"
_SHOWN_MOVES = 3
_AGAIN_S = 2.0
_WIDTH, _HEIGHT = 100, 40
"""Where output goes into a file or another program."""


def status(
    *, watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False
) -> Procedure:
    """Show who leads, how brokers are used, what moves, and what keeps bundles from moving: one screen."""

    def procedure(service: Service) -> None:
        if watch:
            _watch(service)
        elif service.as_json:
            show_json(_look(service))
        else:
            width, height = _screen()
            print("\n".join(draw(_look(service), width, height)))

    return procedure


def _look(service: Service) -> dict[str, Any]:
    """The fleet, and the last moves; these are null while no leader can be asked."""
    fleet = service.get(get(_FLEET))
    assert isinstance(fleet, dict), "the fleet"
    try:
        answer = service.get(get(_DECISIONS, limit=_SHOWN_MOVES, kind=_MOVES))
    except (NoNodeReachableError, NodeRefusedError):
        answer = {}
    return {**fleet, "lastMoves": answer.get("decisions") if isinstance(answer, dict) else None}


def _watch(service: Service) -> None:
    """Redraw the screen at intervals, also when no node answers."""
    is_terminal = sys.stdout.isatty()
    lines = [""]
    while True:
        width, height = _screen()
        try:
            seen = _look(service)
            lines = draw(seen, width, height - 1)
            fault = ""
        except (NoNodeReachableError, NodeRefusedError) as error:
            if isinstance(error, NodeRefusedError) and not error.passes_by:
                raise
            fault = f"{error}; what was seen last:"
        if service.as_json and not fault:
            show_json(seen)
        elif is_terminal:
            told = [*(style_text(line, "red") for line in wrap_text(fault, width)), *lines] if fault else lines
            print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in told[: height - 1]) + "\x1b[J", end="", flush=True)
        else:
            print("\n".join([fault] if fault else [*lines, ""]), flush=True)
        time.sleep(_AGAIN_S)


def _screen() -> tuple[int, int]:
    width = get_terminal_width()
    return (_WIDTH, _HEIGHT) if width is None else (width, shutil.get_terminal_size().lines)
