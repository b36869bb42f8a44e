"""Errors outside the core.

The pure core has its own, such as `loadmanager.core.domain.names.InvalidNameError`. Expected refusals, such as a stale
step of a plan, are return values and not errors.
"""

from __future__ import annotations


class LoadManagerError(Exception):
    """Base class of the errors of this package."""


class ConfigurationError(LoadManagerError):
    """The configuration is unusable; the message names the key, the value and the allowed values."""


class ForeignStoreError(ConfigurationError):
    """The configured metadata store belongs to another cluster; nothing was written there."""


class StoreError(LoadManagerError):
    """The metadata store did not execute an operation."""


class StoreUnavailableError(StoreError):
    """There is no usable session with the metadata store; the request was **not** sent."""


class OutcomeUnknownError(StoreError):
    """A write was sent but not answered: it may or may not have been executed. Read again before deciding anything."""


class AccessDeniedError(StoreError):
    """The ACL of a znode denies the operation; the message names the znode and our identity."""


class TransactionFailedError(StoreError):
    """The store refused a transaction; none of its operations was executed.

    `index` is the position of the first operation that failed, `cause` one of `bad_version`, `no_node`,
    `node_exists`, `not_empty`, `no_access`, `other`.
    """

    def __init__(self, index: int, path: str, cause: str) -> None:
        super().__init__(f"transaction refused: operation {index} on {path}: {cause}")
        self.index = index
        self.path = path
        self.cause = cause


class ZnodeTooLargeError(StoreError):
    """The data exceed the size limit of a znode; sending them would break the connection, so they are not sent."""


class InvalidRecordError(LoadManagerError):
    """A znode or a request body is unusable; the message names the place and the field."""


class BadRequestError(LoadManagerError):
    """A body or parameter of a request is unusable; the message names it and the allowed values."""


class UnauthenticatedError(LoadManagerError):
    """The caller is not authenticated; the message says what is wrong with the token, never the token itself."""


class ForbiddenError(LoadManagerError):
    """The caller is known, but lacks permission; the message names the role and the settings that grant it."""


class NotFoundError(LoadManagerError):
    """The resource in the path does not exist."""


class ConflictError(LoadManagerError):
    """The change conflicts with the current state; nothing was changed."""


class NotDynamicError(LoadManagerError):
    """The setting does not exist, or needs a restart to change."""


class ConcurrentModificationError(LoadManagerError):
    """Other writers kept changing the znode; nothing was written."""


class NotLeaderError(LoadManagerError):
    """This node is not, or no longer, the leader; the caller may ask the leader."""


class StaleEpochError(NotLeaderError):
    """A write carried an epoch that is not the current one: another leader has taken over."""


class NoLeaderError(LoadManagerError):
    """No node leads at the moment; try again shortly."""


class OutdatedMirrorError(LoadManagerError):
    """This node's mirror may be outdated after a store rollback; another node may be up to date."""


class TooManyPreviewsError(LoadManagerError):
    """Too many plans, explanations or heat maps are waiting: try again later."""


class NoBrokerAvailableError(LoadManagerError):
    """No registered broker may own the bundle; the message says why."""


class NoOwnerYetError(LoadManagerError):
    """The topic got no owner before the timeout; the message has the last answers of the nodes."""


class NodesUnavailableError(LoadManagerError):
    """No load-manager node answered; the message lists each URL with its failure."""


class HeldForOwnerError(NoBrokerAvailableError):
    """The bundle waits for its broker, which is held off; `retry_after_s` is the maximum wait."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NamespaceNotFoundError(LoadManagerError):
    """The namespace has no record."""


class BodyTooLargeError(LoadManagerError):
    """The body of a request is larger than `most_bytes`, the limit of its operation."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"body: larger than {most_bytes} bytes")


class NamespaceBeingDeletedError(LoadManagerError):
    """The namespace is being deleted; its bundles get no owner any more."""


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


class DestinationMissedError(UnloadFailedError):
    """A Pulsar has placed the bundle on another broker than asked, or back on its source."""


class InvariantViolatedError(LoadManagerError):
    """A write was refused because it would break an invariant: a bug, which ends the leader's term."""


class NoUnloadError(ConflictError):
    """No unload of the bundle is under way, or it was too late to cancel it."""


class DestinationInactiveError(ConflictError):
    """The destination of a bundle is not registered, or may not own it; the message says which."""


class PlanNotFoundError(NotFoundError):
    """The leader does not keep this plan; the message says why."""


class PlanBusyError(ConflictError):
    """The plan is being executed already."""


class PlanDriftedError(ConflictError):
    """The cluster has changed since the plan was computed; `report` has the outcome of each step."""

    def __init__(self, message: str, report: dict[str, object]) -> None:
        super().__init__(message)
        self.report = report


class OwnerSilentError(LoadManagerError):
    """The agent of a bundle's owner did not answer, or did not confirm."""


class SplitRefusedError(LoadManagerError):
    """The requested split is impossible for any load of the bundle; the message names what is allowed."""


class HistoryError(LoadManagerError):
    """The history cannot be read, written or imported into; the message names the place and what is wrong."""


class HistoryFileError(HistoryError):
    """A file of the history is damaged or not ours; the message names it. Other files remain usable."""


class HistorySchemaError(HistoryFileError):
    """A file of the history was written by a newer version of loadmanager."""


class ScenarioError(LoadManagerError):
    """A scenario cannot be run; the message names the file, the key and the allowed values."""


class PipelineError(LoadManagerError):
    """The data pipeline cannot run; the message names the file, the table, the range or the setting."""


class EmbeddedServerError(LoadManagerError):
    """The embedded ZooKeeper or its JVM could not be started; the message lists the attempts."""


def describe_failure(error: BaseException) -> str:
    """Return the type and the text of an error of a connection; of aiohttp's, those of the cause.

    aiohttp's own text of a connection that was not made shows the memory address of the TLS context.
    """
    cause = getattr(error, "os_error", error)
    return f"{type(cause).__name__} {cause}".rstrip()
