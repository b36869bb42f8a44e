"""Which brokers are sick, by what they say of how they serve: far off their peers, and for some time.

A sick broker looks idle because it fails, so every strategy would give it more. While it is sick, nothing is moved to
it (`core/constraints/filters.py`); what it has it keeps, and may give away.

| phase      | far off its peers now                                | not far off now                               |
|------------|------------------------------------------------------|-----------------------------------------------|
| WELL       | SUSPECT                                              |                                               |
| SUSPECT    | for the patience, and a third allows it: SICK        | WELL                                          |
| SICK       |                                                      | RECOVERING                                    |
| RECOVERING | SICK                                                 | for twice the patience: WELL                  |

*Far off* is above a bar: the least that counts, three times the median of all that say this figure, and six deviations
above that, by the median of deviations; for one that is sick already half the bar, so that it does not come and go. A
report holds until the next one. A broker that registers again is another one, and well.

Never is more than a third of those with figures sick: when more would be, the cause is common, and none is added. When
brokers have gone and too many are sick for those left, the last to become so are suspects again. Suspects that may not
become sick are only given less than others, the sicker the less (`sick_with_others`).

Where the median itself is above the least that counts, most brokers may be sick, and it shows nothing. There a broker
is a suspect above three times the lowest figure, and counts when more than a third are.
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
"""A figure below this is that of a broker that is well, however good its peers are."""
FEWEST_PEERS = 3
"""Among fewer brokers nobody can tell which of them is off."""
_TIMES_MEDIAN, _DEVIATIONS, _OF_NORMAL = 3.0, 6.0, 1.4826
_BAR_WHILE_SICK = 0.5
WELL_AFTER = 2.0
"""A broker comes back when it has been like its peers for so many times the patience."""
_MOST_CHANGE = 1.5


class HealthPhase(enum.Enum):
    WELL = "well"
    SUSPECT = "suspect"
    SICK = "sick"
    RECOVERING = "recovering"


_KEPT_AWAY = (HealthPhase.SICK, HealthPhase.RECOVERING)


@dataclass(frozen=True, slots=True)
class SickBrokers:
    """What a look has found: the brokers to give nothing to, and why; those that are far off, and left in, and why."""

    sick: Mapping[BrokerId, Verdict] = field(default_factory=dict)
    left_in: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class _Off:
    """By which figure a broker is, or was last, far off, and what the median of its peers was."""

    figure: str
    value: float
    peers: float
    times: float
    """Multiple of the bar of suspects."""
    is_far: bool
    """Whether it is above the bar of the sick, too."""

    def why(self) -> dict[str, Figure]:
        name, factor, unit = _SHOWN[self.figure]
        value, peers = (f"{factor * figure:.4g}{unit}" for figure in (self.value, self.peers))
        return {"figure": name, "value": value, "peers": peers, "times": round(self.times, 2)}


_SHOWN = {"latency_ms": ("latency", 1, " ms"), "error_share": ("share of errors", 100, " %"), "queue": ("queue", 1, "")}


@dataclass(slots=True)
class _Life:
    """One life of a broker, in its phase since `since_s`; `sick_since_s` and `off` are of the time when it was off."""

    registration: Registration
    figures: HealthFigures | None = None
    phase: HealthPhase = HealthPhase.WELL
    since_s: float = 0.0
    sick_since_s: float = 0.0
    off: _Off | None = None

    def turn(self, phase: HealthPhase, now_s: float) -> None:
        self.phase, self.since_s = phase, now_s


class HealthDetector:
    """The machine: it is told what is reported, who is gone, and when somebody wants to know."""

    def __init__(self) -> None:
        self._lives: dict[BrokerId, _Life] = {}
        self._bars: dict[str, _Bars] = {}
        """Of the last look, by figure."""

    def hear(self, registration: Registration, figures: HealthFigures | None, now_s: float) -> None:
        """A broker has reported; without any figures it is not far off."""
        life = self._lives.get(registration.broker)
        if life is None or life.registration != registration:
            life = self._lives[registration.broker] = _Life(registration)
        life.figures = figures
        self._judge(life, now_s)

    def forget(self, broker: BrokerId) -> None:
        """The broker is gone."""
        self._lives.pop(broker, None)

    def look(self, now_s: float, patience_s: float | None) -> SickBrokers:
        """Who is sick now; with no patience at all nobody ever is."""
        if patience_s is None:
            for life in self._lives.values():
                life.turn(HealthPhase.WELL, now_s)
            return SickBrokers()
        self._bars = _bars_of([life.figures for life in self._lives.values() if life.figures is not None])
        for life in self._lives.values():
            self._judge(life, now_s)
            if life.phase is HealthPhase.RECOVERING and now_s - life.since_s >= WELL_AFTER * patience_s:
                life.turn(HealthPhase.WELL, now_s)
        left_in = self._admit(now_s, patience_s)
        sick = {
            broker: _sick(life, now_s, patience_s)
            for broker, life in sorted(self._lives.items())
            if life.phase in _KEPT_AWAY
        }
        return SickBrokers(sick, left_in)

    def phase_of(self, broker: BrokerId) -> HealthPhase:
        life = self._lives.get(broker)
        return HealthPhase.WELL if life is None else life.phase

    def _judge(self, life: _Life, now_s: float) -> None:
        """What the figures of now make of its phase, whatever others are."""
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

    def _find_off(self, life: _Life) -> _Off | None:
        """The figure that is furthest above its bar, None when none is above it."""
        is_kept_away = life.phase in _KEPT_AWAY
        said = {} if life.figures is None else life.figures.said()
        above = [
            _Off(name, value, bars.peers, value / bars.suspect, value > bars.sick)
            for name, value in said.items()
            if name in self._bars
            for bars in [self._bars[name]]
            if value > (_BAR_WHILE_SICK * bars.sick if is_kept_away else bars.suspect)
        ]
        return max(above, key=lambda each: (each.is_far, each.times), default=None)

    def _admit(self, now_s: float, patience_s: float) -> tuple[Verdict, ...]:
        """Let those become sick that have been suspects for long enough, if a third allows it; say who of the others
        are no better.
        """
        lives = self._lives.values()
        brokers = sum(life.figures is not None for life in lives)
        most = brokers // 3
        sick = sorted((life for life in lives if life.phase in _KEPT_AWAY), key=lambda life: life.sick_since_s)
        for life in sick[most:]:
            life.turn(HealthPhase.SUSPECT, life.sick_since_s)
            self._judge(life, now_s)
        ripe = [life for life in lives if life.phase is HealthPhase.SUSPECT and now_s - life.since_s >= patience_s]
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
    """Whether it is worth a report: a figure has come or gone, or is by half larger or smaller, unless both are far
    below the least that counts.
    """
    one, other = ({} if each is None else each.said() for each in (before, now))
    if one.keys() != other.keys():
        return True
    return any(
        max(one[name], other[name]) > max(_MOST_CHANGE * min(one[name], other[name]), _BAR_WHILE_SICK * least)
        for name, least in LEAST.said().items()
        if name in one
    )


@dataclass(frozen=True, slots=True)
class _Bars:
    """Of one figure: what makes a suspect and what makes sick, and the figure of peers that the first goes by."""

    suspect: float
    sick: float
    peers: float


def _bars_of(all_figures: list[HealthFigures]) -> dict[str, _Bars]:
    bars = {}
    for name, least in LEAST.said().items():
        said = [figures.said() for figures in all_figures]
        values = [each[name] for each in said if name in each]
        if len(values) >= FEWEST_PEERS:
            middle, lowest = statistics.median(values), min(values)
            deviation = _OF_NORMAL * statistics.median(abs(each - middle) for each in values)
            sick = max(least, _TIMES_MEDIAN * middle, middle + _DEVIATIONS * deviation)
            by_lowest = max(least, _TIMES_MEDIAN * lowest)
            is_most = middle > least and by_lowest < sick
            bars[name] = _Bars(by_lowest, sick, lowest) if is_most else _Bars(sick, sick, middle)
    return bars


def _sick(life: _Life, now_s: float, patience_s: float) -> Verdict:
    left_s = WELL_AFTER * patience_s - (now_s - life.since_s if life.phase is HealthPhase.RECOVERING else 0.0)
    seconds: dict[str, Figure] = {"seconds": round(now_s - life.sick_since_s), "well_after_s": round(left_s)}
    return Verdict(life.registration.broker, FilterReason.BROKER_SICK, acted=False, why=_off_of(life) | seconds)


def _off_of(life: _Life) -> dict[str, Figure]:
    assert life.off is not None, "only a broker that was far off is a suspect"
    return life.off.why()
