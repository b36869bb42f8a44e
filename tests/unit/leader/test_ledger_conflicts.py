"""Somebody else writes a record again and again, each time just before the leader does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.nodes import a_leader
from support.registrations import read, write

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Ownership, Registration, Stamp, assign
from loadmanager.errors import TransactionFailedError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Op, Put

NAMESPACE = paths.namespace("t/ns")
ATTEMPTS = 5


@pytest.mark.parametrize(("conflicts", "attempts"), [(ATTEMPTS - 1, ATTEMPTS), (ATTEMPTS, ATTEMPTS)])
async def test_a_change_is_tried_five_times_and_then_says_that_the_record_was_changed(
    conflicts: int, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_leader() as (cluster, leader):
        agent = await cluster.a_broker()
        name = BundleName.parse((await cluster.a_namespace())[0])
        commit, tried = leader.store.commit, 0

        async def compete(ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
            nonlocal tried
            if any(isinstance(op, Put) and op.path == NAMESPACE for op in ops):
                tried += 1
                if tried <= conflicts:
                    await write(cluster.store, NAMESPACE, await read(cluster.store, NAMESPACE))
            return await commit(ops, session_id=session_id)

        def give(current: Ownership, stamp: Stamp, owner: Registration = agent.registration) -> Ownership:
            return assign(current, owner, stamp)

        monkeypatch.setattr(leader.store, "commit", compete)
        outcome = leader.node.ledger.apply("t/ns", name.range, give, "test")
        if conflicts < ATTEMPTS:
            assert (await outcome).owner == agent.registration
        else:
            with pytest.raises(TransactionFailedError, match="bad_version"):
                await outcome
        assert tried == attempts
