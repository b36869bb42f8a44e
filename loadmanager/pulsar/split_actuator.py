"""Splits of bundles through Pulsar's REST API. Pulsar has no merges.

    state                                    action
    -----                                    ------
    the bundle is gone, or nobody owns it,   raise an error; Pulsar is not asked
    or it is being moved
    a guardrail stops the split              log `would_split` with the reason; always so in mode observe
    otherwise                                ask Pulsar, at our boundaries if its brokers support positions, else by
                                             their default algorithm
    refused, or no broker reachable          the split has failed
    accepted, or the outcome is unknown      read the bundles of the namespace, for up to `moveTimeoutMs`
    the parts exist                          log `split` with their boundaries
    timeout                                  the split has failed

Failed splits and failed moves are counted together. Pulsar writes all boundaries at once, so a split is atomic. The
parts stay at their broker. With `loadBalancerAutoUnloadSplitBundlesEnabled`, Pulsar unloads them and places them at the
next lookup.

The load of single topics is not read. So only `range_equally_divide` works: `topic_count_equally_divide` and
`flow_or_qps_equally_divide` need topics, and are refused with `owner_silent`. As in Pulsar, a bundle with one hot topic
is split until that topic has its own bundle.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from loadmanager.core.domain.names import BundleName, BundleRange
from loadmanager.core.domain.ownership import IllegalTransitionError, OwnershipState, Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import Reason, SplitReason
from loadmanager.core.protocol.reshape_machine import BundleGoneError, OwnerSilent, Parts, Reshaping
from loadmanager.core.strategies.splitting import SPECIFIED_POSITIONS
from loadmanager.core.strategies.splitting.split_finder import Split
from loadmanager.errors import LoadManagerError, NotLeaderError, OwnerSilentError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.pulsar.guardrail_facts import GuardrailFacts
from loadmanager.pulsar.move_log import MoveLog
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.rest_call import FAULTS_OF_ITS_OWN, PulsarRefusedError, PulsarUnreachableError

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 0.2
_NO_TOPICS = (
    "the load of single topics is not read from Pulsar; set defaultNamespaceBundleSplitAlgorithm to"
    " range_equally_divide in overrides"
)


class SplitFailedError(LoadManagerError):
    """The parts of a split did not appear before the timeout."""


class PulsarReshaper:
    """Executes splits. `splits` counts them by reason, `splits_failed` counts the failed ones."""

    def __init__(
        self,
        mirror: ClusterMirror,
        admin: PulsarAdmin,
        election: Election,
        guardrails: GuardrailFacts,
        move_log: MoveLog,
        decision_log: DecisionLog,
        live: LiveSettings,
        read_bundles: Callable[[str], Awaitable[None]],
    ) -> None:
        self._mirror = mirror
        self._read_bundles = read_bundles
        self._admin = admin
        self._election = election
        self._guardrails = guardrails
        self._move_log = move_log
        self._decision_log = decision_log
        self._live = live
        self._in_progress: set[tuple[str, BundleRange]] = set()
        self.splits: Counter[Reason] = Counter()
        self.splits_failed = 0

    @property
    def in_progress(self) -> frozenset[tuple[str, BundleRange]]:
        """Bundles that are being split, by namespace and range."""
        return frozenset(self._in_progress)

    async def ask_topics(self, it: Reshaping, owner: Registration) -> OwnerSilent:
        """Return `OwnerSilent`: topics are unknown."""
        del owner
        return OwnerSilent(it, OwnerSilentError(_NO_TOPICS))

    def tell(self, broker: Registration, namespace: str) -> None:
        """Do nothing: brokers of a Pulsar watch the boundaries themselves."""

    async def carry_out(self, it: Reshaping) -> None:
        """Split a bundle; see the table of the module. Raises `IllegalTransitionError`, `SplitFailedError`,
        `PulsarRefusedError`, `PulsarUnreachableError`, or `NotLeaderError`.
        """
        owner = self._owner_of(it.bundle)
        stops = self._guardrails.check_split(str(it.bundle))
        if stops:
            self._log("would_split", it, owner, stops)
            return
        key = str(it.bundle.namespace), it.bundle.range
        self._in_progress.add(key)
        try:
            boundaries = await self._split(it)
        except NotLeaderError:
            raise
        except LoadManagerError:
            await self._move_log.not_split()
            raise
        finally:
            self._in_progress.discard(key)
        self._on_split_made(it, owner, boundaries)
        await self._move_log.split(owner.broker)

    def _owner_of(self, name: BundleName) -> Registration:
        current = self._mirror.find_ownership(str(name))
        if current is None:
            raise BundleGoneError(f"{name} is not a current bundle")
        if current.state is not OwnershipState.OWNED or not self._mirror.is_registered(current.owner):
            raise IllegalTransitionError(f"cannot split bundle {name}, which is {current}")
        assert current.owner is not None, "nobody is not registered"
        return current.owner

    async def _split(self, it: Reshaping) -> list[int]:
        """Return the boundaries at which Pulsar split the bundle."""
        timeout_s = self._live.current.namespace_bundle_unloading_timeout_ms / 1000
        lost: LoadManagerError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                lost = await self._ask(it, timeout_s)
                return await self._watch(it.bundle)
        except TimeoutError:
            cause = "" if lost is None else f": {lost}"
            raise SplitFailedError(f"the bundle is not split after {timeout_s:.1f} s{cause}") from None

    async def _watch(self, name: BundleName) -> list[int]:
        """Wait for boundaries inside the range of a bundle, and return them."""
        while True:
            with contextlib.suppress(PulsarRefusedError, PulsarUnreachableError):
                await self._read_bundles(str(name.namespace))
            entry = self._mirror.namespaces.get(str(name.namespace))
            known = () if entry is None else entry.state.bundles.boundaries
            boundaries = [each for each in known if name.range.lower < each < name.range.upper]
            if boundaries:
                return boundaries
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _ask(self, it: Reshaping, timeout_s: float) -> LoadManagerError | None:
        """Request the split. Return the error if the outcome is unknown."""
        takes_positions = SPECIFIED_POSITIONS in self._live.planner.supported_split_algorithms
        self._election.get_term()
        try:
            await self._admin.split(
                it.bundle,
                algorithm=SPECIFIED_POSITIONS if takes_positions else None,
                positions=it.boundaries if takes_positions else (),
                unload=it.parts is Parts.PLACED,
                timeout_s=timeout_s,
            )
        except PulsarRefusedError as error:
            if error.status < FAULTS_OF_ITS_OWN:
                raise
            return error
        except PulsarUnreachableError as error:
            if error.was_not_heard:
                raise
            return error
        return None

    def _on_split_made(self, it: Reshaping, owner: Registration, boundaries: Sequence[int]) -> None:
        assert it.because is not None, "a decided split has a reason"
        assert isinstance(it.reason, SplitReason), "nothing is merged"
        why = {**it.because.why, "parts": len(boundaries) + 1}
        it.cut(Split(str(it.bundle), tuple(boundaries), it.reason), replace(it.because, why=why))
        self.splits[it.reason] += 1
        self._log("split", it, owner)
        log.info("bundle_split", bundle=str(it.bundle), made=", ".join(map(str, it.after)), reason=it.reason)

    def _log(self, kind: str, it: Reshaping, owner: Registration, stops: Sequence[Verdict] = ()) -> None:
        assert it.because is not None, "a decided split has a reason"
        because, epoch = [it.because, *stops], self._mirror.epoch
        self._decision_log.moved(
            kind,
            str(it.bundle),
            it.reason,
            epoch=epoch,
            source=owner,
            destination=owner,
            because=because,
            acted=not stops,
        )
