from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.builders import broker, owned, releasing, report
from support.registrations import a_record

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import FREE, NamespaceState, Ownership
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.errors import BrokerNotFoundError, BundleNotFoundError, InvalidRecordError, NamespaceNotFoundError
from loadmanager.leader.mirror.broker_records import RawReports
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry, lookup_answer
from loadmanager.store import paths

B1 = broker("b1", 5)
NAMESPACE = NamespaceName("t", "ns")
TOPIC = TopicName.parse("persistent://t/ns/x")


def a_mirror() -> ClusterMirror:
    mirror = ClusterMirror()
    state = NamespaceState.unowned(NAMESPACE, NamespaceBundles(equal_boundaries(2)))
    mirror.put_namespace(NamespaceEntry(state, 0, czxid=1, digest=0))
    mirror.put_broker(B1, 0, a_record("b1:8080"))
    return mirror


def test_owner_is_found_only_by_its_registration() -> None:
    mirror = a_mirror()
    found = mirror.find_owner(owned(B1))
    assert found is not None
    assert found.registration == B1
    assert mirror.find_owner(owned(broker("b1", 4))) is None
    assert mirror.find_owner(owned(broker("b2", 5))) is None


def test_free_or_releasing_bundle_has_no_owner_to_serve_it() -> None:
    mirror = a_mirror()
    assert mirror.find_owner(FREE) is None
    assert mirror.find_owner(releasing(B1, B1)) is None


def test_lost_broker_owns_nothing() -> None:
    mirror = a_mirror()
    mirror.drop_broker(BrokerId("b1:8080"))
    assert mirror.find_owner(owned(B1)) is None
    assert not mirror.is_registered(B1)


def test_only_changed_owners_are_written_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = a_mirror()
    written: list[set[str]] = []
    write = ClusterModel.set_owners

    def noted(model: ClusterModel, ownerships: Mapping[str, Ownership]) -> None:
        written.append(set(ownerships))
        write(model, ownerships)

    monkeypatch.setattr(ClusterModel, "set_owners", noted)
    former = mirror.get_namespace("t/ns").state
    mirror.put_namespace(NamespaceEntry(former.with_ownerships({1: owned(B1)}), 1, czxid=1, digest=1))
    assert written == [{"t/ns/0x80000000_0xffffffff"}]
    assert mirror.model.bundles_of(B1) == ["t/ns/0x80000000_0xffffffff"]
    other_cut = NamespaceState(NAMESPACE, NamespaceBundles(equal_boundaries(4)), (owned(B1),) * 4)
    mirror.put_namespace(NamespaceEntry(other_cut, 2, czxid=1, digest=2))
    assert len(written) == 1
    assert len(mirror.model.bundles_of(B1)) == 4


async def test_raw_report_of_a_lost_broker_is_refused() -> None:
    async def gone(_: str) -> None:
        return None

    with pytest.raises(BrokerNotFoundError, match="b1:8080' has just gone"):
        await RawReports(gone, a_mirror()).read(B1.broker)


def test_unknown_namespace_and_range_are_refused() -> None:
    mirror = a_mirror()
    with pytest.raises(NamespaceNotFoundError, match="t/other"):
        mirror.get_namespace("t/other")
    with pytest.raises(BundleNotFoundError, match="0x00000000_0x40000000 is not a current bundle of namespace t/ns"):
        mirror.bundle(BundleName.parse("t/ns/0x00000000_0x40000000"))


def test_unreadable_namespace_is_not_treated_as_missing() -> None:
    mirror = ClusterMirror()
    mirror.faults[paths.namespace("t/ns")] = "not UTF-8"
    with pytest.raises(InvalidRecordError, match="t/ns cannot be read: not UTF-8"):
        mirror.bundle_of_topic(TOPIC)


def test_lookup_answer_has_the_requested_listeners_addresses() -> None:
    record = a_record("b1:8080")
    plain = lookup_answer(BrokerId("b1:8080"), record)
    internal = lookup_answer(BrokerId("b1:8080"), record, "internal")
    assert plain is not None
    assert internal is not None
    assert plain.broker_url == plain.native_url == "pulsar://b1:6650"
    assert internal.broker_url == internal.native_url == "pulsar://b1.internal:6650"
    assert internal.http_url is None
    assert lookup_answer(BrokerId("b1:8080"), record, "external") is None


def test_command_url_is_that_of_the_agent() -> None:
    mirror = a_mirror()
    assert mirror.brokers[BrokerId("b1:8080")].command_url is None
    mirror.put_broker(B1, 1, a_record("b1:8080", agent_url="http://agent:9090"))
    assert mirror.brokers[BrokerId("b1:8080")].command_url == "http://agent:9090"


def test_commit_changes_the_model_like_a_full_read() -> None:
    mirror, entry = a_mirror(), a_mirror().namespaces["t/ns"]
    mirror.put_namespace(entry)
    for ownerships in ({0: owned(B1)}, {0: releasing(B1, B1), 1: owned(B1)}, {1: owned(broker("b2"))}, {}):
        entry = mirror.namespaces["t/ns"]
        mirror.commit_namespace(
            replace(entry, state=entry.state.with_ownerships(ownerships), version=entry.version + 1)
        )
        whole = a_mirror()
        whole.model.set_namespace(
            "t/ns", mirror.namespaces["t/ns"].state.bundle_names(), mirror.namespaces["t/ns"].state.ownerships
        )
        for of in (mirror, whole):
            of.model.apply_report(B1, report())
        seen, wanted = mirror.model.snapshot(0.0, 0.0).bundles, whole.model.snapshot(0.0, 0.0).bundles
        assert seen.names == wanted.names
        assert (seen.assigned == wanted.assigned).all()
        assert (seen.free == wanted.free).all()
        assert mirror.model.releasing() == whole.model.releasing()
