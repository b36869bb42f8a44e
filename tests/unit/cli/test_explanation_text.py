from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from support.command_line import run_admin
from support.recording_node import RecordingNode

from loadmanager.cli.admin import balancer_commands
from loadmanager.wire.explain_bodies import BrokerExplanation, BundleExplanation, WhyNotExplanation
from loadmanager.wire.validation import WireModel

BUNDLE = "t/ns/0x00000000_0x80000000"
INPUTS = {"epoch": 2, "revision": 9, "taken_at": 1, "dry_run": False, "report_age_s": 0.7, "sample_age_s": 12.3}
OWNERSHIP = {"state": "Owned", "owner": "b1:8080", "version": 3, "epoch": 2, "reason": "admin_unload", "age_s": 200.0}
LOAD = {"msg_rate_in": 35.474, "msg_rate_out": 0.0, "msg_throughput_in": 18162.7, "msg_throughput_out": 0.0}
DECISION = {
    "sequence": 1,
    "at": 0,
    "epoch": 2,
    "kind": "unload",
    "subject": BUNDLE,
    "reason": "x",
    "acted": True,
    "why": {},
    "sentence": "Shed",
    "source": "b2:8080",
    "destination": "b1:8080",
    "effect": None,
    "times": 1,
    "last_at": 0,
}


def shown(node: RecordingNode, line: str, content: WireModel) -> list[str]:
    node.status, node.body = 200, json.dumps(content.model_dump(by_alias=True)).encode()
    done = run_admin(f"explain {line}", node.url)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def said(sentence: str, **others: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of it
    return {"reason": "x", "sentence": sentence, "why": {"n": 1}, **others}


def standing(broker: str, used: float) -> dict[str, Any]:
    load = {"msg_rate_per_s": 5290.67, "mib_per_s": 1.6957, "topics": 56, "bundles": 39, "bundles_of_namespace": 5}
    return {"broker_id": broker, "usage_percent": used, **load}


def shedding(**others: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of it
    stays = said("No move because a round takes nothing from b1:8080")
    below = said("No move because usage 47.42 % is below average")
    return {"would_move": False, "stays": stays, "stays_by_rule": False, "broker_verdicts": [below], **others}


def a_bundle(**others: Any) -> BundleExplanation:  # noqa: ANN401 - fields of it
    placement = {
        "chosen": "b2:8080",
        "verdict": said("Placed because b2:8080 has the least"),
        "drawn_from": ["b2:8080"],
        "runner_up": said("Placed because b3:8080 has the least"),
        "standings": [standing("b1:8080", 47.417), standing("b2:8080", 30.2)],
        "dropped": {"isolation": 2},
    }
    load = {"short_term": LOAD, "long_term": LOAD, "short_samples": 10, "long_samples": 52, "topics": 3}
    shares = {"share_of_broker_percent": 0.8838, "share_of_cluster_percent": 0.22873}
    fields = {
        "bundle": BUNDLE,
        "inputs": INPUTS,
        "ownership": OWNERSHIP,
        "load": load | shares,
        "shedding": shedding(),
        "placement": placement,
        "decisions": [DECISION],
    }
    return BundleExplanation.model_validate(fields | others)


def test_bundle_explanation_shows_owner_and_placement(node: RecordingNode) -> None:
    assert shown(node, f"bundle {BUNDLE}", a_bundle()) == [
        f"{BUNDLE} is on b1:8080 for 3 min (admin unload); a round now would leave it there.",
        "  No move because a round takes nothing from b1:8080.",
        "  No move because usage 47.42 % is below average.",
        "",
        "Without its broker it would be given to b2:8080:",
        "  Placed because b2:8080 has the least.",
        "  runner-up: Placed because b3:8080 has the least",
        "  isolation kept away 2 brokers",
        "",
        "load        35.5 messages/s, 17.7 KiB/s in; 0 messages/s, 0 B/s out; 3 topics",
        "share       0.884 % of the bytes of its broker, 0.229 % of all",
        "known from  52 samples, 12 s old",
        "",
        "broker   usage   msgs/s  bytes/s    topics  bundles (of ns)  role",
        "─────────────────────────────────────────────────────────────────────────",
        "b1:8080  47.4 %  5.29k   1.7 MiB/s  56      39 (5)           has it",
        "b2:8080  30.2 %  5.29k   1.7 MiB/s  56      39 (5)           would get it",
        "",
        "decided of late, newest first:",
        f"1970-01-01 00:00Z  unload  {BUNDLE}  b2:8080 -> b1:8080",
        "  Shed",
    ]


def test_bundle_explanation_shows_moves_rules_and_missing_owners(node: RecordingNode) -> None:
    moving = a_bundle(shedding=shedding(would_move=True, destination="b2:8080", stays=None))
    assert shown(node, f"bundle {BUNDLE}", moving)[0].endswith("; a round now would move it to b2:8080.")
    pinned = said("No move because it is pinned", change="unpin it")
    kept = a_bundle(shedding=shedding(stays=pinned, stays_by_rule=True))
    assert shown(node, f"bundle {BUNDLE}", kept)[1:3] == [
        "  No move because it is pinned; to change it: unpin it",
        "",
    ]
    free = a_bundle(ownership={**OWNERSHIP, "state": "Free", "owner": None, "age_s": None})
    lines = shown(node, f"bundle {BUNDLE}", free)
    assert lines[0] == f"{BUNDLE} has no owner."
    assert "share       0.229 % of all bytes" in lines, "it has no broker of whose bytes it could have a part"


def test_broker_explanation_shows_moves_and_obstacles(node: RecordingNode) -> None:
    resources = {"cpu": 1.992, "memory": None, "direct_memory": 0.0, "bandwidth_in": 90.04, "bandwidth_out": 0.0}
    explanation = BrokerExplanation.model_validate({
        "broker_id": "b1:8080", "inputs": INPUTS, "usage_percent": 90.04, "resources": resources,
        "standing": standing("b1:8080", 90.04), "is_settled": True, "shedding_strategy": "ThresholdShedder",
        "thresholds": {"loadBalancerX": 10.0}, "would_shed": [{"bundle": BUNDLE, "destination": "b2:8080"}],
        "verdicts": [said("Shed 1 of 9 bundles")], "certificate": said("Heat 1.07"), "margin": None,
        "takes_bundles": False, "is_overloaded": True, "obstacles": [said("It is excluded", change="include it")],
        "decisions": [],
    })  # fmt: skip
    assert shown(node, "broker b1:8080", explanation) == [
        "b1:8080 is used to 90 %; a round now would take 1 of its bundles.",
        "  Shed 1 of 9 bundles.",
        "",
        "It is given no bundles:",
        "  It is excluded; to change it: include it",
        "  It is overloaded: only when others are no better.",
        "",
        "usage        cpu 1.99 %, memory unknown, direct memory 0 %, net in 90 %, net out 0 %",
        "load         5.29k messages/s, 1.7 MiB/s; 56 topics, 39 bundles",
        "report       1 s old",
        "decides      ThresholdShedder: loadBalancerX 10",
        "all brokers  Heat 1.07",
        "",
        "would leave                 for",
        "───────────────────────────────────",
        f"{BUNDLE}  b2:8080",
    ]


def test_why_not_starts_with_the_answer_and_its_remedy(node: RecordingNode) -> None:
    answer = said("Not on b2:8080 because an operator has excluded it", change="remove its exclusion")
    other = said("Not on b2:8080 because it is full", change="reduce its load", is_preference=False)
    explanation = WhyNotExplanation.model_validate({
        "bundle": BUNDLE, "broker_id": "b2:8080", "inputs": INPUTS, "ownership": OWNERSHIP, "answer": answer,
        "obstacles": [{**answer, "is_preference": False}, other], "placement": said("Placed because of it"),
        "standings": [standing("b2:8080", 0.0)], "shedding": shedding(), "decisions": [],
    })  # fmt: skip
    assert shown(node, f"why-not {BUNDLE} b2:8080", explanation)[:9] == [
        "Not on b2:8080 because an operator has excluded it.",
        "To change it: remove its exclusion",
        "  Not on b2:8080 because it is full; to change it: reduce its load",
        "",
        f"{BUNDLE} is on b1:8080 for 3 min (admin unload); a round now would leave it there.",
        "  No move because a round takes nothing from b1:8080.",
        "  No move because usage 47.42 % is below average.",
        "",
        "Placed because of it.",
    ]


def test_explanation_of_another_version_is_shown_generically(node: RecordingNode) -> None:
    class Other(WireModel):
        mood: str

    assert shown(node, f"bundle {BUNDLE}", Other(mood="good")) == ["mood  good"]


def test_command_stays_on_one_line_of_a_narrow_terminal() -> None:
    command = f"loadmanager admin bundles unpin {BUNDLE} --url http://node-1.example.com:8080"
    pinned = said("No move because it is pinned", change=command)
    kept = a_bundle(shedding=shedding(stays=pinned, stays_by_rule=True)).model_dump(mode="json", by_alias=True)
    lines = balancer_commands._bundle_lines(kept, 60)
    place = lines.index("  No move because it is pinned; to change it:")
    assert lines[place + 1] == f"    {command}"


def test_printed_command_contains_url_and_token_file(node: RecordingNode, tmp_path: Path) -> None:
    (token := tmp_path / "my token").write_text("a.b.c")
    pinned = said("No move because it is pinned", change=f"loadmanager admin bundles unpin {BUNDLE}")
    node.status, node.body = 200, a_bundle(shedding=shedding(stays=pinned)).model_dump_json(by_alias=True).encode()
    options = f"--url {node.url} --token-file '{token}'"
    line = run_admin(f"explain bundle {BUNDLE} {options}").stdout.splitlines()[1]
    printed = line.partition("to change it: ")[2]
    assert shlex.split(printed) == shlex.split(f"loadmanager admin bundles unpin {BUNDLE} {options}")
