"""Files of plans, as they are and forged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic.alias_generators import to_camel
from support.builders import MIB, broker, bundle, report, snapshot, throughput

from loadmanager.core.domain.plan import DependsOn, Unload, hash_plan
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.planning.certificate.plan_certificate import Certified, certify, compute_figures
from loadmanager.core.planning.plan_effect import compute_effect
from loadmanager.core.protocol.plan_machine import KeptPlan, TrackedStep
from loadmanager.wire.plan_file import PackedCertificate, decode, encode

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
    planned = TrackedStep(name, 7, broker("a"), broker("b"), reason)
    certified = certify(given, SETTINGS, steps)
    return KeptPlan("shed", 1, 2, (planned,), (), compute_effect(given, steps), cluster="west"), certified


def a_file(*edits: Edit) -> bytes:
    plan, certified = a_plan()
    with np.load(io.BytesIO(encode(plan, PackedCertificate.of(certified)))) as archive:
        columns = {name: archive[name].copy() for name in archive.files}
    content = json.loads(bytes(columns.pop("plan")))
    for edit in edits:
        edit(content, columns)
    return _written(content, columns)


def _written(content: dict[str, Any], columns: dict[str, Any]) -> bytes:
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


def _other(figure: str) -> Edit:
    def edit(content: dict[str, Any], _: dict[str, Any]) -> None:
        before = content["figures"][figure]
        content["figures"][figure] = before + 1 if isinstance(before, int) else before * 1.001 + 0.001

    return edit


def _repeat_steps(content: dict[str, Any], _: dict[str, Any]) -> None:
    content["steps"] *= 2


def to_a_broker_without_columns(content: dict[str, Any], columns: dict[str, Any]) -> None:
    """With the hash and the figures that follow if what goes there counts for nobody: less than any bound allows."""
    step = content["steps"][0]
    step["destination"] = ["x:8080", 1]
    depends_on: DependsOn = {key: step[key] for key in ("bundle", "version", "source", "destination")}
    content["hash"] = hash_plan(content["cluster"], content["kind"], [depends_on])
    certified, _ = decode(_written(content, columns))
    figures = compute_figures(certified.problem, certified.after, certified.sigma, certified.proof)
    assert figures.heat_after < figures.heat_before
    content["figures"] = {to_camel(name): figure for name, figure in asdict(figures).items()}
    content |= {"gap": figures.gap, "loadGap": figures.load_gap}


FORGED: list[tuple[Edit, str]] = [
    *(
        (_other(figure), f"figures.{figure}: ")
        for figure in (
            "level",
            "heatBefore",
            "heatAfter",
            "bound",
            "boundInBudget",
            "noiseFloor",
            "loadMoved",
            "leastLoad",
            "bundlesMoved",
            "leastBundles",
        )
    ),
    (put("gap", to=1.0001), "gap: "),
    (put("loadGap", to=None), "loadGap: "),
    (put("loadGap", to=1.0), "loadGap: "),
    (put("boundBy", to="prices"), "boundBy: "),
    (put("hash", to="0" * 64), "hash: "),
    (put("kind", to="drain"), "hash: "),
    (put("steps", 0, "version", to=8), "hash: "),
    (put("steps", 0, "destination", to=["c:8080", 1]), "hash: "),
    (put("steps", 0, "destination", to=["x:8080", 1]), "steps[0]: "),
    (to_a_broker_without_columns, "steps[0]: "),
    (put("steps", 0, "source", to=["b:8080", 1]), "steps[0]: "),
    (put("steps", 0, "bundle", to="tenant/a/none"), "steps[0]: "),
    (put("steps", to=[]), "hash: "),
    (_repeat_steps, "steps[1]: "),
    (put("proof", "budgetPeak", to=9.0), "figures.boundInBudget: "),
    (put("proof", "loadPeak", to=9.0), "figures.leastLoad: "),
    (put("proof", "movesPeak", to=9.0), "figures.leastBundles: "),
    (put("proof", "bounds", to=[]), "figures.bound: "),
    (column("mayOwn", lambda _: np.array([[True, False, False]])), "steps[0]: "),
    *(
        (column(name, lambda found: found * 2 + found.dtype.type(0.1)), "figures.")
        for name in ("need", "perNeed", "cost", "sigma", "loadPrice", "movesPrice", "budgetPrice")
    ),
    (column("owner", lambda found: found[::-1]), "steps[0]: "),
]
"""Plans that are not what they say, and how the first of their faults begins. Whoever checks files has to find each."""

GARBAGE: list[tuple[Edit, str]] = [
    (put("formatVersion", to=2), "plan: formatVersion"),
    (put("figures", "bound", to="high"), "plan: figures.bound"),
    (put("brokers", to=["a:8080", "b:8080"]), "mayOwn"),
    (put("brokers", to=["a:8080"] * 3), "brokers"),
    (put("proof", "bounds", 0, "brokers", to=[3]), "proof.bounds[0].brokers"),
    (put("proof", "bounds", 0, "resource", to=9), "proof.bounds[0].resource"),
    (put("proof", "bounds", 0, "kind", to="luck"), "plan: proof.bounds.0.kind"),
    (lambda _, columns: columns.pop("need"), "need"),
    (lambda _, columns: columns.pop("prices"), "prices"),
    (column("need", lambda found: found[:, :1]), "need"),
    (column("need", lambda found: found.astype(np.float64)), "need"),
    (column("need", lambda found: -found), "need"),
    (column("cost", lambda found: found * np.nan), "cost"),
    (column("owner", lambda found: found + 3), "owner"),
    (column("classes", lambda found: found - 1), "classes"),
    (column("mayOwn", lambda found: found & False), "mayOwn"),
    (column("loadResource", lambda found: found + 2), "loadResource"),
    (column("bundles", lambda found: found[:-1] * 0 + 0xFF), "bundles"),
    (column("bundles", lambda found: np.concatenate([found, [10], found[:10]]).astype(np.uint8)), "need"),
    (column("bundles", lambda found: np.where(found == ord("b"), ord("c"), found).astype(np.uint8)), "bundles"),
    (column("prices", lambda found: -found), "prices"),
    (column("prices", lambda found: found * 0 + 1e300), "prices"),
    (column("budgetPrice", lambda found: found + 1e300), "budgetPrice"),
    (put("figures", "bundlesMoved", to=10**400), "plan: figures.bundlesMoved"),
    (put("proof", "budgetPeak", to=1e300), "plan: proof.budgetPeak"),
]
"""Files that are no plans, and the field that is wrong."""
