"""Hint for a missing extra: the command that installs it."""


def how_to_install(extra: str) -> str:
    """Return the command that adds an extra to this installation; pip takes what the extra needs from its metadata."""
    return f"pip install 'loadmanager[{extra}]'"


def naming_extra(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error of a kit that lacks a package, with the command that installs it."""
    return ModuleNotFoundError(f"{error.name} is not installed: {how_to_install(extra)}", name=error.name)
