"""What stops a balancer that acts beside a Pulsar, which places bundles itself: asked before all that it does.

Pure: facts of one moment go in, and each rail that stops something comes out as a verdict. Nothing may be moved or
split while there is one.

    asked of      rail              stops while
    --------      ----              -----------
    all           mode              it is not to act
                  picture           not all that it goes by is known
                  earlier moves     what became of moves under way in an earlier term is not known
                  shedding, splits  a broker does so by itself, or has not said whether it does
                  load managers     a broker runs another than ModularLoadManagerImpl
                  leader            no registered broker is Pulsar's leader, who places what is unloaded
                  settling          a broker has joined or left lately
                  read-only         Pulsar's policies may not be written
                  failures          so many moves in succession have failed, until an operator says go on
    moves,        namespace         the namespace is left out; those in which Pulsar keeps its own always are
    splits
    rounds and    hour              so many own moves began within the hour
    own moves
    own moves     round             so many moves of this round have begun
                  reports           source or destination has not reported since a move touched it, or is overdue

An own move is one of shedding. What an operator wants (a drain, a pin, a plan, an unload) is not decided by load, so
reports do not stop it, and it is not limited in number. Moves of one round were decided on one picture, each with
regard to the others: they need no report of what the others have done.

A broker of Pulsar's reports when something has changed, and after the interval of reports at the latest: a report that
is old may be true, one that is twice as old as that interval is overdue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from loadmanager.core.domain.names import BrokerId, is_self_test_namespace, namespace_of
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.policies import Patterns
from loadmanager.core.domain.reasons import GuardrailReason, Reason

MODULAR = "ModularLoadManagerImpl"
CLUSTER = "cluster"
"""The subject of what stops everything."""

_OF_PULSAR = Patterns(("pulsar/.*",))
_SHOWN_BROKERS = 3
_OVERDUE_AFTER_INTERVALS = 2


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One registered broker. `sheds` and `splits` are whether it does so by itself, None while it has not said so;
    `load_manager` is the class it runs. Wall clock in seconds: when its last report was made, None without one, and
    when a move of an earlier round last took a bundle from it or gave it one, None if none did lately.
    """

    sheds: bool | None
    splits: bool | None
    load_manager: str
    reported_at_s: float | None
    touched_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that rails go by, at `now_s` of the wall clock. `open_moves` says why moves of earlier terms are not seen
    through yet, or nothing, and `policies_fault` what is wrong with policies; `quiet_for_s` is since when no broker has
    joined or left.
    """

    now_s: float
    brokers: Mapping[BrokerId, BrokerFacts]
    pulsars_leader: BrokerId | None
    quiet_for_s: float
    is_to_act: bool = True
    is_whole: bool = True
    is_read_only: bool = False
    policies_fault: str = ""
    open_moves: str = ""
    failures: int = 0
    moves_this_round: int = 0
    moves_this_hour: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceSelection:
    """Which namespaces are moved: all that `included` match, all if there are none, but for what `excluded` match.

    Raises `InvalidPolicyError` for a pattern that cannot be used.
    """

    included: Patterns = field(default_factory=Patterns)
    excluded: Patterns = field(default_factory=Patterns)

    def why_left_out(self, namespace: str) -> Mapping[str, Figure] | None:
        """The figures of the sentence that says so; None for a namespace that is not."""
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
    """What an operator has set; times in seconds."""

    failures_until_stop: int
    settling_s: float
    report_interval_s: float
    moves_per_round: int
    moves_per_hour: int
    namespaces: NamespaceSelection = field(default_factory=NamespaceSelection)


@dataclass(frozen=True, slots=True)
class WantedMove:
    """A move that is about to begin; `is_own`: shedding wants it, and no operator."""

    bundle: str
    source: BrokerId
    destination: BrokerId | None
    is_own: bool


def stops_of_round(facts: Facts, limits: GuardrailLimits) -> list[Verdict]:
    """What keeps a round from moving anything, by rail; nothing if it may."""
    return [*_of_everything(facts, limits), *_of_the_hour(facts, limits, CLUSTER)]


def stops_of_move(facts: Facts, limits: GuardrailLimits, move: WantedMove) -> list[Verdict]:
    """What keeps this move from being made, by rail; nothing if it may be."""
    return stops_of_moves(facts, limits, [move])[0]


def stops_of_moves(facts: Facts, limits: GuardrailLimits, moves: Iterable[WantedMove]) -> list[list[Verdict]]:
    """What keeps each of these moves from being made: brokers are looked through once."""
    of_everything = [*_of_everything(facts, limits)]
    return [[*of_everything, *_of_one(facts, limits, move)] for move in moves]


def _of_one(facts: Facts, limits: GuardrailLimits, move: WantedMove) -> Iterator[Verdict]:
    yield from _of_the_namespace(limits, move.bundle)
    if move.is_own:
        yield from _of_the_hour(facts, limits, move.bundle)
        yield from _of_the_round(facts, limits, move.bundle)
        yield from _of_reports(facts, limits, move)


def stops_of_split(facts: Facts, limits: GuardrailLimits, bundle: str) -> list[Verdict]:
    """What keeps this bundle from being split, by rail; nothing if it may be."""
    return [*_of_everything(facts, limits), *_of_the_namespace(limits, bundle)]


def _of_everything(facts: Facts, limits: GuardrailLimits) -> Iterator[Verdict]:
    if not facts.is_to_act:
        yield _stop(GuardrailReason.MODE_IS_SHADOW)
    if not facts.is_whole:
        yield _stop(GuardrailReason.PICTURE_INCOMPLETE)
    if facts.policies_fault:
        yield _stop(GuardrailReason.POLICIES_UNKNOWN, why=facts.policies_fault)
    if facts.open_moves:
        yield _stop(GuardrailReason.EARLIER_MOVES_OPEN, why=facts.open_moves)
    yield from _of_brokers(facts)
    if facts.pulsars_leader not in facts.brokers:
        leader = {} if facts.pulsars_leader is None else {"leader": facts.pulsars_leader}
        yield _stop(GuardrailReason.PULSAR_HAS_NO_LEADER, registered=len(facts.brokers), **leader)
    if facts.quiet_for_s < limits.settling_s:
        ago_s = round(facts.quiet_for_s)
        yield _stop(GuardrailReason.BROKERS_SETTLING, seconds_ago=ago_s, settling_s=limits.settling_s)
    if facts.is_read_only:
        yield _stop(GuardrailReason.POLICIES_READ_ONLY)
    if facts.failures >= limits.failures_until_stop:
        yield _stop(
            GuardrailReason.MOVES_KEEP_FAILING, failures=facts.failures, failures_until_stop=limits.failures_until_stop
        )


def _of_brokers(facts: Facts) -> Iterator[Verdict]:
    rails: tuple[tuple[Reason, Callable[[BrokerFacts], bool]], ...] = (
        (GuardrailReason.PULSAR_SHEDS, lambda broker: broker.sheds is True),
        (GuardrailReason.PULSAR_SPLITS, lambda broker: broker.splits is True),
        (GuardrailReason.SETTINGS_UNKNOWN, lambda broker: None in (broker.sheds, broker.splits)),
        (GuardrailReason.LOAD_MANAGER_NOT_MODULAR, lambda broker: broker.load_manager.rpartition(".")[2] != MODULAR),
    )
    for reason, is_stopping in rails:
        which = [broker for broker, known in facts.brokers.items() if is_stopping(known)]
        if which:
            yield _stop(reason, brokers=len(which), registered=len(facts.brokers), which=_some_of(which))


def _of_the_hour(facts: Facts, limits: GuardrailLimits, subject: str) -> Iterator[Verdict]:
    if facts.moves_this_hour >= limits.moves_per_hour:
        why = {"moves": facts.moves_this_hour, "moves_per_hour": limits.moves_per_hour}
        yield _stop(GuardrailReason.HOUR_IS_FULL, subject, **why)


def _of_the_round(facts: Facts, limits: GuardrailLimits, bundle: str) -> Iterator[Verdict]:
    if facts.moves_this_round >= limits.moves_per_round:
        why = {"moves": facts.moves_this_round, "moves_per_round": limits.moves_per_round}
        yield _stop(GuardrailReason.ROUND_IS_FULL, bundle, **why)


def _of_the_namespace(limits: GuardrailLimits, bundle: str) -> Iterator[Verdict]:
    why = limits.namespaces.why_left_out(namespace_of(bundle))
    if why is not None:
        yield _stop(GuardrailReason.NAMESPACE_LEFT_OUT, bundle, **why)


def _of_reports(facts: Facts, limits: GuardrailLimits, move: WantedMove) -> Iterator[Verdict]:
    for broker in (move.source, move.destination):
        known = None if broker is None else facts.brokers.get(broker)
        if broker is None or known is None:  # one that has left is refused by whoever makes the move
            continue
        if known.reported_at_s is None:
            yield _stop(GuardrailReason.REPORT_OVERDUE, move.bundle, broker=broker)
            continue
        age_s = facts.now_s - known.reported_at_s
        if age_s > _OVERDUE_AFTER_INTERVALS * limits.report_interval_s:
            why: dict[str, Figure] = {"broker": broker, "age_s": round(age_s), "interval_s": limits.report_interval_s}
            yield _stop(GuardrailReason.REPORT_OVERDUE, move.bundle, **why)
        if known.touched_at_s is not None and known.reported_at_s <= known.touched_at_s:
            ago_s = round(facts.now_s - known.touched_at_s)
            yield _stop(GuardrailReason.REPORT_BEFORE_MOVE, move.bundle, broker=broker, seconds_ago=ago_s)


def _stop(reason: Reason, subject: str = CLUSTER, **why: Figure) -> Verdict:
    return Verdict(subject, reason, acted=False, why=why)


def _some_of(brokers: Iterable[BrokerId]) -> str:
    ordered = sorted(brokers)
    more = f" and {len(ordered) - _SHOWN_BROKERS} more" if len(ordered) > _SHOWN_BROKERS else ""
    return ", ".join(ordered[:_SHOWN_BROKERS]) + more
