"""Pulsar's own balancing, switched off while we act and given back afterwards: `takeOver`.

What dynamic configuration said before is written down in our own store before Pulsar is told anything, so whoever is
killed leaves it to the next one. What is given back is what still is as it was left: an operator of Pulsar's who has
changed a switch meanwhile has the last word, until another term begins.

| a switch | what is done |
|---|---|
| is on at a broker, and we lead | what dynamic configuration says of it is written down, then it is set to false |
| was set to false by us, and is on again | nothing: an operator of Pulsar's wants it so |
| is off, at every broker | nothing |
| is written down when a term begins, and false | it counts as set by us |
| is written down when a term begins, and not false | it is forgotten: it was never set, or an operator changed it |
| set by us, and this process ends, or the next one does not take over | given back |
| set by somebody who acted, and the next one is in mode observe | the way back is said: mode observe changes nothing |
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import orjson
import structlog

from loadmanager.config import PulsarServiceSettings
from loadmanager.core.domain.settings import KEYS
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError

log = structlog.get_logger(__name__)

SHEDS = KEYS["shedding_enabled"]
SPLITS = KEYS["auto_bundle_split_enabled"]
SWITCHES = (SHEDS, SPLITS)
"""Keys that let Pulsar move and split bundles by itself."""

_AGAIN_S = 1.0
_OFF = "false"


class Configures(Protocol):
    """Part of `PulsarAdmin` that is needed here."""

    async def dynamic(self) -> dict[str, str]: ...
    async def set_dynamic(self, key: str, value: str) -> None: ...
    async def delete_dynamic(self, key: str) -> None: ...


class TakeOver:
    """`settings` say whether anything is taken over. `run` it for a term, and `give_back` before handing that over."""

    def __init__(self, admin: Configures, record: FencedRecord, settings: PulsarServiceSettings) -> None:
        self._admin = admin
        self._record = record
        self._settings = settings
        self._turn = asyncio.Lock()
        self._before: dict[str, str | None] = {}
        self._set: set[str] = set()
        self._is_over = False

    def way_back(self) -> list[str]:
        """The commands by which Pulsar is as it was before."""
        return [_way_back(key, before) for key, before in self._before.items()]

    async def find_left_off(self) -> list[str]:
        """Return the commands that give back what an earlier term left off, by the record; raises as `begin`."""
        async with self._turn:
            self._before = _decode(await self._record.read(), self._record.path)
        return self.way_back()

    async def begin(self) -> None:
        """Go on with what earlier terms left, or give it back if that is not wanted any more.

        Raises a `StoreError`, `InvalidRecordError`, `NotLeaderError`, or what `PulsarAdmin` raises.
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
            log.warning("pulsars_balancing_was_left_off", way_back=self.way_back())
        elif not self._settings.take_over:
            await self.give_back()

    async def run(self, find_on: Callable[[], Collection[str]]) -> None:
        """`begin`, and `take` what is on at a broker (`find_on`), while a term lasts; what fails is tried again."""
        has_begun, said = False, ""
        while True:
            try:
                if not has_begun:
                    await self.begin()
                    has_begun = True
                if self._settings.take_over:
                    await self.take(find_on())
                said = ""
            except (PulsarRefusedError, PulsarUnreachableError, StoreError, InvalidRecordError) as error:
                if str(error) != said:
                    log.warning("cannot_take_over", error=str(error))
                said = str(error)
            await asyncio.sleep(_AGAIN_S)

    async def take(self, on: Collection[str]) -> None:
        """Switch off those of the switches that are `on` and were not switched off by us; raises as `begin`."""
        async with self._turn:
            wanted = [key for key in SWITCHES if key in on and key not in self._set]
            if not wanted or self._is_over:
                return
            self._record.must_lead()
            dynamic = await self._admin.dynamic()
            wanted = [key for key in wanted if dynamic.get(key) != _OFF]  # else brokers are about to hear of it
            await self._write({**{key: dynamic.get(key) for key in wanted}, **self._before})
            for key in wanted:
                await self._admin.set_dynamic(key, _OFF)
                self._set.add(key)
                log.warning("took_over", key=key, before=self._before[key], way_back=_way_back(key, self._before[key]))

    async def give_back(self) -> None:
        """Let Pulsar be as it was before; nothing is taken over from then on. Raises as `begin`."""
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
        log.info("gave_back", key=key, value=before)

    async def _write(self, before: dict[str, str | None]) -> None:
        if before != self._before:
            await self._record.write(_encode(before))
            self._before = before


def _way_back(key: str, before: str | None) -> str:
    if before is None:
        return f"pulsar-admin brokers delete-dynamic-config --config {key}"
    return f"pulsar-admin brokers update-dynamic-config --config {key} --value {shlex.quote(before)}"


def _encode(before: Mapping[str, str | None]) -> bytes:
    return orjson.dumps({"before": before})


def _decode(data: bytes | None, where: str) -> dict[str, str | None]:
    if data is None:
        return {}
    try:
        before = orjson.loads(data)["before"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        before = None
    if not isinstance(before, dict) or not all(isinstance(each, str | None) for each in before.values()):
        raise InvalidRecordError(
            f"{where}: not what a process beside a Pulsar writes: switch {', '.join(SWITCHES)} on at the Pulsar if they"
            " are to be, and delete it"
        )
    return before
