from __future__ import annotations

import re

import pytest
from support.builders import broker, bundle, report, snapshot

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.policies import (
    NO_POLICIES,
    InvalidPolicyError,
    IsolationPolicy,
    PatternMatch,
    Policies,
    find_unplaceable,
    map_failure_domains,
    match_names,
    match_policy,
    namespaces_to_unload,
)
from loadmanager.core.model.cluster_model import ClusterModel

HOST = BrokerId("broker-1.example.com:8080")


def test_pattern_matches_the_whole_namespace_and_host() -> None:
    policy = IsolationPolicy("p", ("tenant/ns",), ("broker-1.*",), ("broker-2",))
    assert policy.covers("tenant/ns")
    assert not policy.covers("tenant/ns-1")
    assert not policy.covers("my-tenant/ns")
    policies = Policies((policy,))
    assert policies.is_primary(policy, HOST)
    assert not policies.is_primary(policy, BrokerId("a.broker-1:8080"))
    assert policies.is_secondary(policy, BrokerId("broker-2:8080"))
    assert not policies.is_secondary(policy, BrokerId("broker-2:8081x:80"))


def test_host_is_the_broker_id_up_to_its_last_colon() -> None:
    policy = IsolationPolicy("p", (".*",), (r"\[::1\]", "plain"))
    policies = Policies((policy,))
    assert policies.is_primary(policy, BrokerId("[::1]:8080"))
    assert policies.is_primary(policy, BrokerId("plain"))


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("a|ab", "ab", True),
        (r"\Qa.b\E.*", "a.bc", True),
        (r"\Qa.b\E.*", "axbc", False),
        (r"\Qa.b", "a.b", True),
        (r"b\d+", "b٣", False),
        ("(?i)Broker", "broker", True),
        ("a(?i)b", "aB", True),
        ("a(?i)b", "AB", False),
        ("(?:a(?i)b)c", "aBC", False),
        (r"\[a&&b\]", "[a&&b]", True),
        (r"[\[.^]+", "[.^", True),
        (r"\\Q.\\E", r"\Qx\E", True),
        (r"\0142\04", "b\4", True),
        (r"[\Qa&&b\E]+", "b&", True),
        (r"\p{Lu}\x{62}", "Bb", True),
        ("a{2}b{1,}c{0,1}", "aabbb", True),
        (r"[{]\{a", "{{a", True),
        (r"\(?=a", "(=a", True),
    ],
)
def test_patterns_have_java_semantics(pattern: str, host: str, *, matches: bool) -> None:
    assert IsolationPolicy("p", (), (pattern,)).has_primary(host) == matches


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[", "missing ]"),
        ("*", "no argument for repetition operator"),
        ("a(", "missing )"),
        (r"\p{Alpha}", "invalid character class range"),
        *((each, "character classes cannot be combined") for each in ("[a-z&&[^b]]", "[a[bc]]", r"[\]&&b]", "[]&&a]")),
        ("(?u)a", "invalid perl operator"),
        *((each, "no repetition") for each in ("a{99999999999}", "a{", "{a", "a{,5}", "a{x}")),
        ("a{1001}", "invalid repetition size"),
        ("(" * 2000 + ")" * 2000, "longer than 1000 characters"),
        (r"\pL{20}", "pattern too large"),
        ("\ud800", "surrogates not allowed"),
        *((each, "what a group has matched cannot be referred to") for each in (r"(.)\1", r"(.)\12", r"[\12]")),
        *((each, "it cannot look ahead or behind") for each in ("(?=a)", "(?!a)", "(?<=a)", "(?<!a)")),
        ("(?>a|ab)c", "groups cannot be atomic"),
        *((each, "bad repetition operator") for each in ("a*+a", "a++", "a?+", "a{2}+")),
        (r"\C", "invalid escape sequence"),
        ("a\\", "trailing"),
    ],
)
def test_bad_pattern_is_refused_with_its_policy(pattern: str, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPolicyError, match=rf"^isolation policy 'mine': secondary '.*': {re.escape(reason)}"):
        IsolationPolicy("mine", (), (), (pattern,))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("pattern", ["([a-z]+-?)+/staging", "(a|a)*/staging", "(a?){200}a{200}", "(a*)*b"])
def test_matching_takes_linear_time(pattern: str) -> None:
    policy = IsolationPolicy("p", (pattern,), ("b1",))
    assert not policy.covers("a" * 100 + "/production")


def test_groups_of_patterns_are_not_captured() -> None:
    policy = IsolationPolicy("p", ("(a?)" * 200,), ())
    assert [pattern.groups for pattern in policy._namespaces._compiled] == [0]


def test_a_pattern_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = "compiled-once-[0-9]+"
    policies = [IsolationPolicy("a", (), (pattern,))]
    monkeypatch.setattr("re2.compile", None)
    policies += [IsolationPolicy(name, (pattern,), (pattern,)) for name in "bc"]
    assert all(policy.has_primary("compiled-once-1") for policy in policies)


def test_first_policy_by_name_applies() -> None:
    """Q23: Pulsar takes the first in hash order."""
    a, b = IsolationPolicy("a", ("t/.*",), ()), IsolationPolicy("b", ("t/n",), ())
    assert Policies((b, a)).find_policy("t/n") == a
    assert Policies((b,)).find_policy("t/n") == b
    assert Policies((b, a)).find_policy("x/n") is None


def test_duplicate_policy_name_is_refused() -> None:
    twice = IsolationPolicy("a", (), ())
    with pytest.raises(InvalidPolicyError, match="isolation policy 'a': is there twice"):
        Policies((twice, twice))


def test_broker_is_shared_unless_primary_in_a_policy() -> None:
    policies = Policies((IsolationPolicy("a", (), ("p",), ("s",)), IsolationPolicy("b", (), ("q",))))
    shared = {name: policies.is_shared(BrokerId(f"{name}:80")) for name in "pqsx"}
    assert shared == {"p": False, "q": False, "s": True, "x": True}
    assert NO_POLICIES.is_shared(HOST)


def test_groups_ignore_case_and_blank_names() -> None:
    policies = Policies((), {"t/b": "Group", "t/a": " group ", "t/c": "other", "t/d": " "})
    assert policies.find_group("t/a") == policies.find_group("t/b") == "group"
    assert (policies.find_group("t/d"), policies.find_group("t/e")) == (None, None)
    assert list(policies.members("group")) == ["t/a", "t/b"]


def test_namespace_has_a_policy_when_isolated_or_in_a_group() -> None:
    policies = Policies((IsolationPolicy("a", ("t/a",), ()),), {"t/b": "group"})
    assert [policies.has_policy(f"t/{name}") for name in "abc"] == [True, True, False]


def test_broker_belongs_to_its_last_failure_domain_or_the_default() -> None:
    domains = map_failure_domains({"west": [HOST], "east": [HOST, BrokerId("b:80")]})
    policies = Policies((), {}, domains)
    assert [policies.failure_domain(BrokerId(each)) for each in (HOST, "b:80", "c:80")] == ["west", "east", "default"]


def test_matches_are_cached() -> None:
    policy = IsolationPolicy("a", (".*",), (".*",), (".*",))
    policies = Policies((policy,))

    def answers() -> list[object]:
        return [
            policies.find_policy("t/n"),
            policies.is_primary(policy, HOST),
            policies.is_secondary(policy, HOST),
            policies.is_shared(HOST),
        ]

    before = answers()
    for patterns in (policy._namespaces, policy._primary, policy._secondary):
        object.__setattr__(patterns, "_compiled", None)
    assert answers() == before == [policy, True, False, False]


def test_policies_are_part_of_a_snapshot() -> None:
    policies = Policies((), {"t/a": "group"})
    model = ClusterModel()
    assert model.snapshot(0, 0).policies is NO_POLICIES
    before = model.revision
    model.set_policies(policies)
    assert model.policies is policies
    assert model.revision > before
    assert model.snapshot(0, 0).policies is policies
    assert snapshot({}, policies=policies).policies is policies


def test_preallocated_bundle_counts_at_its_broker() -> None:
    x, y, z = bundle(1), bundle(2), bundle(3)
    given = snapshot({"a": report([x]), "b": report()}, preallocated={x: "b", y: "b", z: "gone"})
    bundles = given.bundles
    assert bundles.broker.tolist() == [0, -1, -1]
    assert bundles.assigned.tolist() == [1, 1, -1]
    assert bundles.free.tolist() == [False, False, True]
    assert not bundles.movable.any()
    assert given.brokers.preallocated[:, 0].tolist() == [0.0, 50.0]
    assert given.brokers.find_row(broker("b").broker) == 1


NAMESPACES = ["t/a1", "t/a2", "t/b1", "u/a1"]


def a_policy(
    *namespaces: str, primary: str = "x", secondary: tuple[str, ...] = (), min_limit: int = 1
) -> IsolationPolicy:
    return IsolationPolicy("mine", namespaces, (primary,), secondary, min_limit)


@pytest.mark.parametrize(
    ("old", "scope", "unloaded"),
    [
        (None, "changed", ["t/a1", "t/a2"]),
        (None, "all_matching", ["t/a1", "t/a2"]),
        (None, "none", []),
        (a_policy("t/a.*"), "changed", []),
        (a_policy("t/a.*"), "all_matching", ["t/a1", "t/a2"]),
        (a_policy("t/a1", "t/b1"), "changed", ["t/a2", "t/b1"]),
        (a_policy("t/a1", "t/b1"), "all_matching", ["t/a1", "t/a2", "t/b1"]),
        (a_policy("t/b1", primary="y"), "changed", ["t/a1", "t/a2", "t/b1"]),
        (a_policy("t/a.*", secondary=("y",)), "changed", ["t/a1", "t/a2"]),
        (a_policy("t/a.*", min_limit=2), "changed", ["t/a1", "t/a2"]),
        (a_policy("t/a1", primary="y"), "none", []),
    ],
)
def test_changed_policy_unloads_by_its_scope(old: IsolationPolicy | None, scope: str, unloaded: list[str]) -> None:
    assert namespaces_to_unload(old, a_policy("t/a.*"), scope, NAMESPACES) == unloaded


A_AND_B = [BrokerId("a:8080"), BrokerId("b:8080")]


@pytest.mark.parametrize(
    ("policy", "brokers", "stranded"),
    [
        (IsolationPolicy("p", ("t/.*",), ("a",)), A_AND_B, {}),
        (IsolationPolicy("p", ("t/.*",), ("c",)), A_AND_B, {"p": ("t/x", "t/y")}),
        (IsolationPolicy("p", ("t/.*",), ("c",)), [], {}),
        (IsolationPolicy("p", ("t/.*",), ("c",), ("b",)), A_AND_B, {}),
        (IsolationPolicy("p", ("t/.*",), ("c",), ("b",), min_limit=0), A_AND_B, {"p": ("t/x", "t/y")}),
        (IsolationPolicy("p", ("t/.*",), ("c",), ("d",)), A_AND_B, {"p": ("t/x", "t/y")}),
        (IsolationPolicy("p", ("t/x",), (".*",)), A_AND_B, {"": ("t/y", "u/z")}),
        (IsolationPolicy("p", ("v/.*",), ("c",)), A_AND_B, {}),
    ],
)
def test_unplaceable_namespaces_are_grouped_by_policy(
    policy: IsolationPolicy, brokers: list[BrokerId], stranded: dict[str, tuple[str, ...]]
) -> None:
    found = find_unplaceable(Policies((policy,)), brokers, ["u/z", "t/y", "t/x"])
    assert {each.policy: each.namespaces for each in found} == stranded
    for each in found:
        assert all(name in each.sentence for name in each.namespaces)
        assert ("isolation policy 'p'" in each.sentence) == (each.policy == "p")
    many = find_unplaceable(Policies((policy,)), brokers, [f"t/{number:02}" for number in range(9)])
    assert all("t/04 and 4 more: " in each.sentence for each in many)
    assert find_unplaceable(NO_POLICIES, brokers, ["t/x"]) == []


def test_patterns_have_their_matches_and_hints() -> None:
    brokers = [BrokerId("b-1:8080"), BrokerId("b-2:8080"), BrokerId("[::1]:8080")]
    primary = ("b-.*", "http://b-1", r"b-1:\d+", "b-1:8080", "[::1]", r"\[::1\]", "x")
    policy = IsolationPolicy("p", ("t/.*", "default", "persistent://t/ns", "t/none"), primary)
    found = match_policy(policy, brokers, ["t/b", "t/a", "u/c"])
    assert [(each.pattern, each.matches, each.hint) for each in found] == [
        ("t/.*", ("t/a", "t/b"), ""),
        ("default", (), "it matches nothing: expected tenant/namespace"),
        ("persistent://t/ns", (), "it matches nothing: expected tenant/namespace, without a domain"),
        ("t/none", (), "it matches nothing"),
        ("b-.*", ("b-1:8080", "b-2:8080"), ""),
        ("http://b-1", (), "it matches nothing: expected a host, without a scheme"),
        (r"b-1:\d+", (), "it matches nothing: expected a host, without a port"),
        ("b-1:8080", (), "it matches nothing: expected a host, without a port"),
        ("[::1]", (), r"it matches nothing: brackets stand for one character of those in them; write \[ and \]"),
        (r"\[::1\]", ("[::1]:8080",), ""),
        ("x", (), "it matches nothing"),
    ]
    assert match_names("brokers", ["b-1:8080", "c:1"], brokers) == [
        PatternMatch("brokers", "b-1:8080", ("b-1:8080",), ""),
        PatternMatch("brokers", "c:1", (), "it is not registered"),
    ]
