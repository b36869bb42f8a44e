"""Process `loadmanager pulsar` beside the Pulsar of an example, and its admin requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from examples.pulsar.admin import ask, demand
from examples.pulsar.cluster import PulsarCluster
from examples.pulsar.progress import wait_until
from loadmanager.errors import EmbeddedServerError

_ROOT = Path(__file__).parents[2]
_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 60.0
_LINES_OF_LOG = 30


@dataclass(slots=True)
class PulsarCommand:
    """One process with its own `folder`. `options` are additional keys of its configuration."""

    cluster: PulsarCluster
    folder: Path
    mode: Literal["observe", "act"] = "act"
    options: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and return when it has read everything and answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ready_file().unlink(missing_ok=True)
        given = {
            "adminUrls": [each.web_url for each in self.cluster.serving()][:1],
            "webServicePort": 0,
            "folder": str(self.folder / "kept"),
            **self.options,
        }
        config = self.folder / "pulsar.yaml"
        config.write_text(json.dumps(given), encoding="utf-8")  # JSON is also YAML
        command = [sys.executable, "-m", "loadmanager", "pulsar", self.mode, "--config", str(config), *self.arguments]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self._ready_file())], stdout=log, stderr=log, cwd=_ROOT
            )
        try:
            wait_until(self._ready_file().exists, "loadmanager pulsar", timeout_s=_START_TIMEOUT_S, check=self._check)
        except BaseException:
            self.kill()
            raise

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EmbeddedServerError("loadmanager pulsar has not been started")
        return self._process

    @property
    def url(self) -> str:
        url: str = json.loads(self._ready_file().read_text(encoding="utf-8"))["url"]
        return url

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        return demand(self.url, "GET", path).content()

    def post(self, path: str, content: object = None) -> Any:  # noqa: ANN401 - JSON
        return demand(self.url, "POST", path, content).content()

    def tell(self, method: str, path: str, content: object = None) -> int:
        """Send an operator's request; return the status of the answer."""
        return ask(self.url, method, path, content).status

    def status(self) -> dict[str, Any]:
        """Return its status, with the obstacles to acting."""
        status: dict[str, Any] = self.get("/loadbalance/v1/pulsar")
        return status

    def stop(self) -> int:
        """Stop the process gracefully; return its exit code."""
        self.process.terminate()
        return self.process.wait(_END_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL the process, without a graceful shutdown."""
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        """Return its whole log."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()

    def _ready_file(self) -> Path:
        return self.folder / "ready"

    def _check(self) -> None:
        if self.process.poll() is not None:
            last = "\n".join(self.log().splitlines()[-_LINES_OF_LOG:])
            raise EmbeddedServerError(f"loadmanager pulsar ended with exit code {self.process.returncode}:\n{last}")
