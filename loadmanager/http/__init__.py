"""The HTTP interfaces of a node: Pulsar's lookup and admin paths, and our own under `/loadbalance/v1`."""
