"""A demonstration with real processes: ZooKeeper, nodes, brokers with their agents, and clients."""
