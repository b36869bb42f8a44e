"""When bundles are split and merged by themselves: in rounds, and never while an operator has frozen the balancer."""

from __future__ import annotations

import structlog

from loadmanager.core.plan import Verdict
from loadmanager.core.reasons import SplitReason
from loadmanager.core.settings import is_extensible
from loadmanager.errors import NotLeaderError
from loadmanager.leader.balancing.merging import Merger
from loadmanager.leader.balancing.splitting import Splitter
from loadmanager.leader.carrying_out.reshaping import CLUSTER, Reshaper
from loadmanager.leader.deciding.desk import MINUTE_S
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.term.election import Election

log = structlog.get_logger(__name__)


class ReshapingLoop:
    """A round every `loadBalancerSplitIntervalMinutes`, if anything has changed since the last one."""

    def __init__(
        self,
        view: ClusterView,
        reshaper: Reshaper,
        splitter: Splitter,
        merger: Merger,
        election: Election,
        journal: Journal,
        live: LiveSettings,
    ) -> None:
        self._view = view
        self._reshaper = reshaper
        self._splitter = splitter
        self._merger = merger
        self._election = election
        self._journal = journal
        self._live = live
        self._looked_at = 0
        self.rounds = 0
        self.rounds_failed = 0

    async def run(self) -> None:
        """Pause, look, carry out, for as long as the term lasts; the pause starts after the work ends."""
        while True:
            await self._live.pause(lambda settings: settings.load_balancer_split_interval_minutes * MINUTE_S)
            try:
                await self.round()
            except NotLeaderError:
                raise
            except Exception:
                self.rounds_failed += 1
                log.exception("reshaping_round_failed", round=self.rounds)

    async def round(self) -> None:
        """Splits, then merges. Under the modular rule nothing is done when nothing has changed since the last round;
        the extensible one counts rounds.
        """
        self._election.get_term()
        self._remind_agents()
        self.rounds += 1
        settings, controls = self._live.planner, self._view.laid_down.controls
        if controls.frozen:
            why = {"frozen": controls.frozen}
            frozen = Verdict(CLUSTER, SplitReason.RESHAPING_FROZEN, acted=False, why=why)
            self._journal.judged("split", frozen, epoch=self._view.epoch)
            return
        revision = self._view.model.revision
        if revision != self._looked_at or is_extensible(settings):
            await self._splitter.round(settings, controls)
            await self._merger.round(self._live.planner, controls)
            self._looked_at = revision

    def _remind_agents(self) -> None:
        """Tell those agents of new boundaries that report bundles which are no more: nobody may have told them."""
        for broker_id, namespaces in self._view.model.unknown_bundles().items():
            entry = self._view.brokers.get(broker_id)
            if entry is not None:
                for namespace in sorted(namespaces):
                    self._reshaper.tell(entry.registration, namespace)
