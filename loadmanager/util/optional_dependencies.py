"""Hint for a missing extra: the command that installs it."""


def how_to_install(extra: str) -> str:
    """Return the command that installs this extra; pip finds its packages in the metadata."""
    return f"pip install 'loadmanager[{extra}]'"


def naming_extra(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return an error that names the missing package and the command that installs it."""
    return ModuleNotFoundError(f"{error.name} is not installed: {how_to_install(extra)}", name=error.name)
