"""Znodes as Pulsar's brokers and its admins write them, with fields that nobody here knows.

The forms are those that a Pulsar 4.0 wrote; the newest one names the broker in more of them.
"""

from __future__ import annotations

from typing import Any

LOWER, UPPER = "0x00000000_0x80000000", "0x80000000_0xffffffff"
STATS = {
    "msgRateIn": 1200.5,
    "msgThroughputIn": 2.0e8,
    "msgRateOut": 2401.0,
    "msgThroughputOut": 2.0e8,
    "consumerCount": 8,
    "producerCount": 4,
    "topics": 16,
    "cacheSize": 1048576,
    "new": 1,
}
AVERAGES = {"msgThroughputIn": 1.0e8, "msgThroughputOut": 1.0e8, "msgRateIn": 1.0, "msgRateOut": 1.0}
HISTORY: dict[str, Any] = {
    "shortTermData": {"maxSamples": 10, "numSamples": 10, **AVERAGES},
    "longTermData": {"maxSamples": 1000, "numSamples": 412, **AVERAGES},
    "topics": 16,
}


def local_broker_data(cpu: object, bundles: list[str]) -> dict[str, Any]:
    return {
        "webServiceUrl": "http://b1:8080",
        "pulsarServiceUrl": "pulsar://b1:6650",
        "persistentTopicsEnabled": True,
        "cpu": {"usage": cpu, "limit": 100.0},
        "memory": {"usage": 1843.2, "limit": 4096.0},
        "bandwidthIn": {"usage": "NaN", "limit": 1.0e7},
        "msgThroughputIn": 4.0e8,
        "msgThroughputOut": 4.0e8,
        "lastStats": {f"public/default/{each}": STATS for each in bundles},
        "bundles": [f"public/default/{each}" for each in bundles],
        "numBundles": len(bundles),
        "brokerVersionString": "4.0.12",
        "protocols": {},
        "advertisedListeners": {"internal": {"brokerServiceUrl": "pulsar://b1:6650"}},
        "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
        "startTimestamp": 1753000000000,
        "maxResourceUsage": 0.17,
        "loadReportType": "LocalBrokerData",
        "someNewField": {"x": [1]},
    }


ZNODES: dict[str, Any] = {
    "/loadbalance/brokers/b1:8080": local_broker_data(95.0, [LOWER, UPPER]),
    "/loadbalance/brokers/b2:8080": local_broker_data(5.0, []),
    "/loadbalance/bundle-data/public/default/" + LOWER: HISTORY,
    "/loadbalance/broker-time-average/b1:8080": {"longTermMsgRateIn": 0.0},
    "/loadbalance/broker-time-average/b2:8080": {"longTermMsgRateIn": 7.0},
    "/namespace/public/default/" + LOWER: {"nativeUrl": "pulsar://b1:6650", "httpUrl": "http://b1:8080"},
    "/namespace/public/default/" + UPPER: {"brokerId": "b1:8080", "disabled": False},
    "/namespace/pulsar/b1:8080/0x00000000_0xffffffff": {"brokerId": "b1:8080"},
    "/admin/local-policies/public/default": {
        "bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
        "namespaceAntiAffinityGroup": "g1",
        "migrated": False,
    },
    "/admin/clusters/c1/namespaceIsolationPolicies": {
        "p": {
            "namespaces": ["other/.*"],
            "primary": ["b9"],
            "secondary": [],
            "auto_failover_policy": {
                "policy_type": "min_available",
                "parameters": {"min_limit": "1", "usage_threshold": "80"},
            },
            "unload_scope": "changed",
        }
    },
    "/admin/clusters/c1/failureDomain/d1": {"brokers": ["b1:8080"]},
    "/admin/configuration": {"loadBalancerBrokerThresholdShedderPercentage": "20", "dispatcherMaxReadBatchSize": "1"},
}
