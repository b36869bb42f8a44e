"""A load manager for fleets of stateful brokers: placement, shedding and ownership of bundles of topics."""

__version__ = "0.1.0"
