"""Driver of `loadmanager.core.protocol.reconciler`: finds unfinished records and finishes them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import structlog

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol.reconciler import (
    Action,
    AssignBundles,
    Event,
    Freed,
    NotFreed,
    ReconcilerMachine,
    RecordsScanned,
    ResumeRelease,
    ScanRecords,
)
from loadmanager.core.protocol.state_machine import Signal, Write
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.machine_driver import MachineDriver, write
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.leader.execution.assignment_driver import AssignmentDriver
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror

log = structlog.get_logger(__name__)


class ReconcilerDriver:
    """Finds unfinished work in the ownership records, and finishes it."""

    def __init__(
        self,
        mirror: ClusterMirror,
        ledger: OwnershipLedger,
        executor: Executor,
        assigner: AssignmentDriver,
        decision_log: DecisionLog,
    ) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._executor = executor
        self._assigner = assigner
        self._decision_log = decision_log
        self._machine = ReconcilerMachine(mirror, mirror.model.bundles_owned_by, assigner.is_assigning)
        self._driver = MachineDriver(self._machine, self._do)

    def wake(self) -> None:
        """Check all bundles again after a change that may have left work unfinished."""
        self._driver.step(Signal.MEMBERSHIP)

    async def run(self) -> None:
        """Check every bundle at the start of the term, and then when due, for as long as the term lasts."""
        self._machine.forget()
        await self._driver.run()

    def _do(self, action: Action) -> Coroutine[Any, Any, Event] | None:
        match action:
            case ScanRecords():
                return self._look()
            case Write():
                return write(self._ledger, action)
            case ResumeRelease(bundle):
                self._executor.resume(BundleName.parse(bundle))
            case AssignBundles(bundles):
                self._assigner.place_soon(bundles)
            case Freed(bundle, owner, stored):
                self._decision_log.moved("freed", bundle, OwnershipReason.OWNER_GONE, epoch=stored.epoch, source=owner)
            case NotFreed(bundle, error):
                log.info("bundle_not_freed", bundle=bundle, error=str(error))
        return None

    async def _look(self) -> Event:
        if not self._mirror.is_fresh:
            return RecordsScanned((), ())
        model, is_registered = self._mirror.model, self._mirror.is_registered
        gone = [owner for owner in model.owners() if not is_registered(owner)]
        return RecordsScanned(model.releasing(), gone)
