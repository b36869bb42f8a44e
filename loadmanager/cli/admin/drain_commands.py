"""`loadmanager admin brokers drain` and `rolling-restart`.

Drains and returns are stored in the cluster. An interrupted rolling restart leaves those of the current broker only.

Exit codes, in addition to those of every command: 4 `--wait` timed out and the drain goes on; 5 none of the remaining
bundles can leave; 130 interrupted, and the drain goes on.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, NoReturn

import typer

from loadmanager.cli.admin.answer_text import list_blocked, summarize_drain
from loadmanager.cli.admin.node_requests import AdminRequest, NodeRefusedError, NoNodeReachableError, Service, get, put
from loadmanager.cli.admin.request_command import Broker, Procedure, show_json
from loadmanager.cli.exit_codes import EXIT_FAILURE, EXIT_INTERRUPTED, fail
from loadmanager.cli.text.numbers import format_duration, format_quantity, read_duration

EXIT_TIMEOUT = 4
EXIT_BLOCKED = 5
_BASE = "/loadbalance/v1/brokers"
_LOOK_S = 1.0
_SAY_S = 10.0
_BLOCKED_S = 10.0
"""Time without a possible move after which a drain counts as blocked. Short obstacles do not count."""


def drain(
    broker: Broker,
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the broker owns no bundle, and show the progress.")
    ] = False,
    at_most: Annotated[
        str | None,
        typer.Option(
            "--at-most",
            metavar="DURATION",
            help="With --wait: timeout such as 90s or 30m, after which the exit code is 4.",
        ),
    ] = None,
    and_return: Annotated[
        bool, typer.Option("--and-return", help="Give the bundles back to the broker after its restart.")
    ] = False,
) -> AdminRequest | Procedure:
    """Start to move all bundles off a broker; it gets no new ones."""
    if at_most is not None and not wait:
        raise typer.BadParameter("goes with --wait", param_hint="--at-most")
    order = put(_BASE, broker, "drain", andReturn=and_return)
    if not wait:
        return order
    return DrainWaiter(broker, order, None if at_most is None else read_duration("--at-most", at_most))


class DrainWaiter:
    """Starts a drain and polls it until it is over."""

    def __init__(self, broker: str, order: AdminRequest, at_most_s: float | None = None) -> None:
        self._broker = broker
        self._order = order
        self._at_most_s = at_most_s
        self._began_s = time.monotonic()
        self._line = _Line()
        self._progress: dict[str, Any] = {}

    def __call__(self, service: Service) -> None:
        try:
            self.wait(service)
        except KeyboardInterrupt:
            self._line.end()
            stop = service.command(f"brokers stop-drain {self._broker}")
            fail(f"{summarize_drain(self._progress)}; it goes on; to end it: {stop}", EXIT_INTERRUPTED)
        if service.as_json:
            show_json(self._progress)
        else:
            took = format_duration(time.monotonic() - self._began_s)
            moved = format_quantity(self._progress["moved"], "bundle")
            print(f"{self._broker} is drained: {moved} moved in {took}; it can be stopped")

    def wait(self, service: Service) -> None:
        """Start the drain, and wait until the broker owns no bundle."""
        self._progress = _progress(service.get(self._order))
        blocked_since_s: float | None = None
        while self._progress["state"] != "done":
            now_s = time.monotonic()
            blocked_since_s = (blocked_since_s or now_s) if self._progress["state"] == "blocked" else None
            self._line.show(summarize_drain(self._progress))
            if blocked_since_s is not None and now_s - blocked_since_s >= _BLOCKED_S:
                self._end_blocked(self._progress)
            if self._at_most_s is not None and now_s - self._began_s >= self._at_most_s:
                self._line.end()
                fail(f"{summarize_drain(self._progress)}; it goes on", EXIT_TIMEOUT)
            time.sleep(_LOOK_S)
            self._look(service)
        self._line.end()

    def wait_for_return(self, service: Service) -> None:
        """Wait until the restarted broker has its bundles back."""
        while True:
            try:
                self._look(service)
            except NodeRefusedError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                return
            self._line.show(summarize_drain(self._progress))
            time.sleep(_LOOK_S)

    def _look(self, service: Service) -> None:
        """Read the progress; keep the last one if no node answers. Raises `NodeRefusedError` after the drain."""
        try:
            self._progress = _progress(service.get(get(_BASE, self._broker, "drain")))
        except (NoNodeReachableError, NodeRefusedError) as error:
            if isinstance(error, NodeRefusedError) and not error.passes_by:
                self._line.end()
                raise
            self._line.show(f"draining {self._broker}: {error}; asking again")

    def _end_blocked(self, progress: Mapping[str, Any]) -> None:
        self._line.end()
        fail("\n".join([summarize_drain(progress), *list_blocked(progress)]), EXIT_BLOCKED)


class _Line:
    """Progress line on standard error: redrawn on a terminal, else printed again at intervals if it has changed."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""
        self._shown_at_s = 0.0

    def show(self, text: str) -> None:
        if self._is_terminal:
            fitting = text[: shutil.get_terminal_size().columns - 1]  # the last line is not cut
            print(f"\r\x1b[2K{fitting}", end="", file=sys.stderr, flush=True)
        elif text != self._shown and time.monotonic() - self._shown_at_s >= (_SAY_S if self._shown else 0.0):
            print(text, file=sys.stderr, flush=True)
            self._shown, self._shown_at_s = text, time.monotonic()

    def end(self) -> None:
        if self._is_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _progress(content: object) -> dict[str, Any]:
    assert isinstance(content, dict), "a drain's progress"
    return content


def rolling_restart(
    *,
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="COMMAND",
            help="Command that restarts a broker. {broker} is its id, {host} the name before the port.",
        ),
    ],
    first: Annotated[
        str | None, typer.Option("--from", metavar="BROKER", help="Start with this broker and skip those before it.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the order and the commands, and do nothing.")] = False,
) -> Procedure:
    """Restart all brokers in order: drain one, run a command, wait until it has its bundles back."""
    return _RollingRestart(shlex.split(run), first, plan_only=plan)


class _RollingRestart:
    def __init__(self, run: Sequence[str], first: str | None, *, plan_only: bool) -> None:
        self._run = run
        self._first = first
        self._plan_only = plan_only

    def __call__(self, service: Service) -> None:
        brokers = service.get(get("/admin/v2/brokers"))
        assert isinstance(brokers, list), "the registered brokers"
        left = [broker for broker in sorted(brokers) if self._first is None or broker >= self._first]
        if self._first not in (None, *left):
            fail(f"--from: {self._first} is not registered; known: {', '.join(sorted(brokers))}", EXIT_FAILURE)
        for number, broker in enumerate(left, 1):
            if self._plan_only:
                print(f"{number} of {len(left)}: {broker}: {shlex.join(self._command(broker))}")
                continue
            began_s = time.monotonic()
            try:
                self._restart(service, broker)
            except KeyboardInterrupt:
                self._end(service, broker, "interrupted", EXIT_INTERRUPTED)
            took = format_duration(time.monotonic() - began_s)
            print(f"{number} of {len(left)}: {broker} is restarted and has its bundles again after {took}", flush=True)

    def _restart(self, service: Service, broker: str) -> None:
        waiter = DrainWaiter(broker, put("/loadbalance/v1/brokers", broker, "drain", andReturn=True))
        if not self._is_returning(service, broker):
            waiter.wait(service)
            try:
                subprocess.run(self._command(broker), check=True)  # noqa: S603 - the operator's own command
            except (OSError, subprocess.CalledProcessError) as error:
                self._end(service, broker, str(error), EXIT_FAILURE)
        waiter.wait_for_return(service)

    def _is_returning(self, service: Service, broker: str) -> bool:
        """Tell if an earlier run has drained and restarted the broker."""
        try:
            progress: Any = service.get(get("/loadbalance/v1/brokers", broker, "drain"))
        except NodeRefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return bool(progress["state"] == "returning")

    def _command(self, broker: str) -> list[str]:
        host = broker.rpartition(":")[0]
        return [part.replace("{broker}", broker).replace("{host}", host) for part in self._run]

    def _end(self, service: Service, broker: str, why: str, code: int) -> NoReturn:
        go_on = service.command(f"brokers rolling-restart --from {broker} --run {shlex.quote(shlex.join(self._run))}")
        stop = service.command(f"brokers stop-drain {broker}")
        fail(f"stopped at {broker}: {why}\nto go on: {go_on}\nto give up: {stop}", code)
