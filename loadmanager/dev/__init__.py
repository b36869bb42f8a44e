"""Embedded ZooKeeper and JVM, and the demo."""
