"""The agent service: its parts, start and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.agent_server import AgentServer
from loadmanager.agent.broker_watch import BrokerExit, BrokerWatch, StuckDetector
from loadmanager.agent.grants import Grants, Leases
from loadmanager.agent.host_readings import Roots
from loadmanager.agent.host_usage import unknown_limits
from loadmanager.agent.node_queries import LoadManagerNodes, NamespaceCache
from loadmanager.agent.ownership_query import OpenTopics, OwnershipQuestions
from loadmanager.agent.presence import BrokerProcess, PresencePhase
from loadmanager.agent.registration import Registrar, StoreRollback
from loadmanager.agent.reporter import Reporter, identity_of
from loadmanager.agent.unload_handler import UnloadHandler, WarmUp
from loadmanager.agent.usage_sampler import UsageSampler
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.core.domain.names import BrokerId, BundleName, broker_host
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.broker_client import BrokerClient, UnloadRefusedError
from loadmanager.net.http_client import Caller, HttpClient
from loadmanager.net.liveness import Life
from loadmanager.net.tracing import tracing_of
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.util.clock import now_s
from loadmanager.wire.http_bodies import LeaseAnswer

log = structlog.get_logger(__name__)

SERVICE = "loadmanager-agent"
"""Service name in traces."""

_PROBES_PER_LEASE = 3
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


def url_of(settings: AgentSettings, scheme: str, port: int) -> str:
    """Return the agent's URL for nodes: as configured, else the bind address, else the broker's own host."""
    if settings.agent_url:
        return settings.agent_url.rstrip("/")
    host = settings.bind_address
    if host in _WILDCARDS:
        host = broker_host(BrokerId(settings.broker_id)).strip("[]")
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Agent:
    """Agent of one broker. Create it inside the event loop; the caller starts and closes `store`.

    `clock` returns seconds and must be the clock of the store's lease.
    """

    def __init__(
        self,
        settings: AgentSettings,
        store: MetadataStore,
        agent_url: str,
        *,
        life: Life | None = None,
        clock: Callable[[], float] = now_s,
        roots: Roots | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._life = life or Life()
        self._clock = clock
        self.caller = Caller.of(settings, tracing_of(SERVICE, settings.broker_id))
        self._http = HttpClient(caller=Caller(tls=self.caller.tls))
        self._http_of_nodes = HttpClient(caller=self.caller)
        self._gate = AuthGate(settings, address=settings.bind_address)
        broker_id = BrokerId(settings.broker_id)
        self.metrics = AgentMetrics(broker_id)
        self.grants = Grants(broker_id)
        self.leases = Leases(settings.broker_lease_ms)
        self._broker = BrokerClient(self._http, settings.broker_url)
        nodes = LoadManagerNodes(self._http_of_nodes, settings.load_manager_urls, self.metrics)
        self.namespaces = NamespaceCache(nodes, self.grants, clock)
        self._stuck = StuckDetector(settings.broker_lease_ms / 1000)
        self.watch = self._make_watch()
        self._broker_exit = BrokerExit(self._broker_died)
        self.sampler = UsageSampler(
            settings, self.watch, self.metrics, clock, roots or Roots(), self._life.count_agents_here
        )
        self.reporter = self._make_reporter(agent_url)
        self.registration = Registrar(
            store,
            broker_id,
            self._life,
            self.grants,
            self.leases,
            self.metrics,
            clock,
            self.reporter.first_record,
            self._close_topics,
        )
        self._closing: set[asyncio.Task[bool]] = set()
        rollback = StoreRollback(store, self.grants, self._withdraw)
        self.unloads = UnloadHandler(
            self.grants,
            self._broker,
            self.namespaces,
            self.metrics,
            rollback.read_epoch,
            lambda: self.watch.loads,
            self.reporter.bundle_unloaded,
            rollback.look,
            self._on_unload_answered,
        )
        questions = OwnershipQuestions(
            self.grants,
            nodes,
            self.namespaces,
            self.metrics,
            lambda: self.registration.is_certain,
            rollback.look,
            self.watch.granted,
        )
        self._warm_up = WarmUp(self.grants, self._broker, questions.ask, clock)
        self._topics = OpenTopics(
            self.namespaces, self.unloads.topics_of, lambda: self.watch.loads, self.reporter.bundles_changed
        )
        self.server = self._make_server()
        self._show_state()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`, then have the broker close its topics and withdraw the registration.

        The shutdown also runs after a cancellation or an unexpected error (an `ExceptionGroup`). On return no lease is
        valid or the broker has closed everything, so the session may be closed.
        """
        try:
            await self._work(stop)
        except Exception:
            log.exception("agent_failed")
            raise
        finally:
            await self._leave("stopped" if stop.is_set() else "failed")

    async def close(self) -> None:
        for task in self._closing:
            task.cancel()
        self._broker_exit.close()
        self._life.close()
        await self._http.close()
        await self._http_of_nodes.close()
        await asyncio.to_thread(self.caller.tracing.close)

    async def grant_lease(self, asked_over: asyncio.BaseTransport | None = None) -> LeaseAnswer | None:
        holder = await self._broker_exit.holder(asked_over)
        self._stuck.note_lease_request(self._clock())
        incarnation = self.registration.incarnation
        valid_for_ms = self.registration.grant_lease(holder)
        self.metrics.leases.labels("granted" if valid_for_ms else "refused").inc()
        if incarnation is None or valid_for_ms == 0:
            return None
        return LeaseAnswer(
            broker_id=self._settings.broker_id,
            incarnation=incarnation,
            valid_for_ms=valid_for_ms,
            available=self.namespaces.available,
        )

    def health(self) -> dict[str, object]:
        """Return the body of /healthz."""
        process, fault = self.watch.process, self.find_fault()
        broker = "gone" if process is None else "answering" if self.watch.is_answering else "silent"
        return {
            "registered": self.registration.is_certain,
            "brokerId": self._settings.broker_id,
            "phase": self.registration.phase.value,
            "incarnation": self.registration.incarnation,
            "session": self._store.state.value,
            "broker": "stuck" if fault else broker,
            "fault": f"broker_stuck: {fault}: restart it" if fault else None,
            "brokerPid": process[0] if process else None,
            "grantedTopics": len(self.grants),
            "highestEpoch": self.grants.highest_epoch,
            "unknownLimits": list(unknown_limits(self.sampler.usage)),
            "measured": self.sampler.scope,
            "notMeasured": self.sampler.fault(),
            "brokersOnHost": self.sampler.agents_on_host,
        }

    def find_fault(self) -> str | None:
        """Return why the broker is stuck; None while it is not."""
        return self._stuck.find_fault(self._clock())

    def _on_unload_answered(self, bundle: BundleName, refusal: UnloadRefusedError | None) -> None:
        if refusal is None:
            self._stuck.note_closed(str(bundle))
        else:
            self._stuck.note_refusal(str(bundle), self._clock())

    def _make_server(self) -> AgentServer:
        """Create the HTTP interfaces. They may serve at once. Without a registration, leases and unloads are 503."""
        return AgentServer(
            BrokerId(self._settings.broker_id),
            grant_lease=self.grant_lease,
            warm_up=self._warm_up,
            unload=self.unloads.unload,
            topics=self._topics,
            health=self.health,
            registry=self.metrics.registry,
            gate=self._gate,
            tracing=self.caller.tracing,
        )

    def _make_watch(self) -> BrokerWatch:
        return BrokerWatch(
            self._broker,
            self.grants,
            self.metrics,
            self._stuck,
            self._clock,
            stats_interval_s=self._settings.stats_update_frequency_in_secs,
            probe_interval_s=self._settings.broker_lease_ms / 1000 / _PROBES_PER_LEASE,
            silence_s=self._store.session_timeout_s,
            last_lease_at_s=lambda: self.leases.last_granted_at_s,
            on_change=self._broker_changed,
        )

    def _make_reporter(self, agent_url: str) -> Reporter:
        return Reporter(
            identity_of(self._settings, agent_url, self._life.name),
            self._settings,
            self.watch,
            self.namespaces,
            lambda: self.sampler.usage,
            lambda: min(self.watch.measured_at_s, self.sampler.measured_at_s),
            self.metrics,
            self._clock,
            self.find_fault,
        )

    def _close_topics(self) -> None:
        """Have the broker close everything, in the background."""
        task = asyncio.create_task(self.unloads.close(self.unloads.everything_open()))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _withdraw(self, reason: str) -> None:
        self.registration.withdraw(reason)
        self.registration.wake()

    def _broker_changed(self) -> None:
        self._broker_exit.follow(self.watch.sole_process)
        self.registration.wake()

    def _broker_died(self, process: BrokerProcess) -> None:
        self.registration.died(process)
        self.watch.died(process)

    async def _work(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.sampler.run()),
                group.create_task(self.watch.run()),
                group.create_task(self.registration.run(lambda: self.watch.process)),
                group.create_task(self.reporter.run(self.registration)),
            ]
            try:
                await stop.wait()
            finally:
                self.registration.end()
                for task in tasks:
                    task.cancel()

    async def _leave(self, reason: str) -> None:
        try:
            await self._take_back(reason)
        except Exception:
            log.exception("withdrawal_failed")
        finally:
            if self.registration.phase is not PresencePhase.ABSENT:
                await asyncio.sleep(max(0.0, self.leases.lapsed_at_s - self._clock()))
        log.info("agent_stopped", phase=self.registration.phase)

    async def _take_back(self, reason: str) -> None:
        """Stop granting, have the broker close its topics, then delete the znode."""
        topics_by_bundle = self.unloads.everything_open()
        if self.registration.withdraw(reason) and await self.unloads.close(topics_by_bundle):
            self.registration.broker_closed_everything()
        await self.registration.leave()

    def _show_state(self) -> None:
        self.metrics.show(
            "registered", "1 while the broker is registered for certain.", lambda: self.registration.is_certain
        )
        self.metrics.show(
            "broker_stuck",
            "1 while the broker is stuck: it owns bundles but serves none.",
            lambda: self.find_fault() is not None,
        )
        self.metrics.show("broker_answering", "1 while the broker answers.", lambda: self.watch.is_answering)
        self.metrics.show("granted_topics", "Topics the broker may have open.", lambda: len(self.grants))
