"""Facts for the guardrails (`core.protocol.guardrails`), which are checked before each round and each move."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.core.domain.policies import Patterns
from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.core.planning.blocking_limits import BlockingLimit
from loadmanager.core.planning.churn import OPERATOR_REASONS
from loadmanager.core.protocol.guardrails import (
    BrokerFacts,
    ClusterFacts,
    GuardrailLimits,
    NamespaceSelection,
    WantedMove,
    check_move,
    check_moves,
    check_round,
    check_split,
)
from loadmanager.errors import ConflictError
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.pulsar.broker_settings import BrokerSettingsPoll
from loadmanager.pulsar.move_log import MoveLog
from loadmanager.pulsar.pulsar_intake import PulsarIntake

_HOUR_S = 3600.0
_LIMITS = frozenset(
    {GuardrailReason.HOURLY_LIMIT_REACHED, GuardrailReason.BROKERS_SETTLING, GuardrailReason.TOO_MANY_FAILURES}
)
"""Verdicts against a round that time or an operator's command ends."""


class GuardrailError(ConflictError):
    """Guardrails stop a move; `stops` are their verdicts."""

    def __init__(self, stops: Sequence[Verdict]) -> None:
        super().__init__("; ".join(f"{stop.subject}: {stop.sentence()}" for stop in stops))
        self.stops = stops


class GuardrailFacts:
    """Collects the facts and returns the verdicts of the guardrails."""

    def __init__(
        self,
        settings: PulsarServiceSettings,
        mirror: ClusterMirror,
        intake: PulsarIntake,
        switches: BrokerSettingsPoll,
        move_log: MoveLog,
    ) -> None:
        self._settings = settings
        self._mirror = mirror
        self._intake = intake
        self._switches = switches
        self._move_log = move_log
        self._limits = GuardrailLimits(
            settling_s=settings.settling_seconds,
            moves_per_round=settings.moves_per_round,
            moves_per_hour=settings.moves_per_hour,
            namespaces=NamespaceSelection(
                Patterns(settings.included_namespaces), Patterns(settings.excluded_namespaces)
            ),
        )
        self._excluded: dict[str, bool] = {}
        self._round_began_s = 0.0
        self._touched_s: Mapping[BrokerId, float] = {}

    def find_excluded(self, namespaces: Iterable[str]) -> frozenset[str]:
        """Return the namespaces whose bundles are never moved."""
        for namespace in namespaces:
            if namespace not in self._excluded:
                self._excluded[namespace] = self._limits.namespaces.find_exclusion(namespace) is not None
        return frozenset(namespace for namespace in namespaces if self._excluded[namespace])

    def begin_round(self) -> Sequence[Verdict]:
        """Return the verdicts on the round that begins now. Each broker's report must be newer than its last move."""
        self._round_began_s = now_s = time.time()
        history = self._move_log.history
        on_their_way = (each for move in history.in_progress.values() for each in (move.source, move.destination))
        self._touched_s = {**history.touched_s, **{each: now_s for each in on_their_way if each is not None}}
        return self.check_round()

    def check_round(self) -> Sequence[Verdict]:
        """Return the verdicts on a round now."""
        return check_round(self._facts(), self._limits)

    def limits(self) -> list[BlockingLimit]:
        """Return the limits that stop rounds now."""
        facts = self._facts()
        return [
            BlockingLimit(stop.verdict, stop.sentence(), self._ends_s(stop, facts))
            for stop in check_round(facts, self._limits)
            if stop.verdict in _LIMITS
        ]

    def _ends_s(self, stop: Verdict, facts: ClusterFacts) -> float | None:
        if stop.verdict is GuardrailReason.BROKERS_SETTLING:
            return facts.now_s + self._settings.settling_seconds - facts.quiet_for_s
        if stop.verdict is GuardrailReason.HOURLY_LIMIT_REACHED:
            return self._move_log.history.at(facts.now_s).began_s[-self._settings.moves_per_hour] + _HOUR_S
        return None

    def check_steps(self, steps: Sequence[Unload]) -> Sequence[Sequence[Verdict]]:
        """Return the verdicts on each step of a round."""
        moves = [_move(step.bundle, step.source, step.destination, is_own=True) for step in steps]
        return check_moves(self._facts(), self._limits, moves)

    def check_split(self, bundle: str) -> Sequence[Verdict]:
        """Return the verdicts on a split of this bundle."""
        return check_split(self._facts(), self._limits, bundle)

    def check(self, bundle: str, released: Ownership) -> None:
        """Raise `GuardrailError` if a guardrail stops the move that the `released` state begins."""
        assert released.owner is not None, "what nobody owns cannot be released"
        move = _move(bundle, released.owner, released.destination, is_own=is_own(released.reason))
        stops = check_move(self._facts(), self._limits, move)
        if stops:
            raise GuardrailError(stops)

    def _facts(self) -> ClusterFacts:
        now_s, history = time.time(), self._move_log.history.at(time.time())
        return ClusterFacts(
            now_s=now_s,
            brokers=self._brokers(),
            pulsars_leader=self._intake.pulsars_leader,
            quiet_for_s=time.monotonic() - self._intake.changed_s,
            is_to_act=self._settings.mode == "act",
            is_whole=self._mirror.is_fresh,
            policies_fault=self._intake.policies_fault or "",
            open_moves=self._move_log.open_moves,
            failures=history.failures,
            moves_this_round=sum(at_s >= self._round_began_s for at_s in history.began_s),
            moves_this_hour=len(history.began_s),
        )

    def _brokers(self) -> dict[BrokerId, BrokerFacts]:
        switches = self._switches
        unknown, sheds, splits = set(switches.unknown()), set(switches.shedding()), set(switches.splitting())
        return {
            broker: BrokerFacts(
                sheds=None if broker in unknown else broker in sheds,
                splits=None if broker in unknown else broker in splits,
                load_manager=self._intake.load_manager(broker),
                reported_at_s=self._intake.reports_at_s(broker),
                touched_at_s=self._touched_s.get(broker),
            )
            for broker in self._mirror.registrations
        }


def _move(bundle: str, source: Registration, destination: Registration | None, *, is_own: bool) -> WantedMove:
    return WantedMove(bundle, source.broker, None if destination is None else destination.broker, is_own)


def is_own(reason: str) -> bool:
    """Return True for a move of shedding, False for one of an operator."""
    return reason not in OPERATOR_REASONS
