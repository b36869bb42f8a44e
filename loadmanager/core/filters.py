"""Which brokers may own a bundle at all, and which of them rather: a chain of filters in front of placement.

Source: the filters of Pulsar's ModularLoadManagerImpl.selectBroker. Each filter is a pure function from the brokers
that are left (a mask) to those that remain, and has a reason under which the dropped ones are counted. `REQUIRED`
filters are limits and always hold. `PREFERRED` ones only choose among what the limits leave: they never leave nobody,
and are given up when all that they leave is overloaded.

Isolation policies come first in `REQUIRED`; anti-affinity and the broker's version come after the topic limit.

Differs from Pulsar: when the chosen broker is overloaded, Pulsar chooses again from all brokers that the isolation
policies allow, so those over the topic limit come back too; here the limits keep holding. Pulsar also drops brokers
that run another load-manager class than the leader; here brokers do not run load managers, and what they report as
their class says nothing about who may place bundles on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmanager.core.load import BoolArray
from loadmanager.core.placement.base import Projection
from loadmanager.core.plan import Reason
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """The bundle that needs a broker, and what it is asked against. `non_persistent`: it holds such a topic."""

    namespace: str
    non_persistent: bool
    snapshot: Snapshot
    projection: Projection
    settings: PlannerSettings


class BrokerFilter(NamedTuple):
    reason: Reason
    keep: Callable[[BoolArray, Question], BoolArray]


def keep_serving_domain(brokers: BoolArray, question: Question) -> BoolArray:
    """Those that serve persistent topics, or non-persistent ones for a bundle that holds such a topic."""
    columns = question.snapshot.brokers
    serving = columns.non_persistent_enabled if question.non_persistent else columns.persistent_enabled
    return np.asarray(brokers & serving)


def keep_below_topic_limit(brokers: BoolArray, question: Question) -> BoolArray:
    """Those with at most the greatest number of topics, bundles on their way included; all when that leaves none."""
    columns = question.snapshot.brokers
    topics = columns.topics + columns.preallocated_topics + question.projection.topics
    kept = np.asarray(brokers & (topics <= question.settings.broker_max_topics))
    return kept if kept.any() else brokers


def keep_fewest_of_namespace(brokers: BoolArray, question: Question) -> BoolArray:
    """Those with the fewest bundles of the namespace, so that each namespace is spread over the brokers."""
    if not question.settings.distribute_bundles_evenly_enabled or not brokers.any():
        return brokers
    bundles = question.projection.bundles_per_broker(question.namespace)
    return np.asarray(brokers & (bundles == bundles[brokers].min()))


REQUIRED = (
    BrokerFilter(Reason.PERSISTENCE_DISABLED, keep_serving_domain),
    BrokerFilter(Reason.TOPIC_LIMIT_REACHED, keep_below_topic_limit),
)
PREFERRED = (BrokerFilter(Reason.OWNS_MORE_OF_NAMESPACE, keep_fewest_of_namespace),)


def apply(
    filters: tuple[BrokerFilter, ...], brokers: BoolArray, question: Question
) -> tuple[BoolArray, dict[str, int]]:
    """The brokers that pass all filters, and how many each one dropped, by its reason, if any."""
    dropped = {}
    for reason, keep in filters:
        kept = keep(brokers, question)
        difference = int(np.count_nonzero(brokers)) - int(np.count_nonzero(kept))
        if difference:
            dropped[reason.value] = difference
        brokers = kept
    return brokers, dropped
