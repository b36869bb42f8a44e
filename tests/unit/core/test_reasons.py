"""The catalogue of reasons."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import pkgutil
import re
import subprocess
import sys
from collections import Counter

import pytest

import loadmanager.core
from loadmanager.core.diagnosis.reason_catalogue import REASONS, reason_of
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import FilterReason, OwnershipReason, Reason, SheddingReason, entry
from loadmanager.core.domain.reasons.reason import ReasonEntry
from loadmanager.core.domain.settings import KEYS, PlannerSettings

SAYING = "from loadmanager.core.diagnosis.reason_catalogue import REASONS; print(*sorted(REASONS))"


def test_each_word_is_unique_and_the_name_of_its_reason() -> None:
    declared = [reason for subject in Reason.__subclasses__() for reason in subject]
    assert [word for word, count in Counter(reason.value for reason in declared).items() if count > 1] == []
    assert [reason.value for reason in declared] == [reason.name.lower() for reason in declared]
    assert all(reason_of(reason.value) is reason for reason in declared)


def test_catalogue_is_complete_without_other_imports() -> None:
    alone = subprocess.run([sys.executable, "-c", SAYING], capture_output=True, text=True, check=True).stdout.split()
    for module in pkgutil.walk_packages(loadmanager.core.__path__, "loadmanager.core."):
        importlib.import_module(module.name)
    assert alone == sorted(REASONS)
    assert len(alone) == len(set(alone)) > 100


@pytest.mark.parametrize("reason", REASONS.values(), ids=str)
def test_reason_equals_its_word_and_survives_copies(reason: Reason) -> None:
    assert (str(reason), f"{reason}", json.loads(json.dumps({reason: reason}))) == (
        reason.value,
        reason.value,
        {reason.value: reason.value},
    )
    assert reason_of(reason.value) is copy.deepcopy(reason) is pickle.loads(pickle.dumps(reason)) is reason
    assert hash(reason) == hash(reason.value)


@pytest.mark.parametrize("reason", REASONS.values(), ids=str)
def test_texts_can_be_filled_with_their_figures(reason: Reason) -> None:
    """No text has a stray brace or a final full stop, and each can be shown."""
    for texts, said in ((reason.sentences, Verdict.sentence), (reason.remedies, Verdict.remedy)):
        for i, text in enumerate(texts):
            figures: dict[str, Figure] = dict.fromkeys(re.findall(r"\{=?(\w+)\}", text), 7)
            filled = said(Verdict("x", reason, acted=True, why=figures))
            assert not re.search(r"[{}]|\.$", filled)
            assert filled in {expected(each, 7) for each in texts[: i + 1]}


def expected(text: str, figure: int) -> str:
    return re.sub(r"\{\w+\}", str(figure), re.sub(r"\{=(\w+)\}", rf"\1 {figure}", text))


def test_first_remedy_with_all_its_figures_is_shown() -> None:
    reserved: dict[str, Figure] = {"reserved_by": "p", "namespace": "t/n", "broker": "b"}
    assert Verdict("b", FilterReason.ISOLATION_POLICY, acted=False, why=reserved).remedy() == (
        "let p cover t/n, or take b out of its primary brokers"
    )
    primary: dict[str, Figure] = {"policy": "p", "broker": "b", "min_limit": 1}
    assert Verdict("b", FilterReason.ISOLATION_POLICY, acted=False, why=primary).remedy() == (
        "make b a primary broker of p; its secondary ones count when fewer than 1 primary ones are available"
    )
    assert Verdict("b", SheddingReason.NOT_REPORTED, acted=False).remedy() == ""


def test_entry_takes_any_number_of_sentences_and_remedies() -> None:
    assert entry() == ReasonEntry((), ())
    assert entry("one", "two", remedy="do") == ReasonEntry(("one", "two"), ("do",))
    assert entry(remedy=("do", "or this")) == ReasonEntry((), ("do", "or this"))
    assert (OwnershipReason.LOOKUP.sentences, OwnershipReason.LOOKUP.remedies) == ((), ())


def test_fields_in_texts_become_setting_keys() -> None:
    key = KEYS["broker_max_topics"]
    declared = entry("because {=broker_max_topics}", remedy="raise {#broker_max_topics}")
    assert declared == ReasonEntry((f"because {{={key}}}",), ("raise loadBalancerBrokerMaxTopics",))
    assert PlannerSettings(broker_max_topics=7).as_figures("broker_max_topics", "max_unload_percentage") == {
        "loadBalancerBrokerMaxTopics": 7,
        "maxUnloadPercentage": 0.2,
    }
    with pytest.raises(KeyError, match="loadBalancerBrokerMaxTopics"):
        entry("because {=loadBalancerBrokerMaxTopics}")


def test_unknown_word_is_refused() -> None:
    with pytest.raises(ValueError, match="'by_heart' is no reason"):
        reason_of("by_heart")
