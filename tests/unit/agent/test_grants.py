from __future__ import annotations

from dataclasses import replace

import pytest

from loadmanager.agent.grants import Claim, Grants, GrantVerdict, Revocation, TopicQuestion, UnloadRefusal
from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import BrokerId, BundleName, TopicName
from loadmanager.core.domain.ownership import OwnershipState, Registration

ME = BrokerId("a:8080")
INCARNATION = 7
WHOLE = BundleName.parse("t/ns/0x00000000_0xffffffff")
LEFT = BundleName.parse("t/ns/0x00000000_0x7fffffff")
RIGHT = BundleName.parse("t/ns/0x7fffffff_0xffffffff")
ELSEWHERE = BundleName.parse("t/other/0x00000000_0xffffffff")
TOPIC = TopicName.parse("persistent://t/ns/x")
OTHER_TOPIC = TopicName.parse("persistent://t/ns/y")


@pytest.fixture
def grants() -> Grants:
    grants = Grants(ME)
    grants.register(INCARNATION)
    return grants


def a_claim(bundle: BundleName = WHOLE, version: int = 4, incarnation: int = INCARNATION) -> Claim:
    return Claim(bundle, OwnershipState.OWNED, Registration(ME, incarnation), version)


def asked(grants: Grants, topic: TopicName = TOPIC) -> TopicQuestion:
    question = grants.ask(topic)
    assert question is not None
    return question


def grant(grants: Grants, bundle: BundleName = WHOLE, version: int = 4, topic: TopicName = TOPIC) -> None:
    assert grants.answer(asked(grants, topic), a_claim(bundle, version)) is GrantVerdict.GRANTED


def revoked(grants: Grants, bundle: BundleName = WHOLE, version: int = 5, epoch: int = 1) -> Revocation:
    revocation = grants.revoke(bundle, Registration(ME, grants.incarnation or INCARNATION), epoch, version)
    assert isinstance(revocation, Revocation)
    return revocation


def test_topic_is_granted_when_this_registration_owns_its_bundle(grants: Grants) -> None:
    grant(grants)
    assert grants.registration == Registration(ME, INCARNATION)
    assert grants.find_bundle(str(TOPIC)) == WHOLE
    assert grants.topics_by_bundle() == {WHOLE: [str(TOPIC)]}


@pytest.mark.parametrize(
    "claim",
    [
        replace(a_claim(), state=OwnershipState.RELEASING),
        replace(a_claim(), state=OwnershipState.FREE, owner=None),
        replace(a_claim(), owner=Registration(BrokerId("b:8080"), INCARNATION)),
        replace(a_claim(), owner=Registration(ME, INCARNATION - 1)),
        replace(a_claim(), owner=Registration(ME, INCARNATION + 1)),
        replace(a_claim(), owner=None),
    ],
    ids=["releasing", "free", "of another broker", "of a former life", "of a life to come", "of nobody"],
)
def test_topic_is_not_granted_unless_this_registration_owns_its_bundle(grants: Grants, claim: Claim) -> None:
    assert grants.answer(asked(grants), claim) is GrantVerdict.NOT_OWNER
    assert len(grants) == 0


def test_unregistered_agent_asks_nothing_and_revokes_nothing() -> None:
    grants = Grants(ME)
    assert (grants.registration, grants.highest_epoch) == (None, 0)
    for _ in range(2):
        assert grants.ask(TOPIC) is None
        assert grants.revoke(WHOLE, Registration(ME, INCARNATION), 1, 5) is UnloadRefusal.NOT_REGISTERED
        grants.register(INCARNATION)
        grants.forget()


def test_claim_about_a_bundle_of_another_namespace_is_foreign(grants: Grants) -> None:
    assert grants.answer(asked(grants), a_claim(ELSEWHERE)) is GrantVerdict.FOREIGN_BUNDLE


def test_unload_names_exactly_the_topics_granted_in_the_bundle(grants: Grants) -> None:
    grant(grants, LEFT, topic=TOPIC)
    grant(grants, RIGHT, topic=OTHER_TOPIC)
    revocation = revoked(grants, LEFT, version=6)
    assert (revocation.bundle, revocation.version) == (LEFT, 6)
    assert revocation.topics == {str(TOPIC)}


def test_bundle_can_be_revoked_at_the_version_of_its_grant(grants: Grants) -> None:
    grant(grants, version=1)
    assert revoked(grants, version=1).topics == {str(TOPIC)}


def test_repeated_unload_names_topics_until_they_are_closed(grants: Grants) -> None:
    grant(grants)
    assert revoked(grants).topics == revoked(grants).topics == {str(TOPIC)}
    grants.closed(revoked(grants))
    assert revoked(grants).topics == frozenset()


@pytest.mark.parametrize(
    ("bundle", "version", "claim"),
    [
        pytest.param(WHOLE, 5, a_claim(version=1), id="far below"),
        pytest.param(WHOLE, 5, a_claim(version=4), id="just below"),
        pytest.param(WHOLE, 5, a_claim(version=5), id="same version"),
        pytest.param(LEFT, 6, a_claim(WHOLE, version=4), id="bundle before its split"),
        pytest.param(WHOLE, 6, a_claim(LEFT, version=3), id="part before the merge"),
    ],
)
def test_revoked_version_grants_nothing(grants: Grants, bundle: BundleName, version: int, claim: Claim) -> None:
    grants.closed(revoked(grants, bundle, version=version))
    assert grants.answer(asked(grants), claim) is GrantVerdict.STALE


def test_repeated_earlier_unload_does_not_lower_the_fence(grants: Grants) -> None:
    revoked(grants, version=9)
    revoked(grants, version=5)
    assert grants.answer(asked(grants), a_claim(version=8)) is GrantVerdict.STALE


def test_bundle_is_granted_again_above_the_revoked_version(grants: Grants) -> None:
    revoked(grants, version=5)
    grant(grants, version=6)


def test_question_asked_before_an_unload_is_void(grants: Grants) -> None:
    question = asked(grants)
    revoked(grants, version=5)
    assert grants.answer(question, a_claim(version=6)) is GrantVerdict.VOID
    assert grants.answer(asked(grants), a_claim(version=6)) is GrantVerdict.GRANTED


def test_unload_of_another_bundle_does_not_void_a_question(grants: Grants) -> None:
    question = asked(grants)
    revoked(grants, RIGHT)
    revoked(grants, ELSEWHERE)
    assert grants.answer(question, a_claim(LEFT)) is GrantVerdict.GRANTED


def test_question_of_a_former_registration_is_void(grants: Grants) -> None:
    question = asked(grants)
    grants.register(INCARNATION + 1)
    assert grants.answer(question, a_claim()) is GrantVerdict.VOID


def test_new_registration_starts_without_grants_fences_and_epoch(grants: Grants) -> None:
    grant(grants, version=9)
    revoked(grants, version=10, epoch=5)
    grants.register(INCARNATION + 1)
    assert len(grants) == 0
    assert grants.highest_epoch == 0
    assert grants.answer(asked(grants), a_claim(version=3, incarnation=INCARNATION + 1)) is GrantVerdict.GRANTED


@pytest.mark.parametrize("owner", [Registration(BrokerId("b:8080"), INCARNATION), Registration(ME, INCARNATION - 1)])
def test_unload_for_another_broker_or_life_is_refused(grants: Grants, owner: Registration) -> None:
    grant(grants, version=4)
    assert grants.revoke(WHOLE, owner, 1, 5) is UnloadRefusal.OTHER_BROKER
    assert len(grants) == 1
    grant(grants, version=4)


def test_unload_with_an_older_epoch_is_refused(grants: Grants) -> None:
    revoked(grants, epoch=3, version=5)
    assert grants.revoke(WHOLE, Registration(ME, INCARNATION), 2, 6) is UnloadRefusal.STALE_EPOCH
    assert isinstance(grants.revoke(WHOLE, Registration(ME, INCARNATION), 3, 6), Revocation)


def test_unload_older_than_the_newest_grant_is_refused(grants: Grants) -> None:
    revoked(grants, version=5)
    grant(grants, version=6)
    assert grants.revoke(WHOLE, Registration(ME, INCARNATION), 1, 5) is UnloadRefusal.STALE_VERSION
    assert len(grants) == 1


def test_late_close_keeps_topics_granted_since(grants: Grants) -> None:
    grant(grants, version=4)
    first = revoked(grants, version=5)
    grant(grants, version=6)
    grants.closed(first)
    assert revoked(grants, version=7).topics == {str(TOPIC)}


def test_late_close_of_one_half_keeps_grants_of_the_other(grants: Grants) -> None:
    grant(grants, WHOLE, version=4)
    first = revoked(grants, RIGHT, version=9)
    grant(grants, LEFT, version=5)
    grants.closed(first)
    assert revoked(grants, LEFT, version=6).topics == {str(TOPIC)}


def test_older_claim_does_not_change_the_bundle_of_a_granted_topic(grants: Grants) -> None:
    grant(grants, LEFT, version=15)
    grant(grants, WHOLE, version=8)
    assert grants.topics_by_bundle() == {LEFT: [str(TOPIC)]}
    assert isinstance(grants.revoke(RIGHT, Registration(ME, INCARNATION), 1, 10), Revocation)


def test_unload_of_a_half_names_topics_granted_before_the_split(grants: Grants) -> None:
    grant(grants, WHOLE, version=4)
    assert revoked(grants, LEFT, version=6).topics == {str(TOPIC)}


def test_topic_granted_again_in_another_bundle_counts_once(grants: Grants) -> None:
    grant(grants, WHOLE, version=4)
    grant(grants, LEFT, version=5)
    assert grants.topics_by_bundle() == {LEFT: [str(TOPIC)]}
    assert len(grants) == 1


def test_newest_grant_wins_at_equal_versions(grants: Grants) -> None:
    grant(grants, LEFT, version=5)
    grant(grants, WHOLE, version=5)
    assert grants.find_bundle(str(TOPIC)) == WHOLE


@pytest.mark.parametrize(
    ("first", "second", "is_covered"),
    [
        ((LEFT, 5), (LEFT, 5), True),
        ((LEFT, 5), (WHOLE, 5), True),
        ((RIGHT, 5), (WHOLE, 6), True),
        ((LEFT, 6), (LEFT, 5), False),
        ((LEFT, 5), (RIGHT, 9), False),
        ((RIGHT, 5), (LEFT, 9), False),
        ((WHOLE, 5), (LEFT, 9), False),
        ((WHOLE, 5), (RIGHT, 9), False),
    ],
)
def test_fence_is_dropped_only_when_a_newer_one_covers_it(
    grants: Grants, first: tuple[BundleName, int], second: tuple[BundleName, int], *, is_covered: bool
) -> None:
    revoked(grants, *first)
    revoked(grants, *second)
    assert len(grants._namespaces[WHOLE.namespace].fences) == (1 if is_covered else 2)


def test_fence_over_the_whole_replaces_older_fences_over_its_halves(grants: Grants) -> None:
    revoked(grants, LEFT, version=5)
    revoked(grants, RIGHT, version=9)
    revoked(grants, WHOLE, version=7)
    namespace = grants._namespaces[WHOLE.namespace]
    assert {(fence.range, fence.version) for fence in namespace.fences} == {(WHOLE.range, 7), (RIGHT.range, 9)}


def topics_by_half() -> tuple[list[TopicName], list[TopicName]]:
    """Topics whose hash lies in the left and in the right half."""
    topics = [TopicName.parse(f"persistent://t/ns/topic-{number}") for number in range(10)]
    left = [each for each in topics if topic_hash(str(each), HashFunction.MURMUR3_32) in LEFT.range]
    return left, [each for each in topics if each not in left]


def test_unload_of_a_half_keeps_topics_that_hash_to_the_other_half(grants: Grants) -> None:
    left, right = topics_by_half()
    for topic in (*left, *right):
        grant(grants, WHOLE, 4, topic)
    revocation = grants.revoke(LEFT, Registration(ME, INCARNATION), 1, 6, HashFunction.MURMUR3_32)
    assert isinstance(revocation, Revocation)
    assert revocation.topics == {str(each) for each in left}
    grants.closed(revocation)
    assert grants.topics_by_bundle() == {WHOLE: sorted(str(each) for each in right)}
    for topic in left:
        assert grants.answer(asked(grants, topic), a_claim(WHOLE, 4)) is GrantVerdict.STALE


def test_topic_granted_in_a_bundle_of_another_hash_range_is_revoked(grants: Grants) -> None:
    left, right = topics_by_half()
    grant(grants, LEFT, 4, right[0])
    grant(grants, LEFT, 4, left[0])
    revocation = grants.revoke(LEFT, Registration(ME, INCARNATION), 1, 6, HashFunction.MURMUR3_32)
    assert isinstance(revocation, Revocation)
    assert revocation.topics == {str(left[0]), str(right[0])}


def seen(grants: Grants, *topics: TopicName) -> None:
    """The broker is asked for its topics, and tells these."""
    grants.saw({str(topic) for topic in topics})


def test_topic_missing_from_two_statistics_in_a_row_is_forgotten(grants: Grants) -> None:
    grant(grants, topic=TOPIC)
    grant(grants, topic=OTHER_TOPIC)
    seen(grants, TOPIC)
    assert len(grants) == 2
    seen(grants, TOPIC)
    assert grants.topics_by_bundle() == {WHOLE: [str(TOPIC)]}
    assert revoked(grants).topics == {str(TOPIC)}


def test_topic_present_in_every_other_statistics_is_kept(grants: Grants) -> None:
    grant(grants)
    for _ in range(3):
        seen(grants)
        seen(grants, TOPIC)
    assert len(grants) == 1


def test_grant_restarts_the_count_of_statistics_without_the_topic(grants: Grants) -> None:
    grant(grants)
    seen(grants)
    grant(grants)
    seen(grants)
    assert len(grants) == 1
    seen(grants)
    assert len(grants) == 0


def test_new_registration_restarts_the_count_of_statistics_without_a_topic(grants: Grants) -> None:
    grant(grants)
    seen(grants)
    grants.register(INCARNATION + 1)
    assert grants.answer(asked(grants), a_claim(incarnation=INCARNATION + 1)) is GrantVerdict.GRANTED
    seen(grants)
    assert len(grants) == 1


def test_forgotten_topic_stays_fenced(grants: Grants) -> None:
    grant(grants, version=4)
    revocation = revoked(grants, version=5)
    seen(grants)
    seen(grants)
    grants.closed(revocation)
    assert grants.answer(asked(grants), a_claim(version=5)) is GrantVerdict.STALE
