from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from support.command_line import run_admin
from support.nodes import a_leader
from support.recording_node import RecordingNode, a_recording_node
from support.servers import closed_port
from support.waiting import patience

from loadmanager.cli.admin import node_requests

BUNDLE = "t/ns/0x00000000_0x80000000"
RANGE = "0x00000000_0x80000000"


REQUESTS = {
    "namespaces list t": ("GET", "/admin/v2/namespaces/t", None),
    "namespaces create t/ns": ("PUT", "/admin/v2/namespaces/t/ns", {}),
    "namespaces create t/ns -b 16 -c c1,c2": (
        "PUT",
        "/admin/v2/namespaces/t/ns",
        {"bundles": {"numBundles": 16}, "replication_clusters": ["c1", "c2"]},
    ),
    "namespaces delete t/ns": ("DELETE", "/admin/v2/namespaces/t/ns", None),
    "namespaces delete t/ns --force --yes": ("DELETE", "/admin/v2/namespaces/t/ns?force=true", None),
    "tenants list": ("GET", "/admin/v2/tenants", None),
    "audit --limit 5 --since 7 --until 9": ("GET", "/loadbalance/v1/audit?limit=5&since=7&until=9", None),
    f"why {BUNDLE} --since 7 --until 9": (
        "GET",
        f"/loadbalance/v1/history/bundle/{BUNDLE}?since=7&until=9&limit=100",
        None,
    ),
    "namespaces policies t/ns": ("GET", "/admin/v2/namespaces/t/ns", None),
    "namespaces bundles t/ns": ("GET", "/admin/v2/namespaces/t/ns/bundles", None),
    "namespaces unload t/ns": ("PUT", "/admin/v2/namespaces/t/ns/unload", None),
    f"namespaces unload t/ns -b {RANGE}": ("PUT", f"/admin/v2/namespaces/{BUNDLE}/unload", None),
    f"namespaces unload t/ns -b {RANGE} -d b1:8080": (
        "PUT",
        f"/admin/v2/namespaces/{BUNDLE}/unload?destinationBroker=b1%3A8080",
        None,
    ),
    f"namespaces split-bundle t/ns -b {RANGE}": ("PUT", f"/admin/v2/namespaces/{BUNDLE}/split", None),
    "namespaces split-bundle t/ns -bt HOT -u -san topic_count_equally_divide": (
        "PUT",
        "/admin/v2/namespaces/t/ns/HOT/split?unload=true&splitAlgorithmName=topic_count_equally_divide",
        None,
    ),
    f"namespaces split-bundle t/ns -b {RANGE} -san specified_positions_divide -sb 10,0x20": (
        "PUT",
        f"/admin/v2/namespaces/{BUNDLE}/split?splitAlgorithmName=specified_positions_divide",
        [10, 32],
    ),
    f"namespaces get-topic-positions t/ns -b {RANGE} -tl a/b,c": (
        "GET",
        f"/admin/v2/namespaces/{BUNDLE}/topicHashPositions?topics=a%2Fb&topics=c",
        None,
    ),
    "namespaces get-anti-affinity-group t/ns": ("GET", "/admin/v2/namespaces/t/ns/antiAffinity", None),
    "namespaces delete-anti-affinity-group t/ns": ("DELETE", "/admin/v2/namespaces/t/ns/antiAffinity", None),
    "namespaces get-anti-affinity-namespaces -c c1 -g g1 -p t": (
        "GET",
        "/admin/v2/namespaces/c1/antiAffinity/g1?tenant=t",
        None,
    ),
    "brokers list": ("GET", "/admin/v2/brokers/standalone", None),
    "brokers list c1": ("GET", "/admin/v2/brokers/c1", None),
    "brokers leader-broker": ("GET", "/admin/v2/brokers/leaderBroker", None),
    "brokers namespaces c1 -u b1:8080": ("GET", "/admin/v2/brokers/c1/b1:8080/ownedNamespaces", None),
    "brokers healthcheck": ("GET", "/admin/v2/brokers/health", None),
    "brokers version": ("GET", "/admin/v2/brokers/version", None),
    "brokers update-dynamic-config -c k -v a/b": ("POST", "/admin/v2/brokers/configuration/k/a%2Fb", None),
    "brokers delete-dynamic-config -c k": ("DELETE", "/admin/v2/brokers/configuration/k", None),
    "brokers list-dynamic-config": ("GET", "/admin/v2/brokers/configuration", None),
    "brokers get-all-dynamic-config": ("GET", "/admin/v2/brokers/configuration/values", None),
    "brokers get-runtime-config": ("GET", "/admin/v2/brokers/configuration/runtime", None),
    "brokers drain b1:8080": ("PUT", "/loadbalance/v1/brokers/b1:8080/drain", None),
    "brokers drain-status b1:8080": ("GET", "/loadbalance/v1/brokers/b1:8080/drain", None),
    "brokers stop-drain b1:8080": ("DELETE", "/loadbalance/v1/brokers/b1:8080/drain", None),
    "brokers exclude b1:8080": ("PUT", "/loadbalance/v1/brokers/b1:8080/exclusion", None),
    "brokers include b1:8080": ("DELETE", "/loadbalance/v1/brokers/b1:8080/exclusion", None),
    "brokers hold-off b1:8080": ("PUT", "/loadbalance/v1/brokers/b1:8080/hold-off", {"forS": 120.0}),
    "brokers hold-off b1:8080 --for 5m": ("PUT", "/loadbalance/v1/brokers/b1:8080/hold-off", {"forS": 300.0}),
    "brokers hold-off b1:8080 --for 0": ("DELETE", "/loadbalance/v1/brokers/b1:8080/hold-off", None),
    "broker-stats load-report b1:8080": ("GET", "/admin/v2/broker-stats/load-report?brokerId=b1%3A8080", None),
    "broker-stats monitoring-metrics -i": ("GET", "/admin/v2/broker-stats/metrics", None),
    "ns-isolation-policy set c1 p1 --namespaces t/.* --primary b1,b2 --secondary b3"
    " --auto-failover-policy-params min_limit=1,usage_threshold=80 --unload-scope none": (
        "POST",
        "/admin/v2/clusters/c1/namespaceIsolationPolicies/p1",
        {
            "namespaces": ["t/.*"],
            "primary": ["b1", "b2"],
            "secondary": ["b3"],
            "auto_failover_policy": {
                "policy_type": "min_available",
                "parameters": {"min_limit": "1", "usage_threshold": "80"},
            },
            "unload_scope": "none",
        },
    ),
    "ns-isolation-policy get c1 p1": ("GET", "/admin/v2/clusters/c1/namespaceIsolationPolicies/p1", None),
    "ns-isolation-policy list c1": ("GET", "/admin/v2/clusters/c1/namespaceIsolationPolicies", None),
    "ns-isolation-policy delete c1 p1": ("DELETE", "/admin/v2/clusters/c1/namespaceIsolationPolicies/p1", None),
    "ns-isolation-policy brokers c1": ("GET", "/admin/v2/clusters/c1/namespaceIsolationPolicies/brokers", None),
    "ns-isolation-policy broker c1 --broker b1:8080": (
        "GET",
        "/admin/v2/clusters/c1/namespaceIsolationPolicies/brokers/b1:8080",
        None,
    ),
    "clusters create-failure-domain c1 --domain-name d1 --broker-list b1:8080,b2:8080": (
        "POST",
        "/admin/v2/clusters/c1/failureDomains/d1",
        {"brokers": ["b1:8080", "b2:8080"]},
    ),
    "clusters update-failure-domain c1 --domain-name d1 --broker-list b1:8080": (
        "POST",
        "/admin/v2/clusters/c1/failureDomains/d1",
        {"brokers": ["b1:8080"]},
    ),
    "clusters get-failure-domain c1 --domain-name d1": ("GET", "/admin/v2/clusters/c1/failureDomains/d1", None),
    "clusters list-failure-domains c1": ("GET", "/admin/v2/clusters/c1/failureDomains", None),
    "clusters delete-failure-domain c1 --domain-name d1": ("DELETE", "/admin/v2/clusters/c1/failureDomains/d1", None),
    "topics lookup persistent://t/ns/x": ("GET", "/lookup/v2/topic/persistent/t/ns/x", None),
    "topics lookup non-persistent://t/ns/a/b%c": ("GET", "/lookup/v2/topic/non-persistent/t/ns/a%2Fb%25c", None),
    "topics bundle-range x": ("GET", "/lookup/v2/topic/persistent/public/default/x/bundle", None),
    f"bundles merge {BUNDLE}": ("POST", f"/loadbalance/v1/bundles/{BUNDLE}/merge", {}),
    f"bundles merge {BUNDLE} --with 0x80000000_0xffffffff": (
        "POST",
        f"/loadbalance/v1/bundles/{BUNDLE}/merge",
        {"with": "0x80000000_0xffffffff"},
    ),
    f"bundles pin {BUNDLE} b1:8080": ("PUT", f"/loadbalance/v1/bundles/{BUNDLE}/pin", {"broker": "b1:8080"}),
    f"bundles unpin {BUNDLE}": ("DELETE", f"/loadbalance/v1/bundles/{BUNDLE}/pin", None),
    f"bundles freeze {BUNDLE} --reason 'a test'": (
        "PUT",
        f"/loadbalance/v1/bundles/{BUNDLE}/freeze",
        {"reason": "a test"},
    ),
    f"bundles unfreeze {BUNDLE}": ("DELETE", f"/loadbalance/v1/bundles/{BUNDLE}/freeze", None),
    f"bundles cancel-unload {BUNDLE}": ("DELETE", f"/loadbalance/v1/bundles/{BUNDLE}/unload", None),
    "plans create shed": ("POST", "/loadbalance/v1/plans", {"kind": "shed"}),
    "plans create drain --broker b1:8080": ("POST", "/loadbalance/v1/plans", {"kind": "drain", "broker": "b1:8080"}),
    f"plans create moves --move {BUNDLE}=b1:8080": (
        "POST",
        "/loadbalance/v1/plans",
        {"kind": "moves", "moves": [{"bundle": BUNDLE, "destination": "b1:8080"}]},
    ),
    "balancer balance": ("GET", "/loadbalance/v1/balance", None),
    "plans list": ("GET", "/loadbalance/v1/plans", None),
    "plans show abc": ("GET", "/loadbalance/v1/plans/abc", None),
    "plans execute abc": ("POST", "/loadbalance/v1/plans/abc/execute", None),
    "plans execute abc --even-if-frozen": ("POST", "/loadbalance/v1/plans/abc/execute?evenIfFrozen=true", None),
    f"explain bundle {BUNDLE}": ("GET", f"/loadbalance/v1/explain/bundle/{BUNDLE}", None),
    "explain broker b1:8080": ("GET", "/loadbalance/v1/explain/broker/b1:8080", None),
    f"explain why-not {BUNDLE} b1:8080": (
        "GET",
        "/loadbalance/v1/explain/why-not?bundle=t%2Fns%2F0x00000000_0x80000000&broker=b1%3A8080",
        None,
    ),
    "balancer freeze --reason night": ("PUT", "/loadbalance/v1/freeze", {"reason": "night"}),
    "balancer unfreeze": ("DELETE", "/loadbalance/v1/freeze", None),
    "balancer dry-run on": ("PUT", "/loadbalance/v1/dry-run", None),
    "balancer dry-run off": ("DELETE", "/loadbalance/v1/dry-run", None),
    "balancer controls": ("GET", "/loadbalance/v1/controls", None),
    "balancer churn": ("GET", "/loadbalance/v1/churn", None),
    "balancer lift-breaker": ("DELETE", "/loadbalance/v1/churn/breaker", None),
    f"balancer lift-breaker --bundle {BUNDLE}": (
        "DELETE",
        "/loadbalance/v1/churn/breaker?bundle=t%2Fns%2F0x00000000_0x80000000",
        None,
    ),
    "decisions --limit 5 --broker b1:8080": ("GET", "/loadbalance/v1/decisions?limit=5&subject=b1%3A8080", None),
}


@pytest.mark.parametrize(("line", "request_made"), REQUESTS.items(), ids=list(REQUESTS))
def test_command_sends_the_expected_request(
    node: RecordingNode, line: str, request_made: tuple[str, str, object]
) -> None:
    done = run_admin(line, node.url)
    assert (done.exit_code, done.output) == (0, "")
    (method, path, body), *then = node.asked
    assert (method, path, json.loads(body) if body else None) == request_made
    assert all((method, path.partition("?")[0]) == ("GET", "/loadbalance/v1/matches") for method, path, _ in then)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("ns-isolation-policy set c p --namespaces t/.* --primary b --force", ["?force=true", "policy=p"]),
        ("clusters create-failure-domain c --domain-name d --broker-list b:1", ["", "failureDomain=d"]),
        ("brokers update-dynamic-config -c loadBalancerSheddingExcludedNamespaces -v t/x", ["", "Namespaces"]),
        ("brokers update-dynamic-config -c loadBalancerSheddingEnabled -v true", [""]),
        ("namespaces unload t/ns --force", ["?force=true"]),
        ("namespaces unload t/ns -b 0x00000000_0xffffffff --force", ["?force=true"]),
    ],
)
def test_commands_show_matched_brokers_and_namespaces(node: RecordingNode, line: str, asked: list[str]) -> None:
    done = run_admin(line, node.url)
    assert done.exit_code == 0, done.output
    assert len(node.asked) == len(asked)
    assert all(path.endswith(end) for (_, path, _), end in zip(node.asked, asked, strict=True)), node.asked


async def test_every_command_requests_an_existing_route() -> None:
    async with a_leader() as (_, leader):
        router = leader.app.router
        for line, (method, path, _) in REQUESTS.items():
            resolved = await router.resolve(make_mocked_request(method, path))
            resource = resolved.route.resource
            assert resource is not None
            assert resource.canonical != "/{path}", line


def test_anti_affinity_group_is_sent_as_plain_text(node: RecordingNode) -> None:
    assert run_admin("namespaces set-anti-affinity-group t/ns -g g1", node.url).exit_code == 0
    assert node.asked == [("POST", "/admin/v2/namespaces/t/ns/antiAffinity", b"g1")]


WRONG_USAGE = {
    "namespaces bundles t": "expected 'tenant/namespace'",
    "namespaces unload t/ns -b 0x0_0x1": "expected 0xLLLLLLLL_0xUUUUUUUU",
    "namespaces unload t/ns -d b1:8080": "name it with -b",
    "namespaces split-bundle t/ns": "either -b or -bt",
    f"namespaces split-bundle t/ns -b {RANGE} -bt HOT": "either -b or -bt",
    f"namespaces split-bundle t/ns -b {RANGE} -sb one": "expected numbers",
    "ns-isolation-policy set c p --namespaces n --primary b --auto-failover-policy-params one": "expected key=value",
    "plans create moves --move one": "--move",
    "bundles pin t/ns b1:8080": "RANGE",
    "brokers list --url ftp://h": "expected http://host:port",
    "brokers list --url http://h:port": "expected http://host:port",
    "brokers list --url ,": "expected http://host:port",
    "brokers list --url http://h:1/path?query": "http://host:port/path",
    "brokers list --limit 1": "No such option",
    "brokers shut": "No such command",
    "balancer dry-run maybe": "maybe",
}


@pytest.mark.parametrize(("line", "complaint"), WRONG_USAGE.items(), ids=list(WRONG_USAGE))
def test_wrong_usage_ends_with_2_without_a_request(node: RecordingNode, line: str, complaint: str) -> None:
    done = run_admin(line, node.url)
    assert (done.exit_code, node.asked) == (2, [])
    assert complaint in " ".join(done.stderr.replace("│", " ").split())


def test_refusal_ends_with_1_and_the_reason_on_standard_error(node: RecordingNode) -> None:
    node.status, node.body = 409, b'{"reason":"it is there"}'
    done = run_admin("namespaces create t/ns", node.url)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "loadmanager: 409 Conflict: it is there\n")


@pytest.mark.parametrize("option", ["--token secret", "--token-file {file}"])
def test_token_is_sent_from_option_or_file(node: RecordingNode, tmp_path: Path, option: str) -> None:
    (tmp_path / "token").write_text("secret\n")
    assert run_admin(f"brokers list {option.format(file=tmp_path / 'token')}", node.url).exit_code == 0
    assert node.headers[0]["Authorization"] == "Bearer secret"


def test_no_token_is_sent_without_the_option(node: RecordingNode) -> None:
    run_admin("brokers list", node.url)
    assert "Authorization" not in node.headers[0]


@pytest.mark.parametrize(("status", "fix"), [(401, "--token-file"), (403, "docs/security.md")])
def test_authorization_error_names_the_fix(node: RecordingNode, status: int, fix: str) -> None:
    node.status, node.body = status, b'{"reason":"no"}'
    done = run_admin("brokers list", node.url)
    assert done.exit_code == 1
    assert fix in done.stderr


def test_foreign_error_body_is_shown_unchanged(node: RecordingNode) -> None:
    node.status, node.body, node.content_type = 502, b"bad gateway", "text/html"
    done = run_admin("brokers list", node.url)
    assert (done.exit_code, done.stderr) == (1, "loadmanager: 502 Bad Gateway: bad gateway\n")


def test_first_reachable_node_answers(node: RecordingNode) -> None:
    node.status, node.body = 200, b'["b1:8080"]'
    done = run_admin("brokers list", f"http://127.0.0.1:{closed_port()}", f"{node.url}/")
    assert (done.exit_code, done.output) == (0, "b1:8080\n")


def test_unreachable_nodes_end_with_3() -> None:
    urls = [f"http://127.0.0.1:{closed_port()}" for _ in range(2)]
    done = run_admin("namespaces unload t/ns", *urls)
    assert (done.exit_code, done.stdout) == (3, "")
    assert all(f"{url}: Connection refused" in done.stderr for url in urls)


def test_interrupted_read_is_repeated_at_the_next_node(node: RecordingNode) -> None:
    node.status, node.body = 200, b"[]"
    with a_recording_node() as broken:
        broken.hangs_up = True
        assert run_admin("brokers list", broken.url, node.url).exit_code == 0
        assert (len(broken.asked), len(node.asked)) == (1, 1)


def test_interrupted_change_is_not_repeated(node: RecordingNode) -> None:
    with a_recording_node() as broken:
        broken.hangs_up = True
        done = run_admin("namespaces unload t/ns", broken.url, node.url)
        assert (done.exit_code, node.asked) == (1, [])
        assert "it may have been done or not" in done.stderr


@pytest.mark.parametrize("line", ["brokers list", "namespaces unload t/ns"])
def test_redirect_is_a_refusal_and_not_followed(node: RecordingNode, line: str) -> None:
    with a_recording_node() as other:
        node.status, node.location = 307, f"{other.url}/"
        done = run_admin(line, node.url, other.url)
        assert (done.exit_code, done.stdout, other.asked) == (1, "", [])
        assert "307 Temporary Redirect" in done.stderr


def test_oversized_answer_is_an_error(node: RecordingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_requests, "LARGEST_ANSWER_BYTES", 100)
    node.status, node.body = 200, b'"' + b"x" * 98 + b'"'
    assert run_admin("brokers list", node.url).exit_code == 0
    node.body += b" "
    done = run_admin("brokers list", node.url)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "an answer of more than 100 bytes" in done.stderr


ANSWERS = {
    "lines": (b'["b1:8080","b2:8080"]', ["b1:8080", "b2:8080"]),
    "an-empty-list": (b"[]", []),
    "an-empty-object": (b"{}", [""]),
    "text": (b"0x00000000_0xffffffff", ["0x00000000_0xffffffff"]),
    "an-object": (
        b'{"serviceUrl":"http://h:1","up":true,"brokerId":null,"cpu":{"usage":1.23456789}}',
        ["serviceUrl http://h:1", "up true", "brokerId", "cpu.usage 1.23"],
    ),
    "objects-by-name": (b'{"p":{"primary":["b1","b2"],"n":1},"q":{}}', ["name primary n", "p b1, b2 1", "q"]),
    "objects": (b'[{"a":1},{"b":{"c":[2]}}]', ["a b", "1", '{"c":[2]}']),
    "sentences": (
        b'{"answer":{"sentence":"Not there","why":{"n":1},"change":"wait"},"rows":[{"sentence":"Here","why":{"n":1}}]}',
        ["answer Not there; to change it: wait", "", "rows:", "Here"],
    ),
    "sentences-below-rows": (
        b'[{"what":"x\\ny","source":null,"sentence":"So"},{"what":"z","source":null,"sentence":"And"}]',
        ["what", "x y", "So", "z", "And"],
    ),
    "times": (
        b'{"at":0,"limit":0,"heldOff":{"b1:8080":0}}',
        ["at 1970-01-01 00:00Z", "limit 0", "heldOff.b1:8080 1970-01-01 00:00Z"],
    ),
    "an-object-of-lists": (
        b'{"epoch":1,"decisions":[{"subject":"t/ns","acted":true}]}',
        ["epoch 1", "", "decisions:", "subject acted", "t/ns true"],
    ),
}


@pytest.mark.parametrize(("body", "shown"), ANSWERS.values(), ids=list(ANSWERS))
def test_answer_is_shown_as_lines_or_table(node: RecordingNode, body: bytes, shown: list[str]) -> None:
    node.status, node.body = 200, body
    done = run_admin("brokers list", node.url)
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if not line or line.strip(" ─")]
    assert lines == shown


@pytest.mark.parametrize("option", ["", "--json"])
@pytest.mark.parametrize("body", [b'["b1:8080"]', b'{"serviceUrl":"http://h:1"}'])
def test_closed_output_is_no_error(node: RecordingNode, body: bytes, option: str) -> None:
    node.status, node.body = 200, body
    command = [sys.executable, "-m", "loadmanager", "admin", "brokers", "list", "--url", node.url]
    with subprocess.Popen([*command, *option.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(timeout=patience()), said) == (0, b"")


@pytest.mark.parametrize("body", [b'["b1:8080"]', b'{"a":{"b":1.23456789}}', b"{}", b"[]"])
def test_json_option_prints_the_answer_unchanged(node: RecordingNode, body: bytes) -> None:
    node.status, node.body = 200, body
    done = run_admin("brokers list --json", node.url)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == json.loads(body)


def test_text_answer_is_a_json_string(node: RecordingNode) -> None:
    node.status, node.body, node.content_type = 200, b"ok", "text/plain"
    assert run_admin("brokers healthcheck --json", node.url).stdout == '"ok"\n'
