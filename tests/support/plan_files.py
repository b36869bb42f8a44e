"""Files of plans, as they are and forged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from support.builders import MIB, broker, bundle, report, snapshot, throughput

from loadmanager.core.certificate.certificate import Certified, certify
from loadmanager.core.effect import effect_of
from loadmanager.core.leading.plans import KeptPlan, Step
from loadmanager.core.load import BrokerReport
from loadmanager.core.plan import Unload
from loadmanager.core.reasons import OwnershipReason
from loadmanager.core.settings import PlannerSettings
from loadmanager.wire.plan_file import Packed, encode

SETTINGS = PlannerSettings(shedding_strategy="Level", placement_strategy="Level")
Edit = Callable[[dict[str, Any], dict[str, Any]], object]
"""Changes the JSON, or the columns, of a file."""


def carrying(host: str, sizes: list[float], capacity: tuple[float, float] = (1e6, 1e6)) -> BrokerReport:
    used = sum(sizes) * MIB * 8 / 1000
    loads = {bundle(i, f"tenant/{host}"): throughput(size) for i, size in enumerate(sizes)}
    return report(loads, bandwidth_in=(used, capacity[0]), bandwidth_out=(used, capacity[1]))


def a_plan() -> tuple[KeptPlan, Certified]:
    """A move of one of four from a broker of many sizes; of shapes that are not alike, so that there are prices."""
    given = snapshot(
        {
            "a": carrying("a", [8.0, 4.0, 2.0, 1.0]),
            "b": carrying("b", [1.0], (3e6, 1e6)),
            "c": carrying("c", [1.0], (1e6, 3e6)),
        }
    )
    name, reason = bundle(1, "tenant/a"), OwnershipReason.ADMIN_UNLOAD
    steps = [Unload(name, broker("a"), broker("b"), reason)]
    planned = Step(name, 7, broker("a"), broker("b"), reason)
    certified = certify(given, SETTINGS, steps)
    return KeptPlan("shed", 1, 2, (planned,), (), effect_of(given, steps)), certified


def a_file(*edits: Edit) -> bytes:
    plan, certified = a_plan()
    with np.load(io.BytesIO(encode(plan, Packed.of(certified)))) as archive:
        columns = {name: archive[name].copy() for name in archive.files}
    content = json.loads(bytes(columns.pop("plan")))
    for edit in edits:
        edit(content, columns)
    written = io.BytesIO()
    np.savez_compressed(written, plan=np.frombuffer(json.dumps(content).encode(), np.uint8), **columns)
    return written.getvalue()


def put(*path: str | int, to: object) -> Edit:
    """Put something else into the JSON, at this path."""

    def edit(content: dict[str, Any], _: dict[str, Any]) -> None:
        *way, last = path
        place: Any = content
        for key in way:
            place = place[key]
        place[last] = to

    return edit


def column(name: str, change: Callable[[Any], Any]) -> Edit:
    def edit(_: dict[str, Any], columns: dict[str, Any]) -> None:
        columns[name] = change(columns[name])

    return edit
