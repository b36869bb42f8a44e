"""Errors at the edges of the service, each named for the situation it reports.

The pure core raises its own (`loadmanager.core.names.InvalidNameError` and the like); expected refusals, such as a
stale step of a plan, are return values and not errors.
"""

from __future__ import annotations


class LoadManagerError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigurationError(LoadManagerError):
    """The configuration cannot be used; the message names the key, the value and what is allowed."""


class StoreError(LoadManagerError):
    """The metadata store did not do what was asked."""


class StoreUnavailableError(StoreError):
    """There is no usable session with the metadata store; the request was **not** sent."""


class OutcomeUnknownError(StoreError):
    """A write was sent and no answer came: it may or may not have happened. Read again before deciding anything."""


class TransactionFailedError(StoreError):
    """The store refused a transaction as a whole; nothing of it happened.

    `index` is the position of the first operation that failed, `cause` one of `bad_version`, `no_node`,
    `node_exists`, `not_empty`, `other`.
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


class NotLeaderError(LoadManagerError):
    """This node does not lead (any more); the caller may ask the leader."""


class StaleEpochError(NotLeaderError):
    """A write carried an epoch that is not the current one: another leader has taken over."""


class NoLeaderError(LoadManagerError):
    """No node leads at the moment; ask again shortly."""


class NoBrokerAvailableError(LoadManagerError):
    """No registered broker may own the bundle; the message says why."""


class NamespaceNotFoundError(LoadManagerError):
    """The namespace has no record."""


class NamespaceExistsError(LoadManagerError):
    """The namespace has a record already."""


class BundleNotFoundError(LoadManagerError):
    """The range is not a current bundle of the namespace."""


class UnloadFailedError(LoadManagerError):
    """The owner did not release the bundle before the deadline; it still owns it."""


class EmbeddedServerError(LoadManagerError):
    """The embedded ZooKeeper, or the JVM it needs, could not be started; the message says what was tried."""
