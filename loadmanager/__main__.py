"""`loadmanager`, and `python -m loadmanager`."""

from __future__ import annotations

import sys

from loadmanager.util.optional_dependencies import how_to_install


def main() -> None:
    """Entry point of `loadmanager`, also for an installation of the broker kit only."""
    try:
        from loadmanager.cli import main as run  # noqa: PLC0415 - to name the missing packages if it fails
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(f"{__package__}."):
            raise
        fix = f"install what commands need with: {how_to_install('agent')}"
        print(f"loadmanager: not installed: {error.name}; {fix}", file=sys.stderr)  # noqa: T201 - a command prints
        raise SystemExit(1) from None
    run()


if __name__ == "__main__":
    main()
