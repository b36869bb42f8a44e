"""Process control of the broker under test: start, pause, end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import psutil
from yarl import URL

from loadmanager.broker.conformance.rule_verdicts import UnsettledError
from loadmanager.errors import ConfigurationError
from loadmanager.net.liveness import listens_at

_LOOK_AGAIN_S = 0.01


class ProcessUnderTest(Protocol):
    """Process of the broker under test: pause, resume and end."""

    def stop(self) -> None:
        """It does nothing from now on, until `go_on`. `UnsettledError` if it cannot be stopped."""
        ...

    def go_on(self) -> None: ...

    def end(self) -> None:
        """Tell it to end (SIGTERM)."""
        ...

    def has_ended(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process of this machine."""

    process: psutil.Process

    def stop(self) -> None:
        try:
            self.process.suspend()
            while self.process.status() != psutil.STATUS_STOPPED:
                time.sleep(_LOOK_AGAIN_S)
        except psutil.Error as error:
            raise UnsettledError(f"the broker's process could not be stopped: {error}") from None

    def go_on(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.resume()

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.terminate()

    def has_ended(self) -> bool:
        return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE


def find_process(pid: int, url: str) -> LocalProcess | None:
    """The process of that number if it is the one that listens at the URL: in another container, or on another host,
    the number means somebody else, who must not be stopped.
    """
    if pid == os.getpid() or not listens_at(pid, URL(url).port):
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        return LocalProcess(psutil.Process(pid))
    return None


def process_of(pid: int) -> LocalProcess:
    """`ConfigurationError` where there is none of that number."""
    try:
        return LocalProcess(psutil.Process(pid))
    except psutil.Error as error:
        raise ConfigurationError(f"--pid {pid}: {error}") from None


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The broker, with its output on our standard error; what is left of it afterwards is killed, with its children."""
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)  # noqa: S603 - as told
    except OSError as error:
        raise ConfigurationError(f"--start {words[0]!r}: {error.strerror}") from None
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
