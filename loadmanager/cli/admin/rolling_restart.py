"""`loadmanager admin brokers rolling-restart`: drain, restart and refill the brokers, one after the other.

The drains and returns are orders in the cluster, so an interruption leaves only the current broker's behind.

Exit codes beside those of every command: 5 nothing that is left can leave; 130 interrupted.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, NoReturn

import typer

from loadmanager.cli.admin.drain_commands import DrainWaiter
from loadmanager.cli.admin.node_requests import get, put
from loadmanager.cli.admin.request_command import EXIT_INTERRUPTED, Procedure
from loadmanager.cli.admin.service_client import NodeRefusedError, Service
from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.text.numbers import format_duration


def rolling_restart(
    *,
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="COMMAND",
            help="Restarts a broker. {broker} stands for its id, {host} for the name before the port.",
        ),
    ],
    first: Annotated[
        str | None, typer.Option("--from", metavar="BROKER", help="Begin with this broker; those before it are done.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the order and the commands, and do nothing.")] = False,
) -> Procedure:
    """Restart all brokers in order: drain one, run a command, wait until it has its bundles again."""
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
        """Return True if a former run has drained and restarted the broker."""
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
