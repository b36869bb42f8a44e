"""One process beside a Pulsar: looks at its brokers always, and plans, judges and moves bundles while it leads.

Two stores: Pulsar's, which is only read, and one of our own, in which such processes elect the one that plans, and keep
what operators tell them. Each has a view; what is told is copied into the one that decisions go by.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from loadmanager.beside.asking import AskedBrokers
from loadmanager.beside.picture import PulsarIntake
from loadmanager.beside.reading import ReadOnlyStore
from loadmanager.beside.settings import PulsarSettings
from loadmanager.beside.shadowing import ShadowDrains, ShadowPlans
from loadmanager.config import BesideSettings, settings_of
from loadmanager.core.leadership import Term
from loadmanager.leader.balancing.draining import Drainer
from loadmanager.leader.balancing.plans import PlanKeeper
from loadmanager.leader.balancing.shedding import SheddingLoop
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.carrying_out.executor import Executor, ExecutorSettings
from loadmanager.leader.deciding.desk import MINUTE_S, Desk
from loadmanager.leader.deciding.explaining import Explainer
from loadmanager.leader.persistence import Persistence
from loadmanager.leader.picture.intake import Intake
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.port import DrainPort, PlanPort, Scrape
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.recording.opening import open_view
from loadmanager.leader.recording.recorded_model import RecordedModel
from loadmanager.leader.scraping import scrape_of_moves
from loadmanager.leader.term.operators import Operators
from loadmanager.store.base import MetadataStore, SessionState

log = structlog.get_logger(__name__)

_MEMORY_S = 60.0


class BesideNode(Candidate):
    """`start` returns once all that decisions go by was read; `stop` hands over. To HTTP it is a `port.BesidePort`."""

    def __init__(
        self,
        settings: BesideSettings,
        live: PulsarSettings,
        pulsar: ReadOnlyStore,
        store: MetadataStore,
        admin: PulsarAdmin,
        node_id: str,
        service_url: str,
        seed: int,
    ) -> None:
        self.settings = settings
        self.live = live
        self.pulsar = pulsar
        self.admin = admin
        self.view, self.recorder, self.moves = open_view(live, node_id)
        self._elected_view = ClusterView()
        probe_s = live.current.leader_probe_interval_ms / 1000
        super().__init__(store, self._elected_view, node_id, service_url, probe_s)
        self.journal = Journal(live.current.decisions_kept)
        self.intake = Intake(store, self._elected_view, LiveSettings(settings_of({}, "")), self._on_told)
        cluster = live.current.cluster_name
        self.picture = PulsarIntake(pulsar, self.view, live, cluster, self._on_seen, self._on_moved)
        self.brokers = AskedBrokers(admin, self.view)
        self.operators = Operators(store, self.intake, self.election)
        self.desk = Desk(self.view, live, self.journal, seed, self.recorder, self.moves)
        self.explainer = Explainer(self.view, self.desk, self.journal)
