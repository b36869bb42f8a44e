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


def test_a_topic_is_granted_when_its_bundle_is_owned_by_this_very_registration(grants: Grants) -> None:
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
def test_a_bundle_that_is_not_settled_on_this_registration_grants_nothing(grants: Grants, claim: Claim) -> None:
    assert grants.answer(asked(grants), claim) is GrantVerdict.NOT_OWNER
    assert len(grants) == 0


def test_nothing_can_be_asked_while_not_registered() -> None:
    grants = Grants(ME)
    assert (grants.registration, grants.highest_epoch) == (None, 0)
    for _ in range(2):
        assert grants.ask(TOPIC) is None
        assert grants.revoke(WHOLE, Registration(ME, INCARNATION), 1, 5) is UnloadRefusal.NOT_REGISTERED
        grants.register(INCARNATION)
        grants.forget()


def test_a_claim_about_a_bundle_of_another_namespace_is_garbage(grants: Grants) -> None:
    assert grants.answer(asked(grants), a_claim(ELSEWHERE)) is GrantVerdict.FOREIGN_BUNDLE


def test_an_unload_names_every_topic_that_was_granted_in_the_bundle_and_no_other(grants: Grants) -> None:
    grant(grants, LEFT, topic=TOPIC)
    grant(grants, RIGHT, topic=OTHER_TOPIC)
    revocation = revoked(grants, LEFT, version=6)
    assert (revocation.bundle, revocation.version) == (LEFT, 6)
    assert revocation.topics == {str(TOPIC)}


def test_a_bundle_may_be_granted_at_its_first_version_and_revoked_at_the_one_it_was_granted_at(grants: Grants) -> None:
    grant(grants, version=1)
    assert revoked(grants, version=1).topics == {str(TOPIC)}


def test_a_repeated_unload_names_the_topics_again_until_the_broker_has_closed_them(grants: Grants) -> None:
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


def test_a_late_repeat_of_an_earlier_unload_takes_nothing_back_from_a_later_one(grants: Grants) -> None:
    revoked(grants, version=9)
    revoked(grants, version=5)
    assert grants.answer(asked(grants), a_claim(version=8)) is GrantVerdict.STALE


def test_the_bundle_is_granted_again_at_a_version_above_the_revoked_one(grants: Grants) -> None:
    revoked(grants, version=5)
    grant(grants, version=6)


def test_what_was_asked_before_an_unload_arrived_grants_nothing_after_it_at_any_version(grants: Grants) -> None:
    question = asked(grants)
    revoked(grants, version=5)
    assert grants.answer(question, a_claim(version=6)) is GrantVerdict.VOID
    assert grants.answer(asked(grants), a_claim(version=6)) is GrantVerdict.GRANTED


def test_an_unload_of_another_bundle_does_not_void_a_question(grants: Grants) -> None:
    question = asked(grants)
    revoked(grants, RIGHT)
    revoked(grants, ELSEWHERE)
    assert grants.answer(question, a_claim(LEFT)) is GrantVerdict.GRANTED


def test_a_question_of_a_former_registration_is_void(grants: Grants) -> None:
    question = asked(grants)
    grants.register(INCARNATION + 1)
    assert grants.answer(question, a_claim()) is GrantVerdict.VOID


def test_a_new_registration_knows_nothing_of_the_former_one(grants: Grants) -> None:
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


def test_a_leader_that_was_replaced_is_refused(grants: Grants) -> None:
    revoked(grants, epoch=3, version=5)
    assert grants.revoke(WHOLE, Registration(ME, INCARNATION), 2, 6) is UnloadRefusal.STALE_EPOCH
    assert isinstance(grants.revoke(WHOLE, Registration(ME, INCARNATION), 3, 6), Revocation)


def test_an_unload_from_before_the_bundle_was_granted_anew_is_refused_and_closes_nothing(grants: Grants) -> None:
    revoked(grants, version=5)
    grant(grants, version=6)
    assert grants.revoke(WHOLE, Registration(ME, INCARNATION), 1, 5) is UnloadRefusal.STALE_VERSION
    assert len(grants) == 1


def test_a_late_word_that_topics_are_closed_does_not_forget_those_granted_since(grants: Grants) -> None:
    grant(grants, version=4)
    first = revoked(grants, version=5)
    grant(grants, version=6)
    grants.closed(first)
    assert revoked(grants, version=7).topics == {str(TOPIC)}


def test_late_answer_for_one_part_keeps_grants_of_another(grants: Grants) -> None:
    grant(grants, WHOLE, version=4)
    first = revoked(grants, RIGHT, version=9)
    grant(grants, LEFT, version=5)
    grants.closed(first)
    assert revoked(grants, LEFT, version=6).topics == {str(TOPIC)}


def test_an_outdated_answer_does_not_change_what_is_known_of_a_granted_topics_bundle(grants: Grants) -> None:
    grant(grants, LEFT, version=15)
    grant(grants, WHOLE, version=8)
    assert grants.topics_by_bundle() == {LEFT: [str(TOPIC)]}
    assert isinstance(grants.revoke(RIGHT, Registration(ME, INCARNATION), 1, 10), Revocation)


def test_an_unload_of_a_part_names_what_was_granted_in_the_bundle_before_it_was_split(grants: Grants) -> None:
    grant(grants, WHOLE, version=4)
    assert revoked(grants, LEFT, version=6).topics == {str(TOPIC)}


def test_a_topic_granted_again_in_another_bundle_is_held_once(grants: Grants) -> None:
    grant(grants, WHOLE, version=4)
    grant(grants, LEFT, version=5)
    assert grants.topics_by_bundle() == {LEFT: [str(TOPIC)]}
    assert len(grants) == 1


def test_a_topic_granted_again_in_another_bundle_at_the_same_version_is_that_ones(grants: Grants) -> None:
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
def test_a_fence_is_kept_unless_another_covers_it_entirely_and_at_no_lower_version(
    grants: Grants, first: tuple[BundleName, int], second: tuple[BundleName, int], *, is_covered: bool
) -> None:
    revoked(grants, *first)
    revoked(grants, *second)
    assert len(grants._namespaces[WHOLE.namespace].fences) == (1 if is_covered else 2)


def test_a_fence_over_the_whole_replaces_the_fences_over_its_parts(grants: Grants) -> None:
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


def test_a_part_of_a_split_bundle_is_revoked_without_the_topics_of_the_other_part(grants: Grants) -> None:
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


def test_a_topic_granted_in_a_bundle_that_cannot_hold_it_is_revoked_too(grants: Grants) -> None:
    left, right = topics_by_half()
    grant(grants, LEFT, 4, right[0])
    grant(grants, LEFT, 4, left[0])
    revocation = grants.revoke(LEFT, Registration(ME, INCARNATION), 1, 6, HashFunction.MURMUR3_32)
    assert isinstance(revocation, Revocation)
    assert revocation.topics == {str(left[0]), str(right[0])}


def seen(grants: Grants, *topics: TopicName) -> None:
    """The broker is asked for its topics, and tells these."""
    grants.saw({str(topic) for topic in topics})


def test_a_topic_that_two_looks_in_a_row_are_without_is_forgotten(grants: Grants) -> None:
    grant(grants, topic=TOPIC)
    grant(grants, topic=OTHER_TOPIC)
    seen(grants, TOPIC)
    assert len(grants) == 2
    seen(grants, TOPIC)
    assert grants.topics_by_bundle() == {WHOLE: [str(TOPIC)]}
    assert revoked(grants).topics == {str(TOPIC)}


def test_a_topic_that_is_seen_in_between_is_kept(grants: Grants) -> None:
    grant(grants)
    for _ in range(3):
        seen(grants)
        seen(grants, TOPIC)
    assert len(grants) == 1


def test_a_topic_granted_again_is_looked_for_anew(grants: Grants) -> None:
    grant(grants)
    seen(grants)
    grant(grants)
    seen(grants)
    assert len(grants) == 1
    seen(grants)
    assert len(grants) == 0


def test_a_new_registration_is_looked_at_anew(grants: Grants) -> None:
    grant(grants)
    seen(grants)
    grants.register(INCARNATION + 1)
    assert grants.answer(asked(grants), a_claim(incarnation=INCARNATION + 1)) is GrantVerdict.GRANTED
    seen(grants)
    assert len(grants) == 1


def test_a_topic_that_was_forgotten_stays_fenced(grants: Grants) -> None:
    grant(grants, version=4)
    revocation = revoked(grants, version=5)
    seen(grants)
    seen(grants)
    grants.closed(revocation)
    assert grants.answer(asked(grants), a_claim(version=5)) is GrantVerdict.STALE
