from __future__ import annotations

import numpy as np
import pytest
from support.builders import bundle, report, snapshot, throughput

from loadmanager.core.domain.reasons import ChurnReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.lab.replay.replayed_decisions import DecisionInputs, ReplayedMemory, replay_decision

SETTINGS = PlannerSettings(shedding_strategy="OverloadShedder")


@pytest.mark.parametrize("kind", ["shed", "preview_shed"])
@pytest.mark.parametrize(
    ("detail", "refused"),
    [({}, False), ({"inProgress": 0.0}, False), ({"inProgress": 1.0}, True)],
    ids=["former", "0", "1"],
)
def test_round_is_replayed_with_moves_in_progress(
    kind: str,
    detail: dict[str, float],
    refused: bool,  # noqa: FBT001 - a case
) -> None:
    loads = {bundle(number): throughput(1) for number in range(9)}
    given = snapshot({"a": report(loads, cpu=90), "b": report(cpu=10)})
    memory = ReplayedMemory({}, {}, {}, np.random.default_rng(1), np.random.default_rng(2))
    replayed = replay_decision(kind, DecisionInputs.of(given, memory), SETTINGS, memory, detail)
    assert replayed is not None
    assert (not replayed.steps) == refused
    assert (ChurnReason.MOVED_ENOUGH_THIS_HOUR in [verdict.verdict for verdict in replayed.verdicts]) == refused
