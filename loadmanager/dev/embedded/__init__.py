"""A real ZooKeeper and a JVM from Python packages, for a start with one command and for tests."""
