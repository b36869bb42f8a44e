from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.command_line import run_admin
from support.recording_node import RecordingNode

from loadmanager.cli.admin.node_requests import URL_VARIABLE, Service
from loadmanager.wire.plan_bodies import (
    BalanceAnswer,
    ChurnAnswer,
    DrainProgress,
    ExecutionAnswer,
    FrozenBundle,
    PlanAnswer,
    PlansAnswer,
)
from loadmanager.wire.validation import WireModel

BUNDLE = "t/ns/0x00000000_0x80000000"
DAY_MS = 87_000_000
STEP = {
    "bundle": BUNDLE,
    "version": 1,
    "source": "b1:8080",
    "destination": "b2:8080",
    "reason": "plan_executed",
    "outcome": "planned",
    "load_bytes_per_s": 5_242_880.0,
    "clients": 4,
}
SUMMARY = "Plan (shed): 1 bundle moves, 25.1 % of the load (5 MiB/s); 4 clients reconnect; imbalance 2.01 -> 1."
LOSS = (
    "Loss of the worst broker, b1:8080, cannot be borne; highest usage 60 %, best possible 51.3 %;"
    " 2 bundles that no broker may own."
)
CERTIFICATE = {
    "level": 0.05,
    "heat_before": 2.0,
    "heat_after": 1.0,
    "bound": 1.0,
    "bound_by": "volume",
    "bound_in_budget": 1.0,
    "noise_floor": 1.0,
    "gap": 1.0,
    "load_moved_percent": 50.0,
    "least_load_percent": 50.0,
    "load_gap": 1.0,
    "bundles_moved": 1,
    "least_bundles": 1,
    "sentence": "Heat 2 -> 1; best possible 1",
}


def shown(node: RecordingNode, command: str, content: WireModel) -> list[str]:
    node.status, node.body = 200, content.model_dump_json(by_alias=True).encode()
    done = run_admin(command, node.url)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def a_plan(**others: Any) -> PlanAnswer:  # noqa: ANN401 - fields of it
    fields: dict[str, Any] = {
        "hash": "abc",
        "kind": "shed",
        "state": "computed",
        "at": round(time.time() * 1000) - 5 * DAY_MS,
        "epoch": 2,
        "steps": [STEP],
        "verdicts": [{"subject": "b3:8080", "reason": "x", "acted": False, "sentence": "No move because of its pin"}],
        "effect": {
            "imbalance_before": 2.0123,
            "imbalance_after": 1.00456,
            "load_moved_bytes_per_s": 5_242_880.0,
            "load_moved_percent": 25.0512,
            "bundles_moved": 1,
            "clients_disturbed": 4,
        },
        "brokers": {
            "id": ["b1:8080", "b2:8080", "b3:8080"],
            "before": [2048.0, 0.0, 7.0],
            "after": [1024.0, 1024.0, 7.0],
        },
        "certificate": CERTIFICATE,
    }
    return PlanAnswer.model_validate(fields | others)


def test_plan_starts_with_its_effect_and_ends_with_its_command(node: RecordingNode) -> None:
    assert shown(node, "plans show abc", a_plan()) == [
        SUMMARY,
        "  Heat 2 -> 1; best possible 1.",
        "",
        "from     to       bundle                      load     clients  reason",
        "─" * 77,
        f"b1:8080  b2:8080  {BUNDLE}  5 MiB/s  4        plan executed",
        "",
        "broker   load before  after",
        "─────────────────────────────",
        "b1:8080  2 KiB/s      1 KiB/s",
        "b2:8080  0 B/s        1 KiB/s",
        "b3:8080: No move because of its pin",
        "",
        "state  computed 5 d ago, in epoch 2",
        "hash   abc",
        "",
        "To execute it: loadmanager admin plans execute abc",
    ]


def test_plan_without_moves_has_no_command(node: RecordingNode) -> None:
    lines = shown(node, "plans create shed", a_plan(steps=[], verdicts=[]))
    assert lines[:2] == [
        "Plan (shed): nothing to move; imbalance 2.01.",
        "  Heat 2 -> 1; best possible 1.",
    ]
    assert lines[-1] == "hash   abc"


def test_json_option_prints_the_plan_only(node: RecordingNode) -> None:
    lines = shown(node, "plans show abc --json", a_plan())
    assert json.loads("\n".join(lines))["hash"] == "abc"


def test_answer_of_another_version_is_shown_generically(node: RecordingNode) -> None:
    node.status, node.body = 200, b'{"another":{"thing":1}}'
    assert run_admin("plans show abc", node.url).stdout == "name     thing\n──────────────\nanother  1\n"


def test_execution_starts_with_its_outcome(node: RecordingNode) -> None:
    failed = STEP | {"outcome": "failed", "error": "no answer", "load_bytes_per_s": None, "clients": None}
    answer = ExecutionAnswer.model_validate({"hash": "abc", "executed": 0, "steps": [failed], "reason": "frozen"})
    lines = shown(node, "plans execute abc", answer)
    assert lines[0] == "0 of 1 moves executed; stopped: frozen."
    assert lines[-1] == f"b1:8080  b2:8080  {BUNDLE}  plan executed  failed   no answer"


def test_stored_plans_are_a_table(node: RecordingNode) -> None:
    kept = {"hash": "abc", "kind": "shed", "state": "executed", "at": 1, "bundles_moved": 2, "done": 2}
    kept |= {"imbalance_before": 2.0, "imbalance_after": 1.25, "reason": None}
    assert shown(node, "plans list", PlansAnswer.model_validate({"plans": [kept]}))[-1].endswith(
        "shed  executed  2 of 2      2 -> 1.25  abc"
    )
    assert shown(node, "plans list", PlansAnswer(plans=[])) == ["No plans."]


def test_drain_status_is_a_sentence(node: RecordingNode) -> None:
    since = round(time.time() * 1000) - 5 * DAY_MS
    fields = {"broker": "b1:8080", "since": since, "moved": 3, "failed": 0, "rate_per_s": 0.0, "eta_s": None}
    stays = [{"bundle": BUNDLE, "why": "it is pinned"}]
    blocked = fields | {"state": "blocked", "bundles_left": 2, "blocked": stays}
    assert shown(node, "brokers drain-status b1:8080", DrainProgress.model_validate(blocked)) == [
        "b1:8080 is blocked: 2 bundles left, 3 moved (begun 5 d ago).",
        f"  {BUNDLE}: it is pinned",
        "  and 1 more",
    ]
    done = fields | {"state": "done", "bundles_left": 0, "blocked": []}
    assert shown(node, "brokers drain-status b1:8080", DrainProgress.model_validate(done)) == [
        "b1:8080 is drained: 3 bundles moved; it can be stopped (begun 5 d ago)."
    ]


def test_balance_is_shown_in_sentences(node: RecordingNode) -> None:
    loss = {"lost": "b1:8080", "bound_percent": 51.26, "placed_percent": 60.0, "stranded": 2, "is_borne": False}
    content = {"now": CERTIFICATE, "last_round": CERTIFICATE, "worst_broker_loss": loss, "worst_domain_loss": None}
    assert shown(node, "balancer balance", BalanceAnswer.model_validate(content)) == [
        "Heat 2 -> 1; best possible 1.",
        "Last round of shedding: Heat 2 -> 1; best possible 1.",
        LOSS,
    ]


def test_churn_is_shown_with_what_the_breaker_has_stopped(node: RecordingNode) -> None:
    quiet = ChurnAnswer(
        moved_within_hour_percent=3.14159,
        moved_again_percent=0.0,
        moved_back_percent=0.0,
        shedding_stopped=False,
        shedding_stopped_seconds_left=0,
        frozen_bundles=[],
    )
    moved = [
        "moved within the hour   3.14 % of the load",
        "moved again within 2 h  0 % of the load",
        "moved back within 4 h   0 % of the load",
    ]
    assert shown(node, "balancer churn", quiet) == [*moved, "breaker                 has stopped nothing"]
    frozen = [FrozenBundle(bundle=BUNDLE, seconds_left=300)]
    stopped = {"shedding_stopped": True, "shedding_stopped_seconds_left": 720, "frozen_bundles": frozen}
    assert shown(node, "balancer churn", quiet.model_copy(update=stopped)) == [
        *moved,
        "breaker                 has stopped shedding for 12 min more; keeps 1 bundle in place",
        "",
        "kept bundle                 for",
        "─────────────────────────────────",
        f"{BUNDLE}  5 min",
    ]


def test_one_thing_is_named_in_the_singular(node: RecordingNode) -> None:
    effect = a_plan().effect.model_copy(update={"clients_disturbed": 1})
    assert "; 1 client reconnects; " in shown(node, "plans show abc", a_plan(effect=effect))[0]
    fields = {"broker": "b1:8080", "since": 1, "moved": 1, "failed": 0, "rate_per_s": 0.0, "eta_s": 0, "blocked": []}
    done = DrainProgress.model_validate(fields | {"state": "done", "bundles_left": 0})
    assert shown(node, "brokers drain-status b1:8080", done)[0].startswith("b1:8080 is drained: 1 bundle moved; ")


def test_printed_command_omits_the_url_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(["http://n1:8080", "http://n2:8080"], 1.0)
    assert service.command("status") == "loadmanager admin status --url http://n1:8080,http://n2:8080"
    monkeypatch.setenv(URL_VARIABLE, "http://n1:8080,http://n2:8080")
    assert service.command("status") == "loadmanager admin status"
    assert service.complete("it waits") == "it waits"


def test_printed_command_names_a_program_outside_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(["http://n1:8080"], 1.0)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", [".venv/bin/loadmanager", "admin", "status"])
    told = service.complete("it waits; loadmanager admin bundles unpin x")
    assert told == "it waits; .venv/bin/loadmanager admin bundles unpin x --url http://n1:8080"
    monkeypatch.setattr("sys.argv", ["./loadmanager", "admin", "status"])
    assert service.command("status") == "./loadmanager admin status --url http://n1:8080"
    monkeypatch.setattr("sys.argv", ["/src/loadmanager/__main__.py", "admin", "status"])
    monkeypatch.setattr("sys.executable", "/my venv/python")
    assert service.command("status") == "'/my venv/python' -m loadmanager admin status --url http://n1:8080"
