"""Fixtures for every test: see `support/` for the builders and the real servers."""

import logging

import structlog

pytest_plugins = ["support.zookeeper"]


def pytest_runtest_teardown() -> None:
    """Undo what a command has set up: its logs go where its output went, and that is closed by now."""
    structlog.reset_defaults()
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
            logging.root.removeHandler(handler)
