"""Detection of sick brokers by reported health figures: outliers among their peers for some time.

A sick broker looks idle because it fails, so every strategy would give it more. While it is sick it receives no bundles
(`core/constraints/filters.py`); it keeps its own, and may give them away.

| phase      | far off its peers now                                | not far off now                               |
|------------|------------------------------------------------------|-----------------------------------------------|
| WELL       | SUSPECT                                              |                                               |
| SUSPECT    | for `sick_after_s`, a third allows it: SICK          | WELL                                          |
| SICK       |                                                      | RECOVERING                                    |
| RECOVERING | SICK                                                 | for twice `sick_after_s`: WELL                |

*Far off* is above a threshold: the minimum figure, three times the median of all brokers with this figure, and that
median plus six standard deviations (each 1.4826 times the median absolute deviation). For a sick broker the threshold
is halved (hysteresis). A report is valid until the next one. A re-registered broker starts as WELL.

At most a third of the brokers with figures are sick. If more would be, the cause is common, and none is added. When
brokers leave and the sick ones exceed the limit, the latest become suspects again. Suspects beyond the limit receive
less than others, in proportion to their figures (`sick_with_others`).

Where the median itself is above the minimum, most brokers may be sick, so the median proves nothing. Then a broker
above three times the lowest figure is a suspect, and receives less once more than a third of the brokers are suspects.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import FilterReason, ValidationReason
from loadmanager.core.domain.resources import HealthFigures

LEAST = HealthFigures(latency_ms=100.0, error_share=0.05, queue=100.0)
"""Minimum figures of an outlier; a broker below them is healthy whatever its peers report."""
FEWEST_PEERS = 3
"""Minimum number of brokers for a comparison."""
_TIMES_MEDIAN, _DEVIATIONS, _OF_NORMAL = 3.0, 6.0, 1.4826
_BAR_WHILE_SICK = 0.5
WELL_AFTER = 2.0
"""Recovery time as a multiple of the time after which a broker is sick."""
_MOST_CHANGE = 1.5


class HealthPhase(enum.Enum):
    WELL = "well"
    SUSPECT = "suspect"
    SICK = "sick"
    RECOVERING = "recovering"


_KEPT_AWAY = (HealthPhase.SICK, HealthPhase.RECOVERING)


@dataclass(frozen=True, slots=True)
class SickBrokers:
    """Result of a pass: sick brokers, and outliers that are not excluded, each with the reason."""

    sick: Mapping[BrokerId, Verdict] = field(default_factory=dict)
    left_in: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class _Off:
    """Worst figure of an outlier, and the median of its peers."""

    figure: str
    value: float
    peers: float
    times: float
    """Ratio to the suspects' threshold."""
    is_far: bool
    """True if above the threshold of sick brokers."""

    def why(self) -> dict[str, Figure]:
        name, factor, unit = _SHOWN[self.figure]
        value, peers = (f"{factor * figure:.4g}{unit}" for figure in (self.value, self.peers))
        return {"figure": name, "value": value, "peers": peers, "times": round(self.times, 2)}


_SHOWN = {"latency_ms": ("latency", 1, " ms"), "error_share": ("share of errors", 100, " %"), "queue": ("queue", 1, "")}


@dataclass(slots=True)
class _BrokerState:
    """State of a registration, in `phase` since `since_s`; `sick_since_s` and `off` are of its last outlier time."""

    registration: Registration
    figures: HealthFigures | None = None
    phase: HealthPhase = HealthPhase.WELL
    since_s: float = 0.0
    sick_since_s: float = 0.0
    off: _Off | None = None

    def turn(self, phase: HealthPhase, now_s: float) -> None:
        self.phase, self.since_s = phase, now_s


class HealthDetector:
    """State machine: takes reports and departures, and returns the sick brokers on request."""

    def __init__(self) -> None:
        self._lives: dict[BrokerId, _BrokerState] = {}
        self._bars: dict[str, _Bars] = {}
        """Thresholds of the last pass, by figure."""

    def hear(self, registration: Registration, figures: HealthFigures | None, now_s: float) -> None:
        """Take a report; a broker without figures is no outlier."""
        life = self._lives.get(registration.broker)
        if life is None or life.registration != registration:
            life = self._lives[registration.broker] = _BrokerState(registration)
        life.figures = figures
        self._judge(life, now_s)

    def forget(self, broker: BrokerId) -> None:
        """Forget a broker that has left."""
        self._lives.pop(broker, None)

    def look(self, now_s: float, sick_after_s: float | None) -> SickBrokers:
        """Return the sick brokers; none if `sick_after_s` is None."""
        if sick_after_s is None:
            for life in self._lives.values():
                life.turn(HealthPhase.WELL, now_s)
            return SickBrokers()
        self._bars = _bars_of([life.figures for life in self._lives.values() if life.figures is not None])
        for life in self._lives.values():
            self._judge(life, now_s)
            if life.phase is HealthPhase.RECOVERING and now_s - life.since_s >= WELL_AFTER * sick_after_s:
                life.turn(HealthPhase.WELL, now_s)
        left_in = self._admit(now_s, sick_after_s)
        sick = {
            broker: _sick(life, now_s, sick_after_s)
            for broker, life in sorted(self._lives.items())
            if life.phase in _KEPT_AWAY
        }
        return SickBrokers(sick, left_in)

    def _judge(self, life: _BrokerState, now_s: float) -> None:
        off = self._find_off(life)
        if off is not None:
            life.off = off
        match life.phase, off is not None:
            case HealthPhase.WELL, True:
                life.turn(HealthPhase.SUSPECT, now_s)
            case HealthPhase.SUSPECT, False:
                life.turn(HealthPhase.WELL, now_s)
            case HealthPhase.SICK, False:
                life.turn(HealthPhase.RECOVERING, now_s)
            case HealthPhase.RECOVERING, True:
                life.turn(HealthPhase.SICK, now_s)

    def _find_off(self, life: _BrokerState) -> _Off | None:
        """Find the figure furthest above its threshold, None if there is none."""
        is_kept_away = life.phase in _KEPT_AWAY
        figures = {} if life.figures is None else life.figures.by_name()
        above = [
            _Off(name, value, bars.peers, value / bars.suspect, value > bars.sick)
            for name, value in figures.items()
            if name in self._bars
            for bars in [self._bars[name]]
            if value > (_BAR_WHILE_SICK * bars.sick if is_kept_away else bars.suspect)
        ]
        return max(above, key=lambda each: (each.is_far, each.times), default=None)

    def _admit(self, now_s: float, sick_after_s: float) -> tuple[Verdict, ...]:
        """Promote suspects to sick, up to a third of the brokers; return verdicts on the remaining ones."""
        lives = self._lives.values()
        brokers = sum(life.figures is not None for life in lives)
        most = brokers // 3
        sick = sorted((life for life in lives if life.phase in _KEPT_AWAY), key=lambda life: life.sick_since_s)
        for life in sick[most:]:
            life.turn(HealthPhase.SUSPECT, life.sick_since_s)
            self._judge(life, now_s)
        ripe = [life for life in lives if life.phase is HealthPhase.SUSPECT and now_s - life.since_s >= sick_after_s]
        off = min(len(sick), most) + len(ripe)
        far = [life for life in ripe if life.off is not None and life.off.is_far]
        if min(len(sick), most) + len(far) <= most:
            for life in far:
                life.sick_since_s = life.since_s
                life.turn(HealthPhase.SICK, now_s)
        if off <= most:
            return ()
        why: dict[str, Figure] = {"off": off, "brokers": brokers}
        ripe.sort(key=lambda life: life.registration.broker)
        return tuple(
            Verdict(life.registration.broker, ValidationReason.SICK_WITH_OTHERS, acted=False, why=_off_of(life) | why)
            for life in ripe
            if life.phase is HealthPhase.SUSPECT
        )


def has_changed(before: HealthFigures | None, now: HealthFigures | None) -> bool:
    """Return True if the change is worth a report: a figure appeared or disappeared, or changed by half, unless both
    values are far below the minimum of an outlier.
    """
    one, other = ({} if each is None else each.by_name() for each in (before, now))
    if one.keys() != other.keys():
        return True
    return any(
        max(one[name], other[name]) > max(_MOST_CHANGE * min(one[name], other[name]), _BAR_WHILE_SICK * least)
        for name, least in LEAST.by_name().items()
        if name in one
    )


@dataclass(frozen=True, slots=True)
class _Bars:
    """Thresholds of one figure for suspects and for sick brokers, and the peers' figure behind the first."""

    suspect: float
    sick: float
    peers: float


def _bars_of(all_figures: list[HealthFigures]) -> dict[str, _Bars]:
    bars = {}
    for name, least in LEAST.by_name().items():
        by_name = [figures.by_name() for figures in all_figures]
        values = [each[name] for each in by_name if name in each]
        if len(values) >= FEWEST_PEERS:
            middle, lowest = statistics.median(values), min(values)
            deviation = _OF_NORMAL * statistics.median(abs(each - middle) for each in values)
            sick = max(least, _TIMES_MEDIAN * middle, middle + _DEVIATIONS * deviation)
            by_lowest = max(least, _TIMES_MEDIAN * lowest)
            is_most = middle > least and by_lowest < sick
            bars[name] = _Bars(by_lowest, sick, lowest) if is_most else _Bars(sick, sick, middle)
    return bars


def _sick(life: _BrokerState, now_s: float, sick_after_s: float) -> Verdict:
    left_s = WELL_AFTER * sick_after_s - (now_s - life.since_s if life.phase is HealthPhase.RECOVERING else 0.0)
    seconds: dict[str, Figure] = {"seconds": round(now_s - life.sick_since_s), "well_after_s": round(left_s)}
    return Verdict(life.registration.broker, FilterReason.BROKER_SICK, acted=False, why=_off_of(life) | seconds)


def _off_of(life: _BrokerState) -> dict[str, Figure]:
    assert life.off is not None, "only a broker that was far off is a suspect"
    return life.off.why()
