from __future__ import annotations

from typing import Any

from loadmanager.wire.lineage_bodies import BundleLineage, LineageEntry, merge_lineages


def entry(epoch: int, sequence: int, kind: str = "shed", **detail: Any) -> LineageEntry:  # noqa: ANN401 - figures
    at = {"at": epoch, "last_at": epoch}
    return LineageEntry(**at, epoch=epoch, sequence=sequence, kind=kind, sentence="", detail=detail)


def life(*entries: LineageEntry, omitted: int = 0) -> BundleLineage:
    return BundleLineage(bundle="b", since=0, until=9, omitted=omitted, entries=[*entries])


def places(together: BundleLineage) -> list[tuple[int, int]]:
    return [(each.epoch, each.sequence) for each in together.entries]


def test_shared_entries_are_merged_in_order_and_the_newest_are_kept() -> None:
    one = life(entry(1, 1), entry(3, 1), omitted=2)
    other = life(entry(1, 1), entry(2, 5))
    assert places(merge_lineages([one, other], 9, [])) == [(1, 1), (2, 5), (3, 1)]
    together = merge_lineages([one, other], 2, ["n3"])
    assert (places(together), together.omitted, together.unheard) == ([(2, 5), (3, 1)], 3, ["n3"])


def test_gap_filled_by_another_node_is_dropped() -> None:
    missing = entry(4, 0, "gap", previous={"epoch": 1, "sequence": 9, "ended": True})
    assert places(merge_lineages([life(missing), life(entry(2, 1), entry(3, 1))], 9, [])) == [(2, 1), (3, 1)]
    assert places(merge_lineages([life(missing), life(entry(2, 1))], 9, [])) == [(2, 1), (4, 0)]


def test_entries_lost_with_their_leader_stay_a_gap() -> None:
    lost = entry(2, 0, "gap", previous={"epoch": 1, "sequence": 9, "ended": False})
    dropped = entry(2, 7, "gap", rows=3)
    assert places(merge_lineages([life(lost, dropped), life(entry(1, 1))], 9, [])) == [(1, 1), (2, 0), (2, 7)]
