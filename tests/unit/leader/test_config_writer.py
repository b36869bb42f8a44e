from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.learned import learned
from support.nodes import RunningNode, a_leader

from loadmanager.core.domain.controls import Controls
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.store import paths
from loadmanager.store.znode_codec import decode
from loadmanager.wire.control_records import decode_controls
from loadmanager.wire.learned_records import decode_learned
from loadmanager.wire.policy_records import (
    FailureDomain,
    IsolationData,
    decode_domains,
    decode_groups,
    decode_isolation,
)
from loadmanager.wire.store_records import decode_configuration

CONTROLS = Controls(frozen="incident")
LEARNED = learned({"t/ns": (1, 2, 3, 4)})
ISOLATION: dict[str, IsolationData] = {"mine": {"namespaces": ["t/ns"], "primary": ["b1"]}}
DOMAINS: dict[str, FailureDomain] = {"east": {"brokers": ["b1:8080"]}}
GROUPS = {"t/ns": "group"}
OVERRIDES = {"loadBalancerBrokerMaxTopics": "7"}

Update = Callable[[ConfigWriter], Awaitable[object]]
UPDATES: list[tuple[str, Callable[[bytes, str], object], Update, object]] = [
    (paths.CONTROLS, decode_controls, lambda to: to.update_controls(lambda _: CONTROLS), CONTROLS),
    (paths.ISOLATION, decode_isolation, lambda to: to.update_isolation(lambda now: {**now, **ISOLATION}), ISOLATION),
    (paths.FAILURE_DOMAINS, decode_domains, lambda to: to.update_failure_domains(lambda n: {**n, **DOMAINS}), DOMAINS),
    (paths.ANTI_AFFINITY, decode_groups, lambda to: to.update_anti_affinity(lambda now: {**now, **GROUPS}), GROUPS),
    (
        paths.CONFIGURATION,
        decode_configuration,
        lambda to: to.update_configuration(lambda now: {**now, **OVERRIDES}),
        OVERRIDES,
    ),
    (paths.LEARNED, decode_learned, lambda to: to.update_learned(LEARNED), LEARNED),
]


@pytest.fixture
async def leader() -> AsyncIterator[RunningNode]:
    async with a_leader() as (_, leader):
        yield leader


@pytest.mark.parametrize(("path", "read", "update", "expected"), UPDATES, ids=[path for path, *_ in UPDATES])
async def test_operator_config_is_stored_in_its_znode_and_returned(
    leader: RunningNode, path: str, read: Callable[[bytes, str], object], update: Update, expected: object
) -> None:
    assert await update(leader.node.operators) == expected
    znode = await leader.store.get(path)
    assert znode is not None
    assert read(decode(znode.data, path), path) == expected
    assert await update(leader.node.operators) == expected
    again = await leader.store.get(path)
    assert again is not None
    assert again.version == znode.version, "nothing has changed, so nothing is written"


async def test_learned_loads_can_be_removed(leader: RunningNode) -> None:
    await leader.node.operators.update_learned(LEARNED)
    assert await leader.node.operators.update_learned(None) is None
    assert leader.node.mirror.operator_config.learned is None
