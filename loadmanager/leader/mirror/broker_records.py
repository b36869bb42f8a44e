"""Intake of broker records: from znodes into the mirror and the model.

A report is applied once per write of its znode. A report that cannot be read, or is rejected, leaves the last one in
force; its broker counts as alive all the same. Complete reports are read from the store on request (`RawReports`): a
node does not keep them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from loadmanager.core.domain.names import BrokerId, BundleName, parse_broker_id
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import recordable
from loadmanager.errors import BrokerNotFoundError, InvalidRecordError
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.store import paths
from loadmanager.store.metadata_store import Znode
from loadmanager.store.znode_codec import decode, is_packed
from loadmanager.util import clock
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import (
    MAX_BUNDLES_PER_REPORT,
    LocalBrokerData,
    decode_broker_record,
    decode_local_broker_data,
)

_ADDRESSES = ("pulsarServiceUrl", "pulsarServiceUrlTls", "webServiceUrl", "webServiceUrlTls")
_BROKER_PREFIX = f"{paths.BROKERS}/"
_LONG_BYTES = 32 * 1024
"""Size from which reports are decoded in a thread, as all compressed ones are, so as not to block the event loop."""

_Decoding = asyncio.Future[tuple[LocalBrokerData, BrokerReport]]


class BrokerRecords:
    """Applies broker records. `parse` parses bundle names, as in `report_of`."""

    def __init__(
        self,
        mirror: ClusterMirror,
        live: LiveSettings,
        parse: Callable[[str], BundleName] = BundleName.parse,
    ) -> None:
        self._mirror = mirror
        self._live = live
        self._parse = parse
        self._decoded: _Decoding | None = None
        self.applied = 0

    async def decode_long(self, path: str, znode: Znode | None) -> None:
        """Decode a long report in a thread before it is applied.

        One at a time: threads share the interpreter, and a decoded report needs far more memory than what is kept.
        """
        if znode is None or not path.startswith(_BROKER_PREFIX) or not _is_long(znode.data):
            return
        known = self._mirror.brokers.get(BrokerId(path.removeprefix(_BROKER_PREFIX)))
        if known is None or (known.registration.incarnation, known.znode_version) != (znode.czxid, znode.version):
            self._decoded = asyncio.ensure_future(asyncio.to_thread(self._decode, path, znode.data))
            await asyncio.wait({self._decoded})

    def apply(self, name: str, znode: Znode | None) -> None:
        """Apply the znode of a broker, None if it is gone; raises `InvalidRecordError` and `InvalidNameError`."""
        broker_id = BrokerId(name)
        decoded, self._decoded = self._decoded, None
        if znode is None:
            self._mirror.drop_broker(broker_id)
            return
        registration = self.register(name, znode)
        known = self._mirror.brokers.get(broker_id)
        if known is not None and known.registration == registration and known.znode_version == znode.version:
            self._refuse_rejected(broker_id)
            return
        where = paths.broker(name)
        record, report = decoded.result() if decoded else self._decode(where, znode.data)
        self._mirror.put_broker(registration, znode.version, record)
        self._take_in(registration, report)
        self._refuse_rejected(broker_id)

    def register(self, name: str, znode: Znode) -> Registration:
        """Register the broker of a znode, whatever its content; raises `InvalidNameError`."""
        registration = Registration(parse_broker_id(name), znode.czxid)
        if self._mirror.registrations.get(registration.broker) != registration:
            self._mirror.drop_broker(registration.broker)
            self._mirror.registrations[registration.broker] = registration
            if registration.broker in self._mirror.operator_config.controls.held_off:
                self._mirror.unsettled += 1  # bundles may have waited for it
        return registration

    def _take_in(self, registration: Registration, report: BrokerReport) -> None:
        most_age_s = self._live.planner.broker_load_data_ttl_in_seconds
        judged = self._mirror.gate.judge(registration, report, time.time(), most_age_s)
        faults = self._mirror.model.faults()
        if faults.is_stuck(registration.broker) != bool(report.stuck):  # does not wait for the next round
            self._mirror.model.set_faults(faults.with_stuck(registration.broker, report.stuck))
        if judged.counts:
            self._mirror.model.apply_report(registration, judged.report)
            self.applied += 1

    def _decode(self, where: str, data: bytes) -> tuple[LocalBrokerData, BrokerReport]:
        """Decode a broker's record and its load report; raises `InvalidRecordError`. Changes nothing."""
        record = decode_broker_record(decode(data, where), where, MAX_BUNDLES_PER_REPORT)
        if not any(record.get(key) for key in _ADDRESSES):
            raise InvalidRecordError(f"{where}: no address for clients: one of {', '.join(_ADDRESSES)} is needed")
        known, read_at_ms = self._mirror.model.known_bundles, clock.now_ms()
        return record, recordable(report_of(record, where, known, read_at_ms, self._parse))

    def _refuse_rejected(self, broker: BrokerId) -> None:
        """Raise `InvalidRecordError` when the last report of a broker is rejected, so that it is listed as a fault."""
        fault = self._mirror.gate.find_fault(broker)
        if fault is not None:
            raise InvalidRecordError(f"{paths.broker(broker)}: the report is rejected: {fault}")


def _is_long(data: bytes) -> bool:
    return len(data) >= _LONG_BYTES or is_packed(data)


class RawReports:
    """Reads load reports; `get` reads a znode."""

    def __init__(self, get: Callable[[str], Awaitable[Znode | None]], mirror: ClusterMirror) -> None:
        self._get = get
        self._mirror = mirror

    async def read(self, broker_id: BrokerId) -> LocalBrokerData:
        """Return the last complete report of a registered broker.

        Raises `BrokerNotFoundError`, `InvalidRecordError` and `StoreError`.
        """
        self._mirror.get_registration(broker_id)
        where = paths.broker(broker_id)
        znode = await self._get(where)
        if znode is None:
            raise BrokerNotFoundError(f"broker {broker_id!r} has just gone")
        return await asyncio.to_thread(lambda: decode_local_broker_data(decode(znode.data, where), where))
