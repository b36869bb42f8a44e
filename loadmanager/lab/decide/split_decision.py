"""Split decisions on the lines of a dump: by the automatic rule, or for one given bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from loadmanager.core.domain.bundles import HashFunction, TopicLoad, topic_hash
from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import SplitReason
from loadmanager.core.domain.settings import KEYS, PlannerSettings, get_by_name
from loadmanager.core.model.snapshot import NOBODY, Snapshot
from loadmanager.core.strategies.splitting import (
    PULSAR_REASONS,
    SPECIFIED_POSITIONS,
    SPLIT_ALGORITHMS,
    SplitAlgorithm,
    split_algorithm,
)
from loadmanager.core.strategies.splitting.split_finder import Split, SplitCandidate, divide_bundle
from loadmanager.core.strategies.splitting.split_round import (
    SPLIT_STRATEGY,
    SplitQuestion,
    find_splits,
    goes_by_latest_rates,
    sum_rates,
)
from loadmanager.errors import ConfigurationError
from loadmanager.lab.decide.dump_decision import DecidedLine, Decider
from loadmanager.lab.decide.dump_validation import check_bundle, declared_bundles, parse_bundle
from loadmanager.wire.dump_line import DumpLine

_NO_ALGORITHM = ""


class SplitDecider(Decider):
    """Decides one round of splits per line; with `bundle`, the split of that bundle, whatever its load.

    `algorithm` is empty for the configured one. `positions` are for `specified_positions_divide`.
    """

    def __init__(
        self, algorithm: str, bundle: str | None, positions: Sequence[int], overrides: Mapping[str, str]
    ) -> None:
        if algorithm != _NO_ALGORITHM:
            get_by_name("--split", algorithm, SPLIT_ALGORITHMS)
        if bundle is not None and parse_bundle(bundle, "--bundle")[1] is None:
            raise ConfigurationError(f"--bundle {bundle!r}: expected 'tenant/namespace/0xLLLLLLLL_0xUUUUUUUU'")
        self._algorithm = algorithm
        self._bundle = bundle
        self._positions = positions
        super().__init__(overrides)

    def _ask(self, snapshot: Snapshot, settings: PlannerSettings, line: DumpLine, where: str) -> DecidedLine:
        taken_at_ms = line.get("takenAt", 0)
        algorithm = self._find_algorithm(settings)
        if self._bundle is not None:
            check_bundle(line, self._bundle, where, "--bundle")
            own_topics = _topics(line, self._bundle)
            split, verdict = divide_bundle(
                _find_bundle(snapshot, self._bundle),
                SplitReason.ADMIN_SPLIT,
                lambda _, own: algorithm(own, own_topics, self._positions, settings),
                settings,
            )
            return DecidedLine(taken_at_ms, _decisions(snapshot, [split] if split else []), [verdict], self._state)
        if not settings.auto_bundle_split_enabled:
            why = {KEYS["auto_bundle_split_enabled"]: str(settings.auto_bundle_split_enabled)}
            verdict = Verdict("cluster", SplitReason.SPLITTING_DISABLED, acted=False, why=why)
            return DecidedLine(taken_at_ms, [], [verdict], self._state)
        latest = goes_by_latest_rates(settings)
        question = SplitQuestion(
            looked_at=tuple(
                (registration, tuple(_find_reported(snapshot, row, latest=latest)))
                for row, registration in enumerate(snapshot.brokers.registrations)
            ),
            counts=_bundle_counts(snapshot, line, where),
            topics={bundle: _topics(line, bundle) for bundle in line.get("topics", {})},
            in_progress=frozenset(),
            before=self._state.get(SPLIT_STRATEGY, {}).get("hits", {}),
        )
        found, remembered = find_splits(question, settings, algorithm, self._positions)
        state = self._state if remembered is None else self._with_state(SPLIT_STRATEGY, remembered)
        return DecidedLine(taken_at_ms, _decisions(snapshot, found.splits), found.verdicts, state)

    def _find_algorithm(self, settings: PlannerSettings) -> SplitAlgorithm:
        name, algorithm = split_algorithm(settings, self._algorithm, "--split")
        if (name == SPECIFIED_POSITIONS) != bool(self._positions):
            raise ConfigurationError(f"expected --positions P,... with {SPECIFIED_POSITIONS}, and only with it")
        return algorithm


def _topics(line: DumpLine, bundle: str) -> list[TopicLoad]:
    """Return the topics of a bundle. Missing hashes are computed with the hash function of the namespace, by default
    Pulsar's.
    """
    namespace = line.get("namespaces", {}).get(namespace_of(bundle), {})
    function = HashFunction(namespace.get("hashFunction", HashFunction.CRC32))
    return [
        TopicLoad(
            topic["hash"] if "hash" in topic else topic_hash(topic["topic"], function),
            topic.get("msgRateIn", 0.0) + topic.get("msgRateOut", 0.0),
            topic.get("msgThroughputIn", 0.0) + topic.get("msgThroughputOut", 0.0),
            topic["topic"],
        )
        for topic in line.get("topics", {}).get(bundle, ())
    ]


def _bundle_counts(snapshot: Snapshot, line: DumpLine, where: str) -> Counter[str]:
    """Count the bundles of each namespace: by its boundaries, else the bundles that the line names."""
    counts = Counter(namespace_of(name) for name in snapshot.bundles.names)
    for namespace, content in line.get("namespaces", {}).items():
        declared = declared_bundles(line, namespace, where)
        known = content.get("numBundles", 0) if declared is None else len(declared)
        counts[namespace] = known or counts.get(namespace, 1)
    return counts


def _find_reported(snapshot: Snapshot, broker: int, *, latest: bool) -> list[SplitCandidate]:
    """Return the bundles in the report of a broker row, by name, with latest rates if `latest`, else long-term ones."""
    report, bundles = snapshot.reports[broker], snapshot.bundles
    found = []
    for index, name in sorted(enumerate(report.bundle_names), key=lambda each: each[1]):
        row = bundles.find_row(name)
        assert row is not None, "each reported bundle has a row"
        found.append(
            SplitCandidate(
                name,
                parse_bundle(name, "")[1],
                int(report.bundle_topics[index]),
                int(report.bundle_sessions[index]),
                *sum_rates(report.bundle_load[index] if latest else bundles.long[row]),
                is_owned=int(bundles.broker[row]) == broker,
            )
        )
    return found


def _find_bundle(snapshot: Snapshot, bundle: str) -> SplitCandidate:
    """Return the bundle as its owner reports it, without load if no broker does."""
    row = snapshot.bundles.find_row(bundle)
    broker = NOBODY if row is None else int(snapshot.bundles.broker[row])
    reported = [] if broker == NOBODY else _find_reported(snapshot, broker, latest=True)
    unknown = SplitCandidate(bundle, parse_bundle(bundle, "--bundle")[1], 0, 0, 0.0, 0.0)
    return next((each for each in reported if each.name == bundle), unknown)


def _decisions(snapshot: Snapshot, splits: Sequence[Split]) -> list[dict[str, object]]:
    return [
        {
            "action": "split",
            "bundle": split.bundle,
            "source": _source(snapshot, split.bundle),
            "boundaries": [f"0x{boundary:08x}" for boundary in split.boundaries],
            "reason": PULSAR_REASONS.get(split.reason, str(split.reason)),
        }
        for split in splits
    ]


def _source(snapshot: Snapshot, bundle: str) -> BrokerId | None:
    row = snapshot.bundles.find_row(bundle)
    broker = NOBODY if row is None else int(snapshot.bundles.broker[row])
    return None if broker == NOBODY else snapshot.brokers.ids[broker]
