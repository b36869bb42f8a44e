from __future__ import annotations

import json

import pytest
from support.builders import broker

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.merging import MergeCandidate
from loadmanager.core.strategies.splitting.split_finder import SplitCandidate
from loadmanager.core.strategies.splitting.split_round import SplitQuestion, find_splits, read_hits
from loadmanager.history.entry_rows import encode_json
from loadmanager.wire.checkpoint_codec import merging_as_json, merging_of, question_as_json, question_of

MODULAR = PlannerSettings(namespace_bundle_max_topics=10)
EXTENSIBLE = PlannerSettings(
    namespace_bundle_max_topics=10,
    load_manager_class_name="ExtensibleLoadManagerImpl",
    namespace_bundle_split_condition_hit_count_threshold=1,
)
B1, B2 = broker("b1"), broker("b2")


def candidate(number: int, topics: int = 20) -> SplitCandidate:
    own = BundleRange(number << 28, (number + 1) << 28)
    return SplitCandidate(f"t/ns/{own}", own, topics, 5, 1.25, 1e6 / 3)


def question(before: dict[str, object] | None = None) -> SplitQuestion:
    return SplitQuestion(
        looked_at=((B1, (candidate(0), candidate(1))), (B2, (candidate(2), candidate(3, topics=2)))),
        counts={"t/ns": 4},
        topics={candidate(0).name: [TopicLoad(5, 1.5, 2.5, "a"), TopicLoad(9, 0.1, 0.2, "b")]},
        in_progress=frozenset({("t/ns", candidate(1).range or BundleRange(0, 1))}),
        before=before or {},
    )


def through_json(asked: SplitQuestion) -> SplitQuestion:
    return question_of(json.loads(str(encode_json(question_as_json(asked)))))


def test_modular_rule_has_no_memory() -> None:
    found, remembered = find_splits(question(), MODULAR)
    assert remembered is None
    assert {split.bundle for split in found.splits} == {candidate(number).name for number in (0, 1, 2)}


def test_extensible_rule_counts_hits_by_registration() -> None:
    found, remembered = find_splits(question(), EXTENSIBLE)
    assert not found.splits
    assert remembered is not None
    assert remembered["hits"]["b1:8080"][0] == B1.incarnation
    again, _ = find_splits(question(remembered["hits"]), EXTENSIBLE)
    assert candidate(0).name in {split.bundle for split in again.splits}
    assert read_hits(remembered["hits"], broker("b1", 2)) == {}


def test_broker_without_hits_is_not_stored() -> None:
    quiet = SplitQuestion(((B1, (candidate(0, topics=2),)),), {"t/ns": 1}, {}, frozenset(), {"b1:8080": [1, {}]})
    assert find_splits(quiet, EXTENSIBLE)[1] == {"hits": {}}


@pytest.mark.parametrize("settings", [MODULAR, EXTENSIBLE])
def test_split_question_survives_json(settings: PlannerSettings) -> None:
    asked = question({"b1:8080": [1, {candidate(0).name: 1}]})
    found, remembered = find_splits(asked, settings)
    again, remembered_again = find_splits(through_json(asked), settings)
    assert again.splits == found.splits
    assert [(v.subject, v.verdict, v.why) for v in again.verdicts] == [
        (v.subject, v.verdict, v.why) for v in found.verdicts
    ]
    assert remembered_again == remembered


def test_merge_candidates_survive_json() -> None:
    asked = {
        "t/ns": [
            MergeCandidate("t/ns/a", B1, 1, 2, 0.1, 1e6 / 3, 61.5),
            MergeCandidate("t/ns/b", None, 0, 0, 0.0, 0.0, 1.0, is_held=True),
        ],
        "t/empty": [],
    }
    assert merging_of(json.loads(str(encode_json(merging_as_json(asked))))) == asked
