"""`loadmanager admin export` and `import`: the operator config in a readable file.

An export reads ZooKeeper, so it works while no node runs. The leader executes an import.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from loadmanager.cli.admin.node_requests import Service, put
from loadmanager.cli.admin.request_command import Procedure
from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.text.numbers import format_quantity
from loadmanager.cli.text.text_tables import write_lines
from loadmanager.errors import InvalidRecordError
from loadmanager.util.atomic_write import whole

if TYPE_CHECKING:
    from loadmanager.wire.operator_config import OperatorConfigDocument

_STANDARD = "-"
_WIDTH = 120
_PATH = "/loadbalance/v1/operator-config"


def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Output file; -: standard output.")],
    config: Annotated[Path | None, typer.Option(help="YAML file of a node; see config/loadmanager.yaml.")] = None,
    metadata_store_url: Annotated[
        str | None, typer.Option(help="ZooKeeper and chroot, zk:host:port/chroot; default: as configured.")
    ] = None,
) -> None:
    """Write namespaces, policies, controls, settings and learned loads to a file.

    The command reads ZooKeeper, so no node has to run. Unreadable records are left out and named, and the exit code is
    1.
    """
    from loadmanager.cli.admin.config_export import read_operator_config  # noqa: PLC0415 - no other command opens a session

    url, operator_config, faults = read_operator_config(config, metadata_store_url)
    text = _text_of(operator_config, url)
    if file == _STANDARD:
        write_lines(text.splitlines())
    else:
        _write(text, Path(file))
        saved = format_quantity(len(operator_config.namespaces or {}), "namespace")
        print(f"saved to {file}: {saved}", file=sys.stderr)
    for fault in faults:
        print(f"left out: {fault}", file=sys.stderr)
    if faults:
        raise SystemExit(EXIT_FAILURE)


def _text_of(operator_config: OperatorConfigDocument, url: str) -> str:
    import yaml  # noqa: PLC0415 - it takes its time to load

    origin = {"exported_at": datetime.now(UTC).isoformat(timespec="seconds"), "exported_from": url}
    content = operator_config.model_copy(update=origin).model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True)


def _write(text: str, file: Path) -> None:
    """Write the text to standard output, or atomically to a file."""
    try:
        with whole(file) as partial, partial.open("w", encoding="utf-8") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", EXIT_FAILURE)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File written by `export`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Make the changes; without this they are only shown.")] = False,  # noqa: FBT002 - a flag
) -> Procedure:
    """Apply an exported file; without --yes only show the changes.

    Namespaces are only created, never changed or deleted. Each other part of the file replaces the current one: entries
    that the file does not have are removed.
    """
    content = _content_of(file)

    def procedure(service: Service) -> None:
        answer = service.ask(put(_PATH, body=content, dryRun=not yes))
        if service.as_json:
            print(orjson.dumps(answer.content, option=orjson.OPT_INDENT_2).decode())
        else:
            _show(answer.content, done=yes)

    return procedure


def _content_of(file: Path) -> bytes:
    """Return the document as JSON, after the checks that need no node. An unusable document ends the process."""
    import yaml  # noqa: PLC0415 - it takes its time to load, and so does the next

    from loadmanager.wire.operator_config import decode_operator_config  # noqa: PLC0415

    try:
        content = orjson.dumps(yaml.safe_load(file.read_text(encoding="utf-8")))
        decode_operator_config(content, str(file))
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", EXIT_FAILURE)
    except (UnicodeDecodeError, yaml.YAMLError, orjson.JSONEncodeError) as error:
        fail(f"{file}: not what `loadmanager admin export FILE` writes: {error}", EXIT_FAILURE)
    except InvalidRecordError as error:
        fail(str(error), EXIT_FAILURE)
    return content


def _show(answer: Any, *, done: bool) -> None:  # noqa: ANN401 - what the node answered
    found = answer["changes"]
    for change in found:
        if change["change"] == "differs":
            print(f"left as it is: {change['kind']} {change['name']}, which is cut otherwise")
        else:
            print(f"{change['change']:<7} {change['kind']} {change['name']}")
    if not any(change["change"] != "differs" for change in found):
        print("Everything is as the file says.")
    elif not done:
        print("Nothing was changed. With --yes it is.")
