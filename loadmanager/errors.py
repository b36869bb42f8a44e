"""Errors at the edges of the service, each named for the situation it reports.

The pure core raises its own (`loadmanager.core.domain.names.InvalidNameError` and the like); expected refusals, such as
a stale step of a plan, are return values and not errors.
"""

from __future__ import annotations


class LoadManagerError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigurationError(LoadManagerError):
    """The configuration cannot be used; the message names the key, the value and what is allowed."""


class ForeignStoreError(ConfigurationError):
    """Somebody else's cluster lives in the metadata store that is configured; nothing was written there."""


class StoreError(LoadManagerError):
    """The metadata store did not do what was asked."""


class StoreUnavailableError(StoreError):
    """There is no usable session with the metadata store; the request was **not** sent."""


class OutcomeUnknownError(StoreError):
    """A write was sent and no answer came: it may or may not have happened. Read again before deciding anything."""


class AccessDeniedError(StoreError):
    """The access list of a znode does not let us do that; the message names the znode and who we are."""


class TransactionFailedError(StoreError):
    """The store refused a transaction as a whole; nothing of it happened.

    `index` is the position of the first operation that failed, `cause` one of `bad_version`, `no_node`,
    `node_exists`, `not_empty`, `no_access`, `other`.
    """

    def __init__(self, index: int, path: str, cause: str) -> None:
        super().__init__(f"transaction refused: operation {index} on {path}: {cause}")
        self.index = index
        self.path = path
        self.cause = cause


class ZnodeTooLargeError(StoreError):
    """The data exceed what a znode may hold; sending it would cost the whole connection, so it is not sent."""


class InvalidRecordError(LoadManagerError):
    """A znode or a request body holds something that cannot be used; the message names the place and the field."""


class BadRequestError(LoadManagerError):
    """A body or parameter of a request cannot be used; the message names it and what is allowed."""


class UnauthenticatedError(LoadManagerError):
    """It is not known who asks; the message says what is wrong with their token, and never the token."""


class ForbiddenError(LoadManagerError):
    """Who asks is known, and may not; the message names the role that it takes and the lists that give it."""


class NotFoundError(LoadManagerError):
    """What the path names is not there."""


class ConflictError(LoadManagerError):
    """It would contradict what is there already; nothing was changed."""


class NotDynamicError(LoadManagerError):
    """The configuration has no such key, or one that takes a restart to change."""


class ConcurrentModificationError(LoadManagerError):
    """Others kept changing the same znode; nothing was written."""


class NotLeaderError(LoadManagerError):
    """This node does not lead (any more); the caller may ask the leader."""


class StaleEpochError(NotLeaderError):
    """A write carried an epoch that is not the current one: another leader has taken over."""


class NoLeaderError(LoadManagerError):
    """No node leads at the moment; ask again shortly."""


class OutdatedViewError(LoadManagerError):
    """What this node knows may be of a ZooKeeper that is another one by now; another node may know better."""


class TooManyPreviewsError(LoadManagerError):
    """So many plans and explanations, or heat maps, are waited for that this one was not begun: ask again later."""


class NoBrokerAvailableError(LoadManagerError):
    """No registered broker may own the bundle; the message says why."""


class NoOwnerYetError(LoadManagerError):
    """Nobody owned the topic within the time that there was for it; the message has what the nodes said last."""


class NodesUnavailableError(LoadManagerError):
    """No load-manager node answered; the message names each by its URL, and why it did not."""


class HeldForOwnerError(NoBrokerAvailableError):
    """The bundle waits for its broker, which an operator restarts; `retry_after_s` is for how long at most."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NamespaceNotFoundError(LoadManagerError):
    """The namespace has no record."""


class BodyTooLargeError(LoadManagerError):
    """The body of a request is larger than `most_bytes`, which is all that its operation has use for."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"body: larger than {most_bytes} bytes")


class NamespaceBeingDeletedError(LoadManagerError):
    """Nothing of the namespace is given to anybody any more; soon there is none of that name."""


class NamespaceExistsError(LoadManagerError):
    """The namespace has a record already."""


class BundleNotFoundError(LoadManagerError):
    """The range is not a current bundle of the namespace."""


class BrokerNotFoundError(LoadManagerError):
    """No broker of that id is registered."""


class UnloadFailedError(LoadManagerError):
    """The owner did not release the bundle before the deadline; it still owns it."""


class UnloadCancelledError(UnloadFailedError):
    """An operator cancelled the unload; the owner keeps the bundle."""


class InvariantViolatedError(LoadManagerError):
    """A write was not made because of what it would have said: it is a defect, and ends the leader's term."""


class NoUnloadError(ConflictError):
    """No unload of the bundle is under way, or it was too late to cancel it."""


class DestinationInactiveError(ConflictError):
    """The broker that a bundle was to be given to is not registered, or may not own it; the message says which."""


class PlanNotFoundError(NotFoundError):
    """No such plan is kept by the leader; the message says why."""


class PlanBusyError(ConflictError):
    """The plan is being executed already."""


class PlanDriftedError(ConflictError):
    """The cluster is no longer as the plan took it to be; `report` says what became of each step."""

    def __init__(self, message: str, report: dict[str, object]) -> None:
        super().__init__(message)
        self.report = report


class OwnerSilentError(LoadManagerError):
    """The agent of a bundle's owner did not say what was asked of it, or did not take what it was told."""


class SplitRefusedError(LoadManagerError):
    """A split that cannot be made as it was asked for, whatever the bundle holds; the message says what is allowed."""


class HistoryError(LoadManagerError):
    """The history cannot be read, written or imported into; the message names the place and what is wrong."""


class HistoryFileError(HistoryError):
    """A file of the history that cannot be used: damaged, or not ours; the message names it. The others still can."""


class HistorySchemaError(HistoryFileError):
    """A file of the history was written by a newer loadmanager than this one."""


class ScenarioError(LoadManagerError):
    """A scenario cannot be run; the message names the file, the key and what is allowed."""


class PipelineError(LoadManagerError):
    """The data pipeline cannot do what was asked; the message names the file, the table, the range or the setting."""


class EmbeddedServerError(LoadManagerError):
    """The embedded ZooKeeper, or the JVM it needs, could not be started; the message says what was tried."""
