"""Take-over: switch Pulsar's own balancing off while this process acts, and restore it afterwards (`takeOver`).

The previous value of dynamic configuration is written to our own store before Pulsar is changed, so that the next
process can restore it after a crash. A switch that an operator of Pulsar changed meanwhile is not restored.

| state of a switch | action |
|---|---|
| on at a broker, and this process leads | record the value of dynamic configuration, then set it to false |
| set to false by us, and on again | none: an operator of Pulsar has switched it on |
| off at every broker | none |
| recorded when a term begins, and false | treat it as set by us |
| recorded when a term begins, and not false | forget the record: it was never set, or an operator changed it |
| set by us, and this process stops, or the next one does not take over | restore it |
| set by an earlier process, and the next one only observes | log the commands that restore it |
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Collection
from typing import Protocol

import orjson
import structlog

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.domain.settings import KEYS
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError

log = structlog.get_logger(__name__)

SHEDS = KEYS["shedding_enabled"]
SPLITS = KEYS["auto_bundle_split_enabled"]
SWITCHES = (SHEDS, SPLITS)
"""Keys that let Pulsar move and split bundles by itself."""

_AGAIN_S = 1.0
_OFF = "false"


class ConfigurationClient(Protocol):
    """Dynamic configuration of a Pulsar."""

    async def dynamic(self) -> dict[str, str]: ...
    async def set_dynamic(self, key: str, value: str) -> None: ...
    async def delete_dynamic(self, key: str) -> None: ...


class TakeOver:
    """Runs for a term; `restore_switches` restores Pulsar's switches before the term ends."""

    def __init__(self, admin: ConfigurationClient, record: FencedRecord, settings: PulsarServiceSettings) -> None:
        self._admin = admin
        self._record = record
        self._settings = settings
        self._turn = asyncio.Lock()
        self._before: dict[str, str | None] = {}
        self._set: set[str] = set()
        self._is_over = False

    def undo_commands(self) -> list[str]:
        """Return the commands that restore Pulsar's switches."""
        return [_undo_command(key, before) for key, before in self._before.items()]

    async def read_undo_commands(self) -> list[str]:
        """Return the commands that restore the values which an earlier term recorded. Raises as `begin`."""
        async with self._turn:
            self._before = _decode(await self._record.read(), self._record.path)
        return self.undo_commands()

    async def begin(self) -> None:
        """Continue the take-over of an earlier term, or restore the switches if `takeOver` is off.

        Raises a `StoreError`, `InvalidRecordError`, `NotLeaderError`, or an error of `PulsarAdmin`.
        """
        async with self._turn:
            self._is_over = False
            self._before = _decode(await self._record.read(), self._record.path)
            if not self._before:
                return
            dynamic = await self._admin.dynamic()
            await self._write({key: before for key, before in self._before.items() if dynamic.get(key) == _OFF})
            self._set = set(self._before)
        if not self._before:
            return
        if self._settings.mode != "act":
            log.warning("pulsar_balancing_left_off", undo_commands=self.undo_commands())
        elif not self._settings.take_over:
            await self.restore_switches()

    async def run(self, find_on: Callable[[], Collection[str]]) -> None:
        """Call `begin`, then `take` with the switches of `find_on` until the term ends. Failures are retried."""
        has_begun, logged = False, ""
        while True:
            try:
                if not has_begun:
                    await self.begin()
                    has_begun = True
                if self._settings.take_over:
                    await self.take(find_on())
                logged = ""
            except (PulsarRefusedError, PulsarUnreachableError, StoreError, InvalidRecordError) as error:
                if str(error) != logged:
                    log.warning("pulsar_balancing_not_switched_off", error=str(error))
                logged = str(error)
            await asyncio.sleep(_AGAIN_S)

    async def take(self, on: Collection[str]) -> None:
        """Switch off those of `on` that we have not switched off yet. Raises as `begin`."""
        async with self._turn:
            wanted = [key for key in SWITCHES if key in on and key not in self._set]
            if not wanted or self._is_over:
                return
            self._record.must_lead()
            dynamic = await self._admin.dynamic()
            wanted = [key for key in wanted if dynamic.get(key) != _OFF]  # skip those that brokers will apply soon
            await self._write({**{key: dynamic.get(key) for key in wanted}, **self._before})
            for key in wanted:
                await self._admin.set_dynamic(key, _OFF)
                self._set.add(key)
                before = self._before[key]
                log.warning(
                    "pulsar_balancing_switched_off", key=key, before=before, undo_commands=[_undo_command(key, before)]
                )

    async def restore_switches(self) -> None:
        """Restore Pulsar's switches, and switch nothing off afterwards. Raises as `begin`."""
        async with self._turn:
            self._is_over = True
            if not self._before:
                return
            self._record.must_lead()
            dynamic = await self._admin.dynamic()
            for key, before in self._before.items():
                if dynamic.get(key) == _OFF:
                    await self._restore(key, before)
            self._set.clear()
            await self._write({})

    async def _restore(self, key: str, before: str | None) -> None:
        if before is None:
            await self._admin.delete_dynamic(key)
        else:
            await self._admin.set_dynamic(key, before)
        log.info("pulsar_balancing_restored", key=key, value=before)

    async def _write(self, before: dict[str, str | None]) -> None:
        if before != self._before:
            await self._record.write(orjson.dumps({"before": before}))
            self._before = before


def _undo_command(key: str, before: str | None) -> str:
    if before is None:
        return f"pulsar-admin brokers delete-dynamic-config --config {key}"
    return f"pulsar-admin brokers update-dynamic-config --config {key} --value {shlex.quote(before)}"


def _decode(data: bytes | None, where: str) -> dict[str, str | None]:
    if data is None:
        return {}
    try:
        before = orjson.loads(data)["before"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        before = None
    if not isinstance(before, dict) or not all(isinstance(each, str | None) for each in before.values()):
        raise InvalidRecordError(
            f"{where}: not the record of a take-over: delete the znode, and switch {', '.join(SWITCHES)} on at the"
            " Pulsar if they should be on"
        )
    return before
