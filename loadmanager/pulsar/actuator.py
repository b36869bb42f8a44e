"""Actuator beside a Pulsar: rounds, drains and plans that move and split bundles, and what stops them."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.config import PulsarServiceSettings
from loadmanager.core.domain.plan import Plan
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.execution.executor import Executor, ExecutorSettings
from loadmanager.leader.loops.drain_loop import DrainLoop
from loadmanager.leader.loops.plan_driver import PlanDriver
from loadmanager.leader.loops.reshape_loop import ReshapeLoop
from loadmanager.leader.loops.shedding_loop import SheddingLoop
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.net.tracing import Tracing
from loadmanager.pulsar.broker_settings_poll import AskedBrokers
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.following_ledger import FollowingLedger
from loadmanager.pulsar.guardrail_facts import GuardrailFacts
from loadmanager.pulsar.move_verification import PulsarOwnership
from loadmanager.pulsar.pending_moves import ActsMemory
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_intake import PulsarIntake
from loadmanager.pulsar.pulsar_owners import PulsarOwners
from loadmanager.pulsar.recovery import Recovery
from loadmanager.pulsar.split_actuator import PulsarReshaper
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore

_OBSERVES = "mode is observe, in which nothing is moved: start this process with mode: act to have it done"


class Actuator:
    """Those of one process. A term begins with `take_over`, then `healer` is run beside all else; it ends with
    `put_down`.
    """

    def __init__(
        self,
        settings: PulsarServiceSettings,
        live: LiveSettings,
        mirror: ClusterMirror,
        picture: PulsarIntake,
        admin: PulsarAdmin,
        brokers: AskedBrokers,
        store: MetadataStore,
        election: Election,
        planner: PlannerService,
        operators: ConfigWriter,
        decision_log: DecisionLog,
        on_plan: Callable[[Plan], None],
        tracing: Tracing,
    ) -> None:
        self.memory = ActsMemory(FencedRecord(store, election, paths.PULSAR_MOVES), settings.failures_until_stop)
        self.rails = GuardrailFacts(settings, mirror, picture, brokers, self.memory)
        owned = PulsarOwnership(picture, admin, election)
        self.healer = Recovery(self.memory, owned, decision_log)
        self._ledger = FollowingLedger(mirror, picture, owned, election, self.rails.check, self.memory, decision_log)
        self.executor = Executor(
            mirror,
            self._ledger,
            PulsarOwners(picture, admin, election, self.memory.note_return),
            decision_log,
            lambda: ExecutorSettings.of(live.current),
            planner.churn,
            planner.recorder,
            tracing,
        )
        self.shedding = SheddingLoop(
            planner, self.executor, election, decision_log, mirror, live, self.rails, on_plan, tracing
        )
        self.reshaper = PulsarReshaper(
            mirror, admin, election, self.rails, self.memory, decision_log, live, picture.read_bundles
        )
        self.reshaping = ReshapeLoop(mirror, planner, self.reshaper, election, decision_log, live)
        refusal = _OBSERVES if settings.mode == "observe" else ""
        self.drains = DrainLoop(mirror, planner, self.executor, operators, decision_log, live, refusal)
        self.plans = PlanDriver(mirror, planner, self.executor, live, refusal)

    async def take_over(self) -> None:
        """Read what the last term left."""
        await self.memory.take_over()
        self.drains.forget()
        self.plans.forget()

    async def put_down(self) -> None:
        """Leave what is under way to the next term."""
        await self.executor.abort()
        self._ledger.put_down()
