"""What moves and splits bundles beside a Pulsar, put together: rounds, drains and plans, and what stops them."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.beside.admin import PulsarAdmin
from loadmanager.beside.asking import AskedBrokers
from loadmanager.beside.fenced import FencedRecord
from loadmanager.beside.healing import Healer
from loadmanager.beside.ledger import FollowingLedger
from loadmanager.beside.owners import PulsarOwners
from loadmanager.beside.picture import PulsarIntake
from loadmanager.beside.rails import Rails
from loadmanager.beside.remembering import ActsMemory
from loadmanager.beside.seeing import Owned
from loadmanager.beside.splitting import PulsarReshaper
from loadmanager.config import BesideSettings
from loadmanager.core.plan import Plan
from loadmanager.leader.balancing.draining import Drainer
from loadmanager.leader.balancing.plans import PlanKeeper
from loadmanager.leader.balancing.rounds import ReshapingLoop
from loadmanager.leader.balancing.shedding import SheddingLoop
from loadmanager.leader.carrying_out.executor import Executor, ExecutorSettings
from loadmanager.leader.deciding.desk import Desk
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.term.election import Election
from loadmanager.leader.term.operators import Operators
from loadmanager.store import paths
from loadmanager.store.base import MetadataStore
from loadmanager.tracing import Tracing


class Hands:
    """Those of one process. A term begins with `take_over`, then `healer` is run beside all else; it ends with
    `put_down`.
    """

    def __init__(
        self,
        settings: BesideSettings,
        live: LiveSettings,
        view: ClusterView,
        picture: PulsarIntake,
        admin: PulsarAdmin,
        brokers: AskedBrokers,
        store: MetadataStore,
        election: Election,
        desk: Desk,
        operators: Operators,
        journal: Journal,
        on_plan: Callable[[Plan], None],
        tracing: Tracing,
    ) -> None:
        self.memory = ActsMemory(FencedRecord(store, election, paths.BESIDE_MOVES), settings.failures_until_stop)
        self.rails = Rails(settings, view, picture, brokers, self.memory)
        owned = Owned(picture, admin, election)
        self.healer = Healer(self.memory, owned, journal)
        self._ledger = FollowingLedger(view, picture, owned, election, self.rails.check, self.memory, journal)
        self.executor = Executor(
            view,
            self._ledger,
            PulsarOwners(picture, admin, election),
            journal,
            lambda: ExecutorSettings.of(live.current),
            desk.churn,
            desk.recorder,
            tracing,
        )
        self.shedding = SheddingLoop(desk, self.executor, election, journal, view, live, self.rails, on_plan, tracing)
        self.reshaper = PulsarReshaper(view, admin, election, self.rails, self.memory, journal, live)
        self.reshaping = ReshapingLoop(view, desk, self.reshaper, election, journal, live)
        self.drains = Drainer(view, desk, self.executor, operators, journal, live)
        self.plans = PlanKeeper(view, desk, self.executor, live)

    async def take_over(self) -> None:
        """Read what the last term left."""
        await self.memory.take_over()
        self.drains.forget()
        self.plans.forget()

    async def put_down(self) -> None:
        """Leave what is under way to the next term."""
        await self.executor.abort()
        self._ledger.put_down()
