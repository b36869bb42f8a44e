from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.http.fleet_routes import FeedEvent, Frames
from loadmanager.wire.fleet_bodies import Mark


def events(frames: bytes) -> list[tuple[str, Any]]:
    """The events in these frames, each with its data."""
    found = []
    for frame in frames.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in frame.split("\n"))
        found.append((fields["event"], orjson.loads(fields["data"])))
    return found


def decision(number: int) -> FeedEvent:
    return FeedEvent.of("decision", orjson.dumps({"n": number}), Mark(1, number, 7))


def test_fleet_is_sent_when_it_changed() -> None:
    frames = Frames()
    place = frames.beginning
    frames.show({"bundles": 1}, 10)
    sent, place = frames.after(place)
    assert events(sent) == [("fleet", {"at": 10, "bundles": 1})]
    frames.show({"bundles": 1}, 20)
    assert frames.after(place) == (b"", place)
    for at_ms, bundles in ((30, 2), (40, 3)):
        frames.show({"bundles": bundles}, at_ms)
    assert events(frames.after(place)[0]) == [("fleet", {"at": 40, "bundles": 3})]
    assert events(frames.after(frames.beginning)[0]) == [("fleet", {"at": 40, "bundles": 3})]


def test_forgotten_fleet_is_not_sent_until_there_is_another() -> None:
    frames = Frames()
    frames.show({"bundles": 1}, 10)
    frames.forget_snapshot()
    assert frames.after(frames.beginning)[0] == b""
    frames.show({"bundles": 1}, 20)
    assert events(frames.after(frames.beginning)[0]) == [("fleet", {"at": 20, "bundles": 1})]


def test_events_before_the_mark_of_a_reader_are_not_sent_again() -> None:
    frames = Frames()
    place = frames.beginning
    for number in range(1, 4):
        frames.put(decision(number))
    frames.put(FeedEvent.of("operation", b'{"n":4}', Mark(1, 1, 8)))
    assert events(frames.after(place, Mark(1, 2, 8))[0]) == [("decision", {"n": 3})]
    assert events(frames.after(place, Mark(1, 3, 7))[0]) == [("operation", {"n": 4})]
    assert len(events(frames.after(place, Mark(0, 9, 9))[0])) == 4
    assert frames.after(place)[0].startswith(b'event: decision\nid: 1:1:7\ndata: {"n":1}\n\n')


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5))
def test_readers_get_each_event_once_in_order(happens: list[int], kept: int) -> None:
    """0: something was decided; 1 and 2: one of two readers takes what is new; 3: another picture."""
    frames = Frames(kept)
    places = {1: frames.beginning, 2: frames.beginning}
    missed: dict[int, list[int]] = {1: [], 2: []}
    pictures = {1: 0, 2: 0}
    number = snapshot = 0
    for each in happens:
        if each == 0:
            number += 1
            frames.put(decision(number))
            for awaited in missed.values():
                awaited.append(number)
        elif each == 3:
            snapshot += 1
            frames.show({"picture": snapshot}, 0)
        else:
            sent, places[each] = frames.after(places[each])
            told = events(sent)
            assert [data["n"] for kind, data in told if kind == "decision"] == missed[each][-kept:]
            shown = [data["picture"] for kind, data in told if kind == "fleet"]
            assert shown == ([snapshot] if snapshot > pictures[each] else [])
            missed[each], pictures[each] = [], snapshot
    assert len(frames.after(frames.beginning)[0]) < 200


def test_mark_is_three_numbers() -> None:
    assert Mark.parse("3:14:0") == Mark(3, 14, 0)
    assert str(Mark(3, 14, 0)) == "3:14:0"
    for text in ("", "3", "3:4", "3::4", ":4:1", "a:b:c", "3:-4:1", "3:٤:1", "1:2:" + "9" * 20, "1:2:3:4"):
        assert Mark.parse(text) is None
