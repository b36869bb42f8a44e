"""Dumps of clusters, and the `decide` command as it is typed, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.testing import CliRunner, Result

from loadmanager.cli.decide_command import COMMAND_CLASS, decide

MIB = 1024 * 1024

APP = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
APP.command("decide", cls=COMMAND_CLASS)(decide)

Line = dict[str, Any]


def run(lines: Sequence[Line] | str, *arguments: str) -> Result:
    """Run the command with these lines as its standard input."""
    text = lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
    return CliRunner().invoke(APP, ["-", *arguments], input=text.encode("utf-8", "surrogateescape"))


def answers(lines: Sequence[Line] | Line, *arguments: str) -> list[dict[str, Any]]:
    """Return the objects that the command prints with `--json`, one per line."""
    result = run([lines] if isinstance(lines, dict) else lines, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(text) for text in result.stdout.splitlines()]


def settings(values: Mapping[str, object]) -> list[str]:
    """The `--set` options of these settings."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def picked(answer: Mapping[str, Any]) -> dict[str, list[str]]:
    """The bundles that leave each broker, in order."""
    found: dict[str, list[str]] = {}
    for decision in answer["decisions"]:
        assert decision["action"] == "unload"
        found.setdefault(decision["source"], []).append(decision["bundle"])
    return found


def stats(
    rate_in: float = 0, rate_out: float = 0, throughput_in: float = 0, throughput_out: float = 0, **more: int
) -> dict[str, float]:
    return {
        "msgRateIn": rate_in,
        "msgRateOut": rate_out,
        "msgThroughputIn": throughput_in,
        "msgThroughputOut": throughput_out,
        **more,
    }


def history(short: Mapping[str, float], long: Mapping[str, float] | None = None, samples: int = 1) -> Line:
    """BundleData with these averages."""
    return {
        "shortTermData": {"maxSamples": 10, "numSamples": min(samples, 10), **short},
        "longTermData": {"maxSamples": 1000, "numSamples": samples, **(long or short)},
        "topics": 1,
    }


def broker(
    bundles: Sequence[str] = (),
    *,
    bandwidth: tuple[float, float] | None = None,
    cpu: float | None = None,
    load: Mapping[str, float] | None = None,
    **more: Any,  # noqa: ANN401 - any other field
) -> Line:
    """LocalBrokerData; `bandwidth` is (usage, limit), both in and out, and `cpu` a usage of 100."""
    usage: Line = {}
    if bandwidth is not None:
        usage |= {key: {"usage": bandwidth[0], "limit": bandwidth[1]} for key in ("bandwidthIn", "bandwidthOut")}
    if cpu is not None:
        usage["cpu"] = {"usage": cpu, "limit": 100}
    return {**usage, "bundles": list(bundles), "numBundles": len(bundles), **(load or {}), **more}
