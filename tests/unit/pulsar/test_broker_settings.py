from __future__ import annotations

import json

import pytest

from loadmanager.errors import ConfigurationError
from loadmanager.pulsar.broker_settings import settings_in
from loadmanager.pulsar.rest_call import web_service

IMPL = "org.apache.pulsar.broker.loadbalance.impl"
RUNTIME = {
    "clusterName": "c1",
    "metadataStoreUrl": "zk:127.0.0.1:23181",
    "metadataStoreSessionTimeoutMillis": "30000",
    "advertisedAddress": "127.0.0.21",
    "bindAddress": "0.0.0.0",
    "webServicePort": "Optional[28080]",
    "brokerServicePort": "Optional[26650]",
    "brokerClientAuthenticationParameters": "token:secret",
    "superUserRoles": "[]",
    "loadBalancerEnabled": "true",
    "loadManagerClassName": f"{IMPL}.ModularLoadManagerImpl",
    "loadBalancerLoadSheddingStrategy": f"{IMPL}.ThresholdShedder",
    "loadBalancerLoadPlacementStrategy": f"{IMPL}.LeastLongTermMessageRate",
    "loadBalancerSheddingExcludedNamespaces": "[]",
    "supportedNamespaceBundleSplitAlgorithms": "[range_equally_divide, topic_count_equally_divide]",
    "loadBalancerBrokerThresholdShedderPercentage": "60",
    "loadBalancerBandwithInResourceWeight": "1.0",
    "loadBalancerBandwidthInResourceWeight": "1.0",
    "loadBalancerSheddingGracePeriodMinutes": "2",
    "loadBalancerReportUpdateMaxIntervalMinutes": "1",
    "loadBalancerOverrideBrokerNicSpeedGbps": "Optional.empty",
    "loadBalancerPlacementStrategy": "",
    "loadBalancerBundleUnloadMinThroughputThreshold": "0.02",
    "preferLaterVersions": "false",
}
"""Runtime configuration of a broker of Pulsar 4.0.1, without most of its 528 keys."""

UNSET = ("", "Optional.empty")


def test_known_settings_are_read_in_file_form() -> None:
    told = settings_in(json.dumps(RUNTIME).encode(), "http://b1:8080")
    assert told is not None
    assert (told.url, told.cluster, told.load_manager) == ("http://b1:8080", "c1", f"{IMPL}.ModularLoadManagerImpl")
    assert told.texts == {
        **{key: text for key, text in RUNTIME.items() if key.startswith(("load", "prefer")) and text not in UNSET},
        "loadBalancerSheddingExcludedNamespaces": "",
        "supportedNamespaceBundleSplitAlgorithms": "range_equally_divide,topic_count_equally_divide",
    }


OTHERS = {"clusterName": "c1", "loadManagerClassName": "x", "loadBalancerEnabled": True}


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[" * 100_000, b"\xff\x1b", b"[1]", b'{"status": "UP"}', json.dumps(OTHERS).encode()],
    ids=["empty", "html", "deep", "binary", "list", "status", "types"],
)
def test_answer_without_settings(body: bytes) -> None:
    assert settings_in(body, "http://b1:8080") is None


@pytest.mark.parametrize(
    "url", ["", "b1:8080", "ftp://b1", "http://", "http://b1:x", "http://b1/admin", "http://b1?a=b"]
)
def test_invalid_broker_address_is_rejected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="expected the web service of a broker, such as http://broker:8080"):
        web_service(url, "--admin")
