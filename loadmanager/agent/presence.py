"""State machine of the broker's registration znode.

A passive machine: `step(event, now_s)` takes an event and returns actions. At most one action is work on the store; its
outcome is the next event. `wake_s` is the latest time for the next `CheckRegistration`.

    phase         event                      if                                     then
    -----         -----                      --                                     ----
    ABSENT        CheckRegistration          a broker serves, the store answers     Read
    REGISTERED    CheckRegistration          the session is a new one               CloseTopics,      ─▶ ABSENT
                                                                                    Forget
                                             the broker is gone, or a new process   Forget, Read      ─▶ WITHDRAWING
                                             else                                   Read
    WITHDRAWING   CheckRegistration          the session is a new one               CloseTopics,      ─▶ ABSENT
                                                                                    Forget
                                             else                                   Read
    ABSENT        ZnodeRead nothing                                                 CreateRegistration
                  ZnodeRead, this session                                           Register          ─▶ REGISTERED
                  ZnodeRead, other session,
                  of an earlier agent        one of its leases may be valid         (wait until it lapses)
                                             else                                   DeleteRegistration
                  of another agent                                                  (log it once)
    REGISTERED    ZnodeRead, our own         at a later version than we wrote       (it is overwritten)
                  ZnodeRead, none or other                                          CloseTopics,      ─▶ ABSENT
                                                                                    Forget
                  Withdraw                                                          Forget            ─▶ WITHDRAWING
    WITHDRAWING   ZnodeRead, our own         a lease may be valid, and the broker   (wait until it lapses)
                                             has not closed everything
                                             else                                   DeleteRegistration
                  ZnodeRead, none or other                                          (it is gone)      ─▶ ABSENT
                  Deleted                                                           (it is gone)      ─▶ ABSENT
    any           Died                       it was registered                      Forget            ─▶ WITHDRAWING
                                             (its leases are over in any case)
                  WorkFailed                                                        (retry soon)

A registration that ends by itself frees its bundles. So the broker closes all topics (CloseTopics) even if its own
clock shows a valid lease: that clock may have missed a pause.

The incarnation is the znode's `czxid`. The znode is deleted only when no lease can be valid any more, or when the
broker has closed everything, because its absence tells the leader that this broker serves nothing.

A znode left over from an earlier process of this agent is deleted once no lease of that process can be valid. Its last
lease may have been granted just before the znode was found. Any other znode is left to the session that holds it: a
running agent may own it, whatever address it names.

After END nothing more is granted. CLOSED_EVERYTHING reports that the broker has closed everything. After LEAVE the
session may be closed (`may_go`) when the registration is deleted. If that fails, it may be closed a while after the
last lease has lapsed.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from loadmanager.agent.grants import Leases
from loadmanager.core.protocol.state_machine import Say
from loadmanager.store.metadata_store import Znode

_RETRY_S = 0.5
_LOOK_AGAIN_S = 5.0
_DELETE_TIMEOUT_S = 5.0
"""Time to delete a registration once no lease is valid any more; afterwards it ends with the session."""

BrokerProcess = tuple[int, int]
"""A broker process: its pid and the start time that it reports."""


class PresencePhase(enum.StrEnum):
    ABSENT = "absent"
    REGISTERED = "registered"
    WITHDRAWING = "withdrawing"


@dataclass(slots=True)
class HeldRegistration:
    """The znode of a registration, with the broker process and session for which it was created."""

    process: BrokerProcess
    session_id: int
    incarnation: int
    version: int
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class RegistrationCreator:
    """The agent that created a znode. `is_over`: its process has certainly exited."""

    life: str
    is_over: bool
    longest_lease_ms: int | None
    url: str | None


# Events


@dataclass(frozen=True, slots=True)
class CheckRegistration:
    """Check the registration against the current broker process (None: none) and session (0: none)."""

    process: BrokerProcess | None
    session_id: int
    is_connected: bool


@dataclass(frozen=True, slots=True)
class ZnodeRead:
    """The znode as read in this session, and the creator of one that another session holds; None: unreadable."""

    znode: Znode | None
    session_id: int
    creator: RegistrationCreator | None = None


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """The work failed, or its outcome is unknown."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Wrote:
    """Our record was replaced by a newer one of ours."""

    incarnation: int
    version: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Grant nothing more and delete the registration."""

    reason: str


@dataclass(frozen=True, slots=True)
class Died:
    """A process of the broker has certainly exited, so its leases are over."""

    process: BrokerProcess


class PresenceSignal(enum.Enum):
    """Events without data."""

    DELETED = enum.auto()
    END = enum.auto()
    """The agent is about to stop."""
    CLOSED_EVERYTHING = enum.auto()
    """The broker has closed everything and serves nothing."""
    LEAVE = enum.auto()
    """Nothing is left to do but to delete the registration."""


Event = CheckRegistration | ZnodeRead | WorkFailed | Wrote | Withdraw | Died | PresenceSignal

# Actions


@dataclass(frozen=True, slots=True)
class Register:
    """Grant to this incarnation from now on."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget all grants."""

    reason: str


@dataclass(frozen=True, slots=True)
class CloseTopics:
    """Have the broker close all topics at once, even under a valid lease: their bundles may have other owners."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the znode; answered by ZnodeRead."""


@dataclass(frozen=True, slots=True)
class CreateRegistration:
    """Create the znode, in this session only; answered by ZnodeRead."""

    session_id: int


@dataclass(frozen=True, slots=True)
class DeleteRegistration:
    """Delete the znode if it has this version, in this session only; answered by DELETED once it is gone."""

    version: int
    session_id: int


Work = Read | CreateRegistration | DeleteRegistration
"""Work on the store, one at a time. WorkFailed is the answer if it fails."""

Action = Work | Register | CloseTopics | Forget | Say


@dataclass(slots=True)
class Presence:
    """Registration of one broker by this agent process."""

    life: str
    leases: Leases
    is_overwritten: bool = False
    """True if another process has overwritten our record; it must be written again."""
    wake_s: float = -math.inf
    _held: HeldRegistration | None = None
    _wanted: BrokerProcess | None = None
    _session_id: int = 0
    _leftover: int | None = None
    _foreign: int | None = None
    _has_nothing_open: bool = False
    _is_ending: bool = False
    _is_delayed: bool = False
    _may_go_s: float = math.inf
    _to_do: list[Action] = field(default_factory=list)

    @property
    def phase(self) -> PresencePhase:
        if self._held is None:
            return PresencePhase.ABSENT
        return PresencePhase.WITHDRAWING if self._held.is_withdrawn else PresencePhase.REGISTERED

    @property
    def registered(self) -> HeldRegistration | None:
        """The registration; None if there is none or it is being withdrawn."""
        return self._held if self.phase is PresencePhase.REGISTERED else None

    def incarnation(self, session_id: int) -> int | None:
        """The current incarnation; None unless the broker is registered in this session."""
        held = self.registered
        if held is None or self._is_ending or held.session_id != session_id:
            return None
        return held.incarnation

    def grant(
        self, now_s: float, session_id: int, session_valid_until_s: float, holder: BrokerProcess | None = None
    ) -> int:
        """Return the lease in milliseconds, counted from when the broker asked; 0: none.

        `holder` is the process that asked, if that is certain; see `Leases`.
        """
        return 0 if self.incarnation(session_id) is None else self.leases.grant(now_s, session_valid_until_s, holder)

    def may_go(self, now_s: float) -> bool:
        """Tell if the session may be closed."""
        return self._held is None or now_s >= self._may_go_s

    def step(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case CheckRegistration():
                self._look(event, now_s)
            case ZnodeRead():
                self._on_read(event, now_s)
            case WorkFailed(error):
                self._on_failed(error, now_s)
            case Wrote(incarnation, version):
                self._on_written(incarnation, version)
            case Withdraw(reason):
                self._withdraw(reason)
            case Died(process):
                self._on_broker_died(process)
            case _:
                self._on_signal(event, now_s)
        to_do, self._to_do = self._to_do, []
        return to_do

    def _on_signal(self, event: PresenceSignal, now_s: float) -> None:
        match event:
            case PresenceSignal.DELETED:
                self._on_deregistered()
                self._wait(now_s)
            case PresenceSignal.END:
                self._is_ending = True
            case PresenceSignal.CLOSED_EVERYTHING:
                self._has_nothing_open = self.phase is PresencePhase.WITHDRAWING
            case _:
                self._may_go_s = max(now_s, self.leases.lapsed_at_s) + _DELETE_TIMEOUT_S

    def _look(self, look: CheckRegistration, now_s: float) -> None:
        self._wanted, self._session_id = look.process, look.session_id
        held = self._held
        if held is not None and held.session_id != look.session_id:
            self._lose(held, "session_lost")
        elif held is not None and held.process != look.process:
            self._withdraw("broker_gone" if look.process is None else "broker_restarted")
        if self._held is not None or (look.process is not None and look.is_connected):
            self._to_do.append(Read())
        else:
            self._wait(now_s + _LOOK_AGAIN_S)

    def _on_read(self, read: ZnodeRead, now_s: float) -> None:
        held, znode = self._held, read.znode
        if read.session_id != self._session_id:
            self._wait(now_s)
        elif held is None:
            self._found_while_absent(znode, read.creator, now_s)
        elif znode is not None and znode.czxid == held.incarnation:
            self._on_own_znode_read(held, znode, now_s)
        elif held.is_withdrawn:
            self._on_deregistered()  # by a delete whose outcome was unknown
            self._found_while_absent(znode, read.creator, now_s)
        else:
            self._lose(held, "znode_vanished")
            self._found_while_absent(znode, read.creator, now_s)

    def _on_own_znode_read(self, held: HeldRegistration, znode: Znode, now_s: float) -> None:
        if znode.version > held.version:
            self._say("record_written_by_another", version=znode.version)
            self.is_overwritten = True
        held.version = znode.version
        if held.is_withdrawn:
            self._delete_when_lapsed(znode, now_s)
        else:
            self._wait(now_s + _LOOK_AGAIN_S)

    def _found_while_absent(self, znode: Znode | None, creator: RegistrationCreator | None, now_s: float) -> None:
        if self._wanted is None:
            self._wait(now_s + _LOOK_AGAIN_S)
        elif znode is None:
            self._to_do.append(CreateRegistration(self._session_id))
        elif znode.ephemeral_owner == self._session_id:
            self._register(self._wanted, znode, now_s)
        elif znode.czxid == self._leftover:
            self._delete_when_lapsed(znode, now_s)
        else:
            self._judge_foreign(znode, creator, now_s)

    def _register(self, process: BrokerProcess, znode: Znode, now_s: float) -> None:
        self._held = HeldRegistration(process, self._session_id, znode.czxid, znode.version)
        self._leftover = None
        self._say("registered", is_warning=False, incarnation=znode.czxid, pid=process[0])
        self._to_do.append(Register(znode.czxid))
        self._wait(now_s + _LOOK_AGAIN_S)

    def _judge_foreign(self, znode: Znode, creator: RegistrationCreator | None, now_s: float) -> None:
        if creator is not None and self._is_former_life(creator) and creator.longest_lease_ms is not None:
            lease_ms = creator.longest_lease_ms
            self._say("leftover_znode", is_warning=False, incarnation=znode.czxid, longest_lease_ms=lease_ms)
            self._leftover, self._has_nothing_open = znode.czxid, False
            self.leases.assume_granted_by_predecessor(now_s, lease_ms)
            self._delete_when_lapsed(znode, now_s)
            return
        if creator is not None and not self._is_former_life(creator) and znode.czxid != self._foreign:
            self._foreign = znode.czxid
            self._say("broker_id_in_use", agent_url=creator.url, life=creator.life, incarnation=znode.czxid)
        self._wait(now_s + _RETRY_S)

    def _is_former_life(self, creator: RegistrationCreator) -> bool:
        """Tell if this agent created the znode, in an earlier process or an abandoned session."""
        return creator.is_over or creator.life == self.life

    def _delete_when_lapsed(self, znode: Znode, now_s: float) -> None:
        if self.leases.lapsed_at_s > now_s and not self._has_nothing_open:
            self._wait(self.leases.lapsed_at_s)
        else:
            self._to_do.append(DeleteRegistration(znode.version, self._session_id))

    def _on_failed(self, error: Exception, now_s: float) -> None:
        was_delayed = self._is_delayed
        self._wait(now_s + _RETRY_S)
        self._is_delayed = True
        if not was_delayed:
            self._say("registration_delayed", phase=self.phase, error=str(error))

    def _on_written(self, incarnation: int, version: int) -> None:
        if self._held is not None and self._held.incarnation == incarnation:
            self._held.version, self.is_overwritten = version, False

    def _withdraw(self, reason: str) -> None:
        held = self.registered
        if held is not None:
            held.is_withdrawn, self._has_nothing_open = True, False
            self._say("withdrawing", reason=reason, incarnation=held.incarnation)
            self._to_do.append(Forget(reason))

    def _on_broker_died(self, process: BrokerProcess) -> None:
        self.leases.ended(process)
        if self._held is not None and self._held.process == process:
            self._withdraw("broker_died")

    def _lose(self, held: HeldRegistration, reason: str) -> None:
        """Handle a registration that has ended without our doing."""
        self._say("registration_lost", reason=reason, incarnation=held.incarnation)
        self._held = None
        self._to_do += [CloseTopics(), Forget(reason)]

    def _on_deregistered(self) -> None:
        if self._held is not None:
            self._say("deregistered", is_warning=False, incarnation=self._held.incarnation)
            self._held = None

    def _wait(self, until_s: float) -> None:
        self.wake_s, self._is_delayed = until_s, False

    def _say(self, event: str, *, is_warning: bool = True, **fields: object) -> None:
        self._to_do.append(Say(event, fields, is_warning))
