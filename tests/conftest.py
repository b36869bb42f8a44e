"""Fixtures for every test: see `support/` for the builders and the real servers."""

import gc
import logging
import os
import re
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import structlog
from coverage import Coverage
from hypothesis import HealthCheck, settings
from hypothesis.errors import InvalidArgument
from support.deep import deep_except
from support.delays import Seed
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# The cluster beside which tests run is that of the examples; behind everything else, so that it hides no other package.
sys.path.append(str(Path(__file__).parents[1]))

pytest_plugins = [
    "support.browser",
    "support.leaks",
    "support.demo",
    "support.processes",
    "support.requirements",
    "support.retries",
    "support.zookeeper",
]

# No deadline: how long an example takes says more about what else the machine does than about the code.
# The same tests draw the same examples in every run; "search" draws new ones.
_ALIKE = settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _ALIKE, max_examples=25)
settings.register_profile("deep", _ALIKE, max_examples=100)
settings.register_profile("search", _ALIKE, max_examples=200, derandomize=False)
# For each of thousands of mutants.
settings.register_profile("few", _ALIKE, max_examples=10)
settings.load_profile("quick")

TOGETHER = {
    "tests/chaos/test_cut_off_leader.py::": "many processes",
    "tests/chaos/test_every_step.py::test_step_survives_a_dead_server": "many processes",
    "tests/chaos/test_killed_processes.py::": "many processes",
    "tests/integration/test_demo.py::": "many processes",
    "tests/integration/test_small_fleet.py::": "many processes",
    "tests/integration/test_image_steps.py::": "image",
    "tests/integration/test_pipeline_end_to_end.py::": "many processes",
    "tests/page/": "page",
    # Half of the deep tests on Spark, in a JVM of its own: a single one would go on when all other tests have ended.
    "tests/pipeline/test_attribution.py::": "spark, ingest",
    "tests/pipeline/test_incremental.py::": "spark, ingest",
    "tests/pipeline/test_reject_reasons.py::": "spark, ingest",
    "tests/pipeline/test_stream_command.py::": "spark, ingest",
    "tests/pipeline/": "spark",
    "tests/real_pulsar/": "pulsar",
}
"""Prefixes of tests that run one after the other, in one process: they share something that takes long to
make, or start so many processes that two of them at a time would be in each other's way.
"""

WAITING = ("tests/chaos/", "tests/integration/", "tests/page/")
"""Prefixes of tests that mostly wait for processes that they start."""

MANY_SEEDS = "tests/unit/leader/"
"""Prefix of tests that run with each of the seeds; all others have the first one."""

COVERING = (
    "tests/unit/core/",
    "tests/conformance/",
    "tests/unit/agent/",
    "tests/unit/broker/test_contract.py",
    "tests/unit/client/",
    "tests/unit/store/",
    "tests/contract/",
)
"""Prefixes of tests that must reach every branch of the core. All others run without counting, in
half the time: what only a whole cluster, or chance, happens to reach is not tried.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without coverage, in half the time, once the measured modules were imported with it."""
    running = Coverage.current()
    if running is not None:
        _import_all(session.config.rootpath, running.config.run_include or ())
    with _coverage_stopped():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure coverage in tests of `COVERING` alone."""
    with nullcontext() if item.nodeid.startswith(COVERING) else _coverage_stopped():
        return (yield)


def _import_all(root: Path, patterns: Iterable[str]) -> None:
    for file in sorted((root / "loadmanager").rglob("*.py")):
        path = file.relative_to(root)
        if any(fnmatch(str(path), pattern) for pattern in patterns):
            import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))


@contextmanager
def _coverage_stopped() -> Iterator[None]:
    """Stop coverage for a while. In xdist's workers two run, of which pytest-cov's marker `no_cover` stops one only."""
    stopped = []
    while (running := Coverage.current()) is not None:
        running.stop()
        stopped.append(running)
    try:
        yield
    finally:
        for each in reversed(stopped):
            each.start()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store-seeds",
        default="1,2",
        help="seeds of the delays of messages of stores in memory; tests of the leader run with each of them (all"
        " but the first are deep), other tests with the first",
    )
    parser.addoption("--rewrite-traces", action="store_true", help="write tests/protocol/traces/*.txt anew")


def pytest_report_header(config: pytest.Config) -> str:
    return f"store seeds: {config.getoption('--store-seeds')}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.nodeid.startswith(MANY_SEEDS):
        seeds = _store_seeds(metafunc.config)
        cases = deep_except(seeds[:1], seeds)
        metafunc.parametrize("_store_seed", cases, indirect=True, ids=[f"seed-{seed}" for seed in seeds])


@pytest.fixture(autouse=True)
def _store_seed(request: pytest.FixtureRequest) -> None:
    Seed.value = getattr(request, "param", _store_seeds(request.config)[0])


def _store_seeds(config: pytest.Config) -> list[int]:
    given = config.getoption("--store-seeds")
    try:
        return [int(word) for word in given.split(",")]
    except ValueError:
        raise pytest.UsageError(f"--store-seeds {given}: expected whole numbers, such as 1,2") from None


class _SideBySide(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Has tests that wait run beside tests that compute, so that cores are neither idle nor fought for; and those of
    `TOGETHER` one after the other, as xdist's own groups would, which go by an attribute that pytest has no more.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((group for start, group in TOGETHER.items() if nodeid.startswith(start)), nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """The next tests of the worker's kind, or of the other one if none are left."""
        computes = _computes(node.gateway.id)
        for scope, tests in self.workqueue.items():
            if next(iter(tests)).startswith(WAITING) != computes:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)


def _computes(worker: str) -> bool:
    """Return true for every second xdist worker (`gw0`, `gw1`, ...), which begins with CPU-bound tests."""
    return int(worker.removeprefix("gw")) % 2 == 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _SideBySide(config, log)


_STATE = TemporaryDirectory(prefix="loadmanager-tests-")
"""Folder of histories of nodes that a test gives none: nothing is left in anybody's home."""


def pytest_configure(config: pytest.Config) -> None:
    _store_seeds(config)
    _check_profile(config.getoption("--hypothesis-profile", default=None))
    gc.disable()
    _log_plainly()
    os.environ["XDG_STATE_HOME"] = _STATE.name
    os.environ.pop("STATE_DIRECTORY", None)


def _check_profile(name: str | None) -> None:
    try:
        settings.get_profile(name or "quick")
    except InvalidArgument:
        message = f"--hypothesis-profile {name}: expected quick, deep, search or few"
        raise pytest.UsageError(message) from None


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse a marker that does not exist: pytest would deselect everything, or nothing."""
    known = {re.split(r"\W", line)[0] for line in session.config.getini("markers")}
    unknown = set(re.findall(r"\w+", session.config.option.markexpr)) - known - {"and", "or", "not"}
    if unknown:
        raise pytest.UsageError(f"-m: no marker {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection, which would walk through thousands of them each time."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    _STATE.cleanup()


def _log_plainly() -> None:
    """Log without rich, which takes a second for each traceback."""
    structlog.reset_defaults()
    *before, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*before, plain])


def pytest_runtest_teardown() -> None:
    """Undo what a command has set up: its logs go where its output went, and that is closed by now."""
    _log_plainly()
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
            logging.root.removeHandler(handler)
