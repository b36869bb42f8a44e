"""Result of a simulation: time series, completed moves, and quality figures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.model.load import FloatArray, IntArray
from loadmanager.core.planning.repeated_moves import NEVER, is_back, share_again, share_back


@dataclass(frozen=True, slots=True)
class CompletedMove:
    """A bundle that has left `source` for `destination` (None: for nobody in particular), done at `at_s`.

    `share` is what it carried of all load (bytes/s, in and out) at that moment, a fraction; `clients` its producers and
    consumers. `is_own`: by the balancer itself, not at an operator's word. `moved_s` is when the balancer had moved it
    before, `left_s` when it had left the broker to which it went (see `core.planning.repeated_moves`).
    """

    at_s: float
    bundle: str
    source: BrokerId
    destination: BrokerId | None
    reason: Reason
    share: float
    load: float
    clients: int
    is_own: bool
    moved_s: float = NEVER
    left_s: float = NEVER


@dataclass(frozen=True, slots=True)
class SplitDone:
    """A bundle that was cut at these boundaries."""

    at_s: float
    bundle: str
    boundaries: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class FirstReport:
    """First report of a registration, at the time when the leader read it."""

    at_s: float
    broker: BrokerId
    incarnation: int


@dataclass(frozen=True, slots=True, eq=False)
class StepSeries:
    """Columns (T,) with a row per step, taken when the step begins, before anything is decided in it.

    The level is where all brokers' usage by load would stand if what they serve were poured over them by capacity; it
    is that of the resource of which most is needed, and what an idle broker uses does not count. `imbalance` is the
    usage by load of the busiest broker divided by the level: 1 is perfect, and what an idle fleet has. `lower_bound` is
    the imbalance that no distribution of the bundles as they are can beat, not a number where it was not worked out.
    `worst_usage` is the highest usage of a broker, idle usage included, as a fraction of its capacity: above 1 when
    more is asked of it than it has. Resources without weight in the settings do not count, nor does what clients send
    late: that goes where there is room, and shows in `backlog` and in reports.

    `brokers` serve. `moves` and `moved_load` (bytes/s), `reports`: done since the step before. `unowned` are the
    bundles that nobody serves, `unowned_load` what clients would send and receive there: it is a part of `load`, and of
    no other figure. `backlog` (bytes) is what clients have not sent for want of an owner, and will.
    """

    t_s: FloatArray
    imbalance: FloatArray
    lower_bound: FloatArray
    level: FloatArray
    worst_usage: FloatArray
    brokers: IntArray
    load: FloatArray
    moves: IntArray
    moved_load: FloatArray
    unowned: IntArray
    unowned_load: FloatArray
    backlog: FloatArray
    reports: IntArray

    def __len__(self) -> int:
        return len(self.t_s)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Everything that a run says of itself. `verdicts` counts by what was asked (shed, assign, split, drain, breaker),
    the reason, and whether it acted. `unowned_bundle_s` are seconds without service, added up over bundles;
    `reconnections` the producers and consumers that had to connect to a broker, whatever the cause.
    """

    seed: int
    step_s: float
    duration_s: float
    series: StepSeries
    moves: tuple[CompletedMove, ...]
    splits: tuple[SplitDone, ...]
    first_reports: tuple[FirstReport, ...]
    placements: int
    rounds: int
    unowned_bundle_s: float
    reconnections: int
    bundles: int
    verdicts: Mapping[tuple[str, Reason, bool], int] = field(default_factory=dict)

    @property
    def moved_again(self) -> float:
        """The shares of all load that the balancer moved again within two hours, added up over the run."""
        return share_again(self.moves)

    @property
    def returns(self) -> int:
        """Number of moves by the balancer back to a broker that the bundle had left within four hours."""
        return sum(move.is_own and is_back(move) for move in self.moves)

    @property
    def thrash(self) -> float:
        """The shares of all load that these took back, added up over the run: 0 is how it should be."""
        return share_back(self.moves)

    @property
    def moved_share(self) -> float:
        """The shares of all load that moved, added up over the run."""
        return sum((move.share for move in self.moves), 0.0)

    @property
    def clients_disturbed(self) -> int:
        return sum(move.clients for move in self.moves)

    @property
    def worst_usage(self) -> float:
        return float(self.series.worst_usage.max(initial=0.0))

    def time_above(self, imbalance: float) -> float:
        """The seconds for which the imbalance was above this one, and above what could be reached: the lower bound."""
        bound = np.where(np.isnan(self.series.lower_bound), 1.0, self.series.lower_bound)
        return self.step_s * int(np.count_nonzero(self.series.imbalance > np.maximum(imbalance, bound)))

    def time_overloaded(self, usage: float) -> float:
        """The seconds for which some broker used more than this fraction of its capacity."""
        return self.step_s * int(np.count_nonzero(self.series.worst_usage > usage))

    def find_settled(self, after_s: float, imbalance: float) -> float | None:
        """The first time from `after_s` on since when the imbalance is at most this one to the end, if there is any."""
        return self._find_since(after_s, self.series.imbalance <= imbalance)

    def find_relieved(self, after_s: float, usage: float) -> float | None:
        """The same of the worst usage."""
        return self._find_since(after_s, self.series.worst_usage <= usage)

    def _find_since(self, after_s: float, holds: np.typing.NDArray[np.bool_]) -> float | None:
        broken = np.flatnonzero(~holds)
        first = max(int(np.searchsorted(self.series.t_s, after_s)), int(broken[-1]) + 1 if len(broken) else 0)
        return float(self.series.t_s[first]) if first < len(self.series) else None

    def digest(self) -> str:
        """The same for two runs if, and only if, they are the same to the last bit."""
        taken = hashlib.sha256()
        for column in fields(self.series):
            values = getattr(self.series, column.name)
            taken.update(f"{column.name} {values.dtype.str} {len(values)}\n".encode())
            taken.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
        numbers = (self.seed, self.step_s, self.duration_s, self.placements, self.rounds, self.unowned_bundle_s)
        disturbed = self.reconnections
        counts = sorted((asked, reason.value, acted, count) for (asked, reason, acted), count in self.verdicts.items())
        for part in (numbers, disturbed, self.bundles, counts, self.moves, self.splits, self.first_reports):
            taken.update(f"{part!r}\n".encode())
        return taken.hexdigest()


def mean_known(values: FloatArray, nothing: float = 1.0) -> float:
    """Return the mean of the values that are numbers, added up from first to last; `nothing` for none."""
    known = values[~np.isnan(values)]
    return float(np.cumsum(known)[-1]) / len(known) if len(known) else nothing
