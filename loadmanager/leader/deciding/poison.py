"""Watches for bundles that brokers die of, by `loadmanager.core.leading.poison`, while this node leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

import structlog

from loadmanager.core.leading.assignments import Poisoned
from loadmanager.core.leading.poison import (
    Condemned,
    Death,
    Died,
    Instruction,
    Lift,
    Memory,
    Poison,
    Remember,
    Rules,
    Spared,
)
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import Registration
from loadmanager.core.plan import Figure, Verdict
from loadmanager.core.reasons import PoisonReason
from loadmanager.history.rows import Event
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.recording.recorder import Recorder

log = structlog.get_logger(__name__)


class PoisonWatch:
    """`memory_changed` is set when it is worth writing down what is remembered."""

    def __init__(
        self,
        view: ClusterView,
        live: LiveSettings,
        journal: Journal,
        recorder: Recorder,
        memory_changed: asyncio.Event,
    ) -> None:
        self._view = view
        self._live = live
        self._journal = journal
        self._recorder = recorder
        self._memory_changed = memory_changed
        self._machine = Poison(view, self._rules)
        self.condemned = 0

    @property
    def memory(self) -> Memory:
        """What is remembered, for the next leader."""
        return self._machine.memory

    def forget(self) -> Memory:
        """What is remembered, and from here on is not: before it is known what the last leader remembered."""
        memory, self._machine.memory = self._machine.memory, Memory()
        return memory

    def restore(self, memory: Memory) -> None:
        """Go on with what a former leader remembered, and with what was seen since."""
        self._machine.memory = memory.joined(self._machine.memory)
        self._tell_planner()

    def died(self, owner: Registration) -> None:
        """A registration has ended; that of a broker that is drained, or held off for a restart, says nothing."""
        controls = self._view.laid_down.controls
        if owner.broker not in controls.draining and owner.broker not in self._view.holds():
            self._step(Died(owner, tuple(self._view.model.bundles_of(owner))))

    def look(self, owners: Iterable[Registration]) -> None:
        """A term begins: of these owners some may have died while nobody led."""
        for owner in {owner for owner in owners if not self._view.is_registered(owner)}:
            self.died(owner)

    def lift(self, bundle: str | None) -> None:
        """Have this bundle, or all, given away again, at an operator's word."""
        lifted = [name for name in self.memory.poison if bundle in (None, name)]
        self._step(Lift(bundle))
        for name in lifted:
            self._say(Verdict(name, PoisonReason.POISON_LIFTED, acted=True))
            self._recorder.put(Event("poison_lifted", name))

    def find(self, bundle: str) -> Poisoned | None:
        """Who alone is given the bundle, and why; None for one that is no poison."""
        deaths = self.memory.poison.get(bundle)
        if deaths is None:
            return None
        broker = self._live.planner.poison_bundle_broker
        registration = self._view.registrations.get(BrokerId(broker)) if broker else None
        if registration is None:
            return Poisoned(None, self._verdict(bundle, deaths))
        why: dict[str, Figure] = {"broker": broker, "deaths": len(deaths)}
        why |= self._live.planner.said("poison_bundle_broker")
        return Poisoned(registration, Verdict(bundle, PoisonReason.GIVEN_TO_POISON_BROKER, acted=True, why=why))

    def verdicts(self) -> Mapping[str, Verdict]:
        """Why each bundle that is poison is given to nobody."""
        return {bundle: self._verdict(bundle, deaths) for bundle, deaths in sorted(self._machine.poison.items())}

    def _verdict(self, bundle: str, deaths: Iterable[Death]) -> Verdict:
        said = [f"{death.broker} after {death.held_s:.0f} s" for death in deaths]
        why: dict[str, Figure] = {"deaths": len(said), "owners": ", ".join(said), "bundle": bundle}
        why |= self._live.planner.said("poison_bundle_seconds")
        return Verdict(bundle, PoisonReason.POISON_BUNDLE, acted=False, why=why)

    def _rules(self) -> Rules:
        settings = self._live.planner
        return Rules(settings.poison_bundle_deaths, settings.poison_bundle_seconds, settings.max_poison_bundles)

    def _step(self, event: Died | Lift) -> None:
        for instruction in self._machine.step(event, time.time()):
            self._do(instruction)
        self._tell_planner()

    def _tell_planner(self) -> None:
        """What decides goes by this from its next snapshot on."""
        model = self._view.model
        model.set_doubts(model.doubts().with_poison(self.verdicts()))

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Condemned(bundle, deaths):
                self.condemned += 1
                verdict = self._verdict(bundle, deaths)
                self._say(verdict)
                self._recorder.put(Event("poison_bundle", bundle, {"deaths": [list(death) for death in deaths]}))
                log.error("poison_bundle", bundle=bundle, sentence=verdict.sentence(), remedy=verdict.remedy())
            case Spared(owner, bundles):
                why: dict[str, Figure] = {"broker": owner.broker, "bundles": len(bundles)}
                why |= self._live.planner.said("max_poison_bundles")
                verdict = Verdict("cluster", PoisonReason.TOO_MANY_TO_BE_POISON, acted=False, why=why)
                self._say(verdict)
                log.error("too_many_to_be_poison", sentence=verdict.sentence(), remedy=verdict.remedy())
            case Remember():
                self._memory_changed.set()

    def _say(self, verdict: Verdict) -> None:
        self._journal.judged("poison", verdict, epoch=self._view.epoch)
