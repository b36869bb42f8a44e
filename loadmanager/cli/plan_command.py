"""`loadmanager plan verify`: whether a plan is what it says of itself, from its file alone.

Exit codes: 0 it is; 1 it is not, or the file cannot be used; 2 wrong usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.core.planning.certificate.plan_certificate import Certified, build_certificate_verdict
from loadmanager.core.planning.certificate.plan_verification import find_faults
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.plan_file import decode

plan = typer.Typer(
    help="Plans that were saved as files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
plan.callback()(lambda: None)


@plan.command("verify")
def verify(
    file: Annotated[str, typer.Argument(help="What `loadmanager admin plans save HASH --out FILE` wrote.")],
) -> None:
    """Check that a plan gets where it says, and that no plan gets further than it says. Nothing is asked of anybody."""
    try:
        certified, claims = decode(Path(file).read_bytes())
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", EXIT_FAILURE)
    except InvalidRecordError as error:
        fail(f"{file}: {error}", EXIT_FAILURE)
    faults = find_faults(certified, claims)
    if faults:
        fail("\n".join(f"{file}: {fault}" for fault in faults), EXIT_FAILURE)
    print(f"plan {claims.hash}, {claims.kind}, {len(claims.steps)} steps: it is what it says.")
    print(f"{build_certificate_verdict(certified).sentence()}.")
    for name, gap in _gaps(certified):
        print(f"{name}: {gap}")


def _gaps(certified: Certified) -> list[tuple[str, str]]:
    figures = certified.figures
    load_gap = "nothing would have to move" if figures.load_gap is None else f"{figures.load_gap:.3f}"
    return [("heat by bound", f"{figures.gap:.3f}"), ("load moved by the least", load_gap)]
