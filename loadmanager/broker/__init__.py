"""Kit for brokers in Python: implements the contract of docs/broker-contract.md."""

from loadmanager.util.optional_dependencies import naming_extra

try:
    from loadmanager.broker.broker_host import Hosting
    from loadmanager.broker.contract import CloseReason, Refusal
    from loadmanager.broker.topic import Closing, Health, RefusedError, Topic
except ModuleNotFoundError as error:
    raise naming_extra(error, "broker") from None

__all__ = ["CloseReason", "Closing", "Health", "Hosting", "Refusal", "RefusedError", "Topic"]
