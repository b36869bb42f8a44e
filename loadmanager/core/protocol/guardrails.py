"""Guardrails for acting on a real Pulsar cluster: checks before each round, move and split.

Pure functions: facts go in, each violated guardrail comes out as a verdict. Any verdict blocks the action.

    applies to    guardrail         blocks while
    ----------    ---------         ------------
    all           mode              this node only observes
                  mirror            the mirror is incomplete
                  earlier moves     the outcome of an earlier term's moves is unknown
                  shedding, splits  a broker does so by itself, or its setting is unknown
                  load managers     a broker runs neither the modular nor the extensible load manager
                  leader            modular brokers have no leader, which places unloaded bundles
                  failures          too many moves failed in succession, until an operator resets the count
    moves,        namespace         the namespace is excluded; Pulsar's own namespaces always are
    splits
    rounds,       settling          a broker joined or left recently
    splits and
    own moves
    rounds and    hour              the hourly limit of own moves is reached
    own moves
    own moves     round             the limit of moves per round is reached
                  reports           source or destination has not reported since its last move

Own moves are those of shedding. Moves for an operator (a drain, a return, a pin, a plan, an unload) do not depend on
load, so neither settling, reports nor counts block them. The moves of one round were planned together, so they need no
report in between.

`MoveHistory` records moves and splits, so that the next leader can continue:

    what happens        in progress   began          touched                 failures
    ------------        -----------   -----          -------                 --------
    begun               + the move    + now, if own
    not begun           - the move    (stays)
    ended: landed       - the move                   source, destination     0, unless they were too many
    ended: missed       - the move                   source, where it is     (stay)
    ended: did not      - the move                   source, where it is     + 1
    ended: cancelled    - the move                   source, where it is     (stay)
    split: made                                      its owner               0, unless they were too many
    split: failed                                                            + 1
    resume                                                                   0

A move has landed if its destination owns the bundle; without a destination, if any broker does. It has missed if Pulsar
placed the bundle on another broker, or back on its source. That harms no client, and the next round decides again. Once
failures reach `MOST_FAILURES`, only an operator resets them, not a move that lands late. Times are seconds since 1970;
expired entries are dropped. Splits are never in progress: each is a single request to Pulsar.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId, is_self_test_namespace, namespace_of
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.policies import Patterns
from loadmanager.core.domain.reasons import ChurnReason, GuardrailReason, Reason, SheddingReason

MODULAR = "ModularLoadManagerImpl"
EXTENSIBLE = "ExtensibleLoadManagerImpl"
CLUSTER = "cluster"
"""Subject of verdicts that block everything."""

_OF_PULSAR = Patterns(("pulsar/.*",))
_SHOWN_BROKERS = 3

MOST_FAILURES = 3
"""Consecutive failed moves at which the process stops acting. One may be a busy broker, and each leaves a bundle
without an owner for a moment."""

_HOUR_S = 3_600.0
_TOUCHED_KEPT_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Facts about one registered broker. `sheds` and `splits` are True if it does so by itself, None if unknown;
    `load_manager` is the class it runs. Times are wall clock seconds: of its last report, and of the last move of an
    earlier round from or to it; None if there was none.
    """

    sheds: bool | None
    splits: bool | None
    load_manager: str
    reported_at_s: float | None
    touched_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Input of the guardrails at `now_s`, wall clock. `open_moves` is the reason why moves of earlier terms are
    unfinished, `policies_fault` the reason why policies are unusable; both are empty if there is none. `quiet_for_s` is
    the time since a broker last joined or left.
    """

    now_s: float
    brokers: Mapping[BrokerId, BrokerFacts]
    pulsars_leader: BrokerId | None
    quiet_for_s: float
    is_to_act: bool = True
    is_whole: bool = True
    policies_fault: str = ""
    open_moves: str = ""
    failures: int = 0
    moves_this_round: int = 0
    moves_this_hour: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceSelection:
    """Namespaces that may be moved: those that `included` matches (all if it is empty), minus those that `excluded`
    matches.

    Raises `InvalidPolicyError` for a pattern that cannot be used.
    """

    included: Patterns = field(default_factory=Patterns)
    excluded: Patterns = field(default_factory=Patterns)

    def find_exclusion(self, namespace: str) -> Mapping[str, Figure] | None:
        """Return the figures of the reason why a namespace is excluded, None if it is included."""
        if is_self_test_namespace(namespace):
            return {"namespace": namespace, "pattern": "the brokers, which test themselves in it"}
        if namespace.count("/") > 1:
            return {"namespace": namespace, "pattern": "the form of its name, which Pulsar has given up"}
        pattern = _OF_PULSAR.find(namespace) or self.excluded.find(namespace)
        if pattern is not None:
            return {"namespace": namespace, "pattern": pattern}
        if self.included.patterns and self.included.find(namespace) is None:
            return {"namespace": namespace}
        return None


@dataclass(frozen=True, slots=True)
class GuardrailLimits:
    """Limits set by the operator; times in seconds."""

    settling_s: float
    moves_per_round: int
    moves_per_hour: int
    namespaces: NamespaceSelection = field(default_factory=NamespaceSelection)


@dataclass(frozen=True, slots=True)
class WantedMove:
    """A move that is about to begin. `is_own`: requested by shedding, not by an operator."""

    bundle: str
    source: BrokerId
    destination: BrokerId | None
    is_own: bool


def check_round(facts: ClusterFacts, limits: GuardrailLimits) -> list[Verdict]:
    """Return the guardrails that block a round; empty if it may run."""
    return [
        *_check_cluster(facts),
        *_check_settling(facts, limits),
        *_check_hourly_limit(facts, limits, CLUSTER),
    ]


def check_move(facts: ClusterFacts, limits: GuardrailLimits, move: WantedMove) -> list[Verdict]:
    """Return the guardrails that block a move; empty if it may begin."""
    return check_moves(facts, limits, [move])[0]


def check_moves(facts: ClusterFacts, limits: GuardrailLimits, moves: Iterable[WantedMove]) -> list[list[Verdict]]:
    """Return the blocking guardrails of each move. Broker-wide checks run once."""
    of_cluster = [*_check_cluster(facts)]
    return [[*of_cluster, *_check_one(facts, limits, move)] for move in moves]


def check_controls(controls: Controls, brokers: Collection[BrokerId], stopped_for_s: float) -> Iterator[Verdict]:
    """Yield the operator controls that stop rounds, and the circuit breaker while it stops them."""
    if controls.frozen:
        yield _stop(SheddingReason.SHEDDING_FROZEN, frozen=controls.frozen)
    if controls.dry_run:
        yield _stop(GuardrailReason.DRY_RUN_ON)
    if stopped_for_s > 0:
        yield _stop(ChurnReason.SHEDDING_STOPPED, seconds_left=round(stopped_for_s))
    if brokers and not any(map(controls.takes_bundles, brokers)):
        yield _stop(GuardrailReason.NO_DESTINATION, registered=len(brokers))


def _check_one(facts: ClusterFacts, limits: GuardrailLimits, move: WantedMove) -> Iterator[Verdict]:
    yield from _check_namespace(limits, move.bundle)
    if move.is_own:
        yield from _check_settling(facts, limits)
        yield from _check_hourly_limit(facts, limits, move.bundle)
        if facts.moves_this_round >= limits.moves_per_round:
            why = {"moves": facts.moves_this_round, "moves_per_round": limits.moves_per_round}
            yield _stop(GuardrailReason.ROUND_LIMIT_REACHED, move.bundle, **why)
        yield from _check_reports(facts, move)


def check_split(facts: ClusterFacts, limits: GuardrailLimits, bundle: str) -> list[Verdict]:
    """Return the guardrails that block the split of a bundle; empty if it may begin."""
    return [*_check_cluster(facts), *_check_settling(facts, limits), *_check_namespace(limits, bundle)]


def _check_cluster(facts: ClusterFacts) -> Iterator[Verdict]:
    if not facts.is_to_act:
        yield _stop(GuardrailReason.MODE_IS_OBSERVE)
    if not facts.is_whole:
        yield _stop(GuardrailReason.CLUSTER_STATE_INCOMPLETE)
    if facts.policies_fault:
        yield _stop(GuardrailReason.POLICIES_UNKNOWN, why=facts.policies_fault)
    if facts.open_moves:
        yield _stop(GuardrailReason.EARLIER_MOVES_UNRESOLVED, why=facts.open_moves)
    yield from _check_brokers(facts)
    is_led = any(_is_a(MODULAR, broker) for broker in facts.brokers.values()) or not facts.brokers
    if is_led and facts.pulsars_leader not in facts.brokers:
        leader = {} if facts.pulsars_leader is None else {"leader": facts.pulsars_leader}
        yield _stop(GuardrailReason.PULSAR_HAS_NO_LEADER, registered=len(facts.brokers), **leader)
    if _are_too_many(facts.failures):
        yield _stop(GuardrailReason.TOO_MANY_FAILURES, failures=facts.failures)


def _check_settling(facts: ClusterFacts, limits: GuardrailLimits) -> Iterator[Verdict]:
    if facts.quiet_for_s < limits.settling_s:
        ago_s = round(facts.quiet_for_s)
        yield _stop(GuardrailReason.BROKERS_SETTLING, seconds_ago=ago_s, settling_s=limits.settling_s)


def _check_brokers(facts: ClusterFacts) -> Iterator[Verdict]:
    checks: tuple[tuple[Reason, Callable[[BrokerFacts], bool]], ...] = (
        (GuardrailReason.PULSAR_SHEDS, lambda broker: broker.sheds is True),
        (GuardrailReason.PULSAR_SPLITS, lambda broker: broker.splits is True),
        (GuardrailReason.SETTINGS_UNKNOWN, lambda broker: None in (broker.sheds, broker.splits)),
        (
            GuardrailReason.LOAD_MANAGER_UNKNOWN,
            lambda broker: not (_is_a(MODULAR, broker) or _is_a(EXTENSIBLE, broker)),
        ),
    )
    for reason, is_stopping in checks:
        which = [broker for broker, known in facts.brokers.items() if is_stopping(known)]
        if which:
            yield _stop(reason, brokers=len(which), registered=len(facts.brokers), which=_name_brokers(which))


def _is_a(load_manager: str, broker: BrokerFacts) -> bool:
    return broker.load_manager.rpartition(".")[2] == load_manager


def _check_hourly_limit(facts: ClusterFacts, limits: GuardrailLimits, subject: str) -> Iterator[Verdict]:
    if facts.moves_this_hour >= limits.moves_per_hour:
        why = {"moves": facts.moves_this_hour, "moves_per_hour": limits.moves_per_hour}
        yield _stop(GuardrailReason.HOURLY_LIMIT_REACHED, subject, **why)


def _check_namespace(limits: GuardrailLimits, bundle: str) -> Iterator[Verdict]:
    why = limits.namespaces.find_exclusion(namespace_of(bundle))
    if why is not None:
        yield _stop(GuardrailReason.NAMESPACE_NOT_INCLUDED, bundle, **why)


def _check_reports(facts: ClusterFacts, move: WantedMove) -> Iterator[Verdict]:
    for broker in (move.source, move.destination):
        known = None if broker is None else facts.brokers.get(broker)
        if broker is None or known is None:  # the move itself fails for a broker that has left
            continue
        if known.touched_at_s is not None and (known.reported_at_s or 0.0) <= known.touched_at_s:
            ago_s = round(facts.now_s - known.touched_at_s)
            yield _stop(GuardrailReason.REPORT_BEFORE_MOVE, move.bundle, broker=broker, seconds_ago=ago_s)


def _are_too_many(failures: int) -> bool:
    return failures >= MOST_FAILURES


def _stop(reason: Reason, subject: str = CLUSTER, **why: Figure) -> Verdict:
    return Verdict(subject, reason, acted=False, why=why)


def _name_brokers(brokers: Iterable[BrokerId]) -> str:
    ordered = sorted(brokers)
    more = f" and {len(ordered) - _SHOWN_BROKERS} more" if len(ordered) > _SHOWN_BROKERS else ""
    return ", ".join(ordered[:_SHOWN_BROKERS]) + more


@dataclass(frozen=True, slots=True)
class PendingMove:
    """A move in progress. `destination` None: Pulsar places the bundle. `is_own`: requested by shedding."""

    source: BrokerId
    destination: BrokerId | None
    began_s: float
    is_own: bool

    def has_missed(self, owner: BrokerId | None, *, was_released: bool) -> bool:
        """Return True if the owner is not the destination. The source counts only if it had released the bundle."""
        is_elsewhere = None not in (owner, self.destination) and owner != self.destination
        return is_elsewhere and (was_released or owner != self.source)

    def has_landed(self, owner: BrokerId | None) -> bool:
        """Return True if the bundle's current owner is an expected destination."""
        return owner is not None and self.destination in (None, owner)


@dataclass(frozen=True, slots=True)
class MoveHistory:
    """Moves and splits so far. `in_progress` is by bundle; `began_s` are own moves of the last hour; `touched_s` is the
    time of the last move or split at each broker; `failures` counts failures since the last success.
    """

    in_progress: Mapping[str, PendingMove] = field(default_factory=dict)
    began_s: tuple[float, ...] = ()
    touched_s: Mapping[BrokerId, float] = field(default_factory=dict)
    failures: int = 0

    def at(self, now_s: float) -> MoveHistory:
        """Drop expired entries, and clamp future times of other clocks to now."""
        return replace(
            self,
            began_s=tuple(min(at_s, now_s) for at_s in self.began_s if at_s > now_s - _HOUR_S),
            touched_s={
                broker: min(at_s, now_s) for broker, at_s in self.touched_s.items() if at_s > now_s - _TOUCHED_KEPT_S
            },
        )

    def begun(self, bundle: str, move: PendingMove) -> MoveHistory:
        began_s = (*self.began_s, move.began_s) if move.is_own else self.began_s
        return replace(self, in_progress={**self.in_progress, bundle: move}, began_s=began_s).at(move.began_s)

    def not_begun(self, bundle: str) -> MoveHistory:
        """Remove a move that was announced but never requested."""
        return replace(self, in_progress={each: move for each, move in self.in_progress.items() if each != bundle})

    def ended(self, bundle: str, owner: BrokerId | None, now_s: float, *, is_excused: bool) -> MoveHistory:
        """Record the end of a move; the bundle belongs to `owner` now. `is_excused`: cancelled, or a miss."""
        move = self.in_progress[bundle]
        failures = self._after_success() if move.has_landed(owner) else self.failures + (not is_excused)
        touched = {move.source: now_s} | ({} if owner is None else {owner: now_s})
        after = replace(self.not_begun(bundle), touched_s={**self.touched_s, **touched}, failures=failures)
        return after.at(now_s)

    def split(self, owner: BrokerId, now_s: float) -> MoveHistory:
        """Record the split of a bundle of this owner: its last report is stale now."""
        touched = {**self.touched_s, owner: now_s}
        return replace(self, touched_s=touched, failures=self._after_success()).at(now_s)

    def not_split(self) -> MoveHistory:
        """Record a failed split."""
        return replace(self, failures=self.failures + 1)

    def with_failures_reset(self) -> MoveHistory:
        """Reset the failure count at an operator's request."""
        return replace(self, failures=0)

    @property
    def is_stopped(self) -> bool:
        """Return True if so many moves failed that only an operator resets the count."""
        return _are_too_many(self.failures)

    def _after_success(self) -> int:
        return self.failures if self.is_stopped else 0
