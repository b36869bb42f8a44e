"""Fixtures for every test: see `support/` for the builders and the real servers."""

pytest_plugins = ["support.zookeeper"]
