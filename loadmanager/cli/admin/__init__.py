"""Subcommands of `loadmanager admin`."""
