"""Actuator beside a Pulsar: rounds, drains and plans that move and split bundles, and their guardrails."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.domain.plan import Plan
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.loops.drain_loop import DrainLoop
from loadmanager.leader.loops.plan_driver import PlanDriver
from loadmanager.leader.loops.reshape_loop import ReshapeLoop
from loadmanager.leader.loops.shedding_loop import SheddingLoop
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.net.tracing import Tracing
from loadmanager.pulsar.broker_settings import BrokerSettingsPoll
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.guardrail_facts import GuardrailFacts
from loadmanager.pulsar.move_log import MoveLog, Recovery
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_intake import PulsarIntake
from loadmanager.pulsar.pulsar_ledger import PulsarLedger
from loadmanager.pulsar.pulsar_owners import OwnerFinder, PulsarOwners
from loadmanager.pulsar.split_actuator import PulsarReshaper
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore

_OBSERVES = "mode is observe, in which nothing is moved: start this process with mode: act to have it done"


class Actuator:
    """Executor and loops of one process. A term as leader begins with `take_over`, then `recovery` runs; it ends with
    `put_down`.
    """

    def __init__(
        self,
        settings: PulsarServiceSettings,
        live: LiveSettings,
        mirror: ClusterMirror,
        intake: PulsarIntake,
        admin: PulsarAdmin,
        brokers: BrokerSettingsPoll,
        store: MetadataStore,
        election: Election,
        planner: PlannerService,
        operators: ConfigWriter,
        decision_log: DecisionLog,
        on_plan: Callable[[Plan], None],
        tracing: Tracing,
    ) -> None:
        self.move_log = MoveLog(FencedRecord(store, election, paths.PULSAR_MOVES))
        self.guardrails = GuardrailFacts(settings, mirror, intake, brokers, self.move_log)
        owned = OwnerFinder(intake, admin, election)
        self.recovery = Recovery(self.move_log, owned, decision_log)
        self._ledger = PulsarLedger(mirror, intake, owned, election, self.guardrails.check, self.move_log, decision_log)
        self.executor = Executor(
            mirror,
            self._ledger,
            PulsarOwners(intake, admin, election),
            decision_log,
            live,
            planner.churn,
            tracing,
        )
        self.shedding = SheddingLoop(
            planner, self.executor, election, decision_log, mirror, live, self.guardrails, on_plan, tracing
        )
        self.reshaper = PulsarReshaper(
            mirror, admin, election, self.guardrails, self.move_log, decision_log, live, intake.read_bundles
        )
        self.reshaping = ReshapeLoop(mirror, planner, self.reshaper, election, decision_log, live)
        refusal = _OBSERVES if settings.mode == "observe" else ""
        self.drains = DrainLoop(mirror, planner, self.executor, operators, decision_log, live, refusal)
        self.plans = PlanDriver(mirror, planner, self.executor, live, refusal)

    async def take_over(self) -> None:
        """Read the moves of the last term."""
        await self.move_log.take_over()
        self.drains.forget()
        self.plans.forget()

    async def put_down(self) -> None:
        """Leave in-flight moves to the next term."""
        await self.executor.abort()
        self._ledger.put_down()
