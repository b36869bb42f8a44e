"""Prometheus metrics of the agent. Each agent has its own registry, so several can live in one process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from loadmanager.agent.host_usage import HostUsage
from loadmanager.core.domain.names import BrokerId, broker_host
from loadmanager.core.domain.resources import percent_of
from loadmanager.util.process_metrics import add_process_metrics

_PULSAR_LABELS = ("broker", "metric")
_SHOWN = {
    "cpu": "cpu",
    "memory": "memory",
    "directMemory": "directMemory",
    "bandwidthIn": "bandwidth_in",
    "bandwidthOut": "bandwidth_out",
}
"""Names of the resources in metrics, by their names in the report."""


class AgentMetrics:
    """Pulsar's gauges of broker usage keep their names. The agent's own metrics start with `loadmanager_agent_`."""

    def __init__(self, broker: BrokerId) -> None:
        self.registry = add_process_metrics(CollectorRegistry())
        self._broker = broker
        self._usage = {
            name: Gauge(
                f"pulsar_lb_{shown}_usage", f"Usage of {shown}, percent.", _PULSAR_LABELS, registry=self.registry
            )
            for name, shown in _SHOWN.items()
        }
        self._limit_known = self._gauge(
            "resource_limit_known", "1 when the limit of the resource is known.", "resource"
        )
        self.leases = self._counter("leases", "Leases asked for.", "outcome")
        self.questions = self._counter("ownership_questions", "Questions whether a topic may be opened.", "verdict")
        self.unloads = self._counter("unloads", "Unload calls.", "outcome")
        self.garbage = self._counter("garbage", "Answers that could not be used.", "source")
        self.reports = self._counter("reports", "Load reports.", "outcome")
        self.registrations = self._counter("registrations", "Registrations of the broker.")
        self.withdrawals = self._counter("withdrawals", "Registrations that ended.", "reason")
        self.unmapped_topics = self._gauge("unmapped_topics", "Open topics whose bundle is not known.")

    def show(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed on each scrape."""
        self._gauge(name, description).set_function(value)

    def show_usage(self, usage: HostUsage) -> None:
        for name, resource in usage.items():
            percent = percent_of(resource["usage"], resource["limit"])
            self._usage[name].labels(broker_host(self._broker), "loadBalancing").set(percent)
            self._limit_known.labels(_SHOWN[name]).set(resource["limit"] > 0)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"loadmanager_agent_{name}", description, labels, registry=self.registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"loadmanager_agent_{name}", description, labels, registry=self.registry)
