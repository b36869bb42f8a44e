"""Decisions about a cluster that is not there: from a dump of it, as often as one likes."""
