"""The port to the metadata store, and its two implementations: a real ZooKeeper and memory."""
