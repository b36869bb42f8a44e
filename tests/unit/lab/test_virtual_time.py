from __future__ import annotations

from loadmanager.lab.simulate.world_state import Agenda


def test_events_run_at_their_times_and_ties_in_insertion_order() -> None:
    agenda, done = Agenda(), list[tuple[str, float]]()
    for name, at_s in (("late", 5.0), ("first", 2.0), ("second", 2.0)):
        agenda.put(at_s, lambda name=name: done.append((name, agenda.now_s)))  # type: ignore[misc]
    agenda.run_until(4.0)
    assert (done, agenda.now_s) == ([("first", 2.0), ("second", 2.0)], 4.0)
    agenda.run_until(5.0)
    assert done[2:] == [("late", 5.0)]


def test_late_event_runs_now_and_time_never_goes_back() -> None:
    agenda, seen = Agenda(), list[float]()

    def again() -> None:
        seen.append(agenda.now_s)
        if len(seen) < 3:
            agenda.after(1.0, again)

    agenda.run_until(10.0)
    agenda.put(3.0, again)
    agenda.run_until(20.0)
    assert seen == [10.0, 11.0, 12.0]
