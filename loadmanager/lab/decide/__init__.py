"""Offline decisions about a cluster, from a dump of it."""
