from __future__ import annotations

import pytest

from loadmanager.core.domain.names import TopicName
from loadmanager.dev.demo.demo_settings import DemoWorkload


def test_topics_have_valid_unique_names_in_every_namespace() -> None:
    names = DemoWorkload().topic_names()
    assert len(set(names)) == 180
    assert {str(TopicName.parse(name).namespace) for name in names} == {"demo/orders", "demo/clicks", "demo/metrics"}


@pytest.mark.parametrize("hot", [(), (3,), (1, 2, 3, 4)])
def test_total_rate_is_independent_of_hot_topics(hot: tuple[int, ...]) -> None:
    workload = DemoWorkload(messages_per_s=1_000)
    assert sum(workload.rates(hot)) == pytest.approx(1_000)


def test_rates_have_a_heavy_tail() -> None:
    rates = sorted(DemoWorkload().rates(), reverse=True)
    assert rates[0] > 20 * rates[-1]
    assert sum(rates[: len(rates) // 5]) > 0.4 * sum(rates)


def test_hot_topics_share_their_part_equally() -> None:
    workload = DemoWorkload(hot_share=0.4)
    cool, hot = workload.rates(), workload.rates((1, 2))
    assert hot[1] - 0.6 * cool[1] == pytest.approx(0.2 * workload.messages_per_s)
    assert hot[3] == pytest.approx(0.6 * cool[3])


def test_equal_seeds_give_equal_traffic() -> None:
    assert DemoWorkload(seed=1).rates() == DemoWorkload(seed=1).rates()
    assert DemoWorkload(seed=1).rates() != DemoWorkload(seed=2).rates()


def test_hot_topics_are_spread_over_bundles_of_the_candidates() -> None:
    workload = DemoWorkload(hot_topics=4)
    names = workload.topic_names()
    bundles = {name: i % 3 for i, name in enumerate(names)}
    hot = workload.choose_hot_topics(names[:30], bundles.__getitem__, turn=1)
    assert len(set(hot)) == 4
    assert max(hot) < 30
    assert {i % 3 for i in hot} == {0, 1, 2}
    assert hot == workload.choose_hot_topics(names[:30], bundles.__getitem__, turn=1)
    assert hot != workload.choose_hot_topics(names[:30], bundles.__getitem__, turn=2)


def test_unknown_and_too_few_candidates_are_allowed() -> None:
    workload = DemoWorkload(hot_topics=4)
    candidates = ["persistent://demo/probe-1/x", workload.topic_names()[5]]
    assert workload.choose_hot_topics(candidates, lambda name: name, turn=1) == (5,)
