"""Hysteresis of Level: when hot brokers are relieved, cold ones filled, and which brokers and bundles rest.

    a broker       above its trigger              much too hot, or little headroom    not above its trigger
    -------------  -----------------------------  ----------------------------------  -----------------------------
    calm           HOT: its excess accumulates    is relieved, except in back-off     calm
    HOT            is relieved when its excess    is relieved, except in back-off     its excess decreases; it is
                   reaches the threshold                                              calm at 0

The trigger lies above the level by the evenness, or by the broker's noise if that is more. If one bundle alone exceeds
the level, the trigger lies that far above the heat of the bundle, since no move makes the broker less hot. The excess
is the heat above the trigger, integrated over time. Its threshold is higher for noisier brokers, so they wait longer,
and so do brokers that are less hot. A relieved broker is brought to the target, which is nearer to the level.

    a broker       is seen with a registration    is seen with another one         is not seen for an hour
    -------------  -----------------------------  -------------------------------  -----------------------
    unknown        known; is filled now if it is
                   COLD
    known          is filled when it has been     RESTS: receives nothing for      unknown
                   COLD for the calm period       the calm period; twice, four
                                                  times as long if it repeats

So a new broker is filled at once, and a restarting one is not filled, emptied and filled again. A bundle that Level has
moved rests on its broker, unless the broker lacks headroom or its excess becomes large. It may still go to a cold
broker that registered later.

Back-off: if a search finds no move for a broker, the next searches follow after 1, 2, then 4 rounds, even if the broker
is much too hot or has little headroom.

The memory also holds each broker's noise, the usual relative deviation of its load from the average.

As JSON: `{"brokers": {broker: [incarnation, rests_until_s, at_s, hot_since_s or null, noise, excess_s, cold_since_s
or null, comebacks, came_s, failures, skips]}, "put": {broker: {bundle: at_s}}}`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BoolArray, FloatArray

CALM_S = 300.0
"""Calm period: time for which a broker may be 5 % above its trigger, and for which a restarted broker receives nothing.
Reports and averages need some minutes to show a lasting change.
"""
REST_S = 15_000.0
"""Rest of a moved bundle: longer than the four hours within which a move back counts as wasted."""
REST_EXCESS_S = 1800.0
"""Excess of a broker at which the bundles that rest there may move again: a plan on wrong loads is corrected after a
while, for example after 38 minutes if the broker is 80 % above its trigger. Most peaks are shorter.
"""
ROUND_SHARE = 0.10
"""Maximum share of load per round while no broker is urgent, so that the effect is measured before more is moved."""
HOUR_SHARE = 0.50
"""Maximum share of load per hour while no broker is urgent."""
URGENT_HEAT = 1.30
"""Heat at which a hot broker is relieved at once."""
COLD = 0.70
"""Heat below which a broker is cold."""
NEARLY_FULL = 0.85
"""Usage at which a broker lacks headroom; Pulsar's threshold of an overloaded broker."""
MOST_RESTING = 5_000
"""Maximum number of remembered moves; the latest are kept."""
EVENNESS = 0.03
"""Distance of the trigger above the level without noise. Less is within the error of reports, and nobody notices."""
TARGET_HEAT = 1 + 0.3 * EVENNESS
"""Heat to which a broker is relieved: well below the trigger, so that it does not soon become hot again."""
_RELIEF_EXCESS = 0.05
"""Excess per calm period at which a noise-free broker is relieved."""
_NOISE_SAFETY_S = 5000.0
"""Safety against noise. Of ten brokers that report every quarter of an hour, noise alone brings none within a week to
an excess of this times the square of the noise, divided by the distance of the trigger from the level.
"""
_LONGEST_S = 180.0
"""Maximum time between passes that adds to the excess."""
_NOISE_WEIGHT = 0.02
"""Weight of the latest pass in the noise average."""
_MOST_NOISE = 0.15
"""Maximum of a deviation, plus twice the noise: a larger one is probably a change of load."""
_LONGEST_REST = 4.0
"""Longest rest, in calm periods."""
_MOST_SKIPS = 4
"""Maximum number of rounds that skip a broker for which nothing was found."""
_HOUR_S = 3600.0


def margin_of(noise: FloatArray) -> FloatArray:
    """Return the distance (M,) of the trigger above the heat that brokers with this noise can reach."""
    return np.maximum(EVENNESS, noise)


def relief_threshold_s(noise: FloatArray) -> FloatArray:
    """Return the excess (M,) at which brokers are relieved."""
    by_noise = _NOISE_SAFETY_S * noise * noise / margin_of(noise)
    return np.asarray(np.maximum(_RELIEF_EXCESS * CALM_S, by_noise))


def lacks_headroom(excess: FloatArray, used: FloatArray) -> BoolArray:
    """Return a mask of hot brokers that are nearly full."""
    return np.asarray((excess > 0) & (used >= NEARLY_FULL))


def is_urgent(excess: FloatArray, heat: FloatArray, used: FloatArray) -> BoolArray:
    """Return a mask of hot brokers that are relieved at once: much too hot, or nearly full."""
    return np.asarray((excess > 0) & (heat >= URGENT_HEAT) | lacks_headroom(excess, used))


class BrokerMemory(NamedTuple):
    """Memory of a broker. `at_s`: time of the last pass. `hot_since_s`, `cold_since_s`: None if it is not hot or cold.
    `noise`: a fraction of its load. `comebacks`: registrations within an hour after the rest of the previous one.
    `came_s`: time of the first registration, 0 if unknown. `failures`: searches without a move since the broker became
    hot. `skips`: rounds without a search, including this one.
    """

    incarnation: int
    rests_until_s: float
    at_s: float
    hot_since_s: float | None
    noise: float
    excess_s: float = 0.0
    cold_since_s: float | None = None
    comebacks: int = 0
    came_s: float = 0.0
    failures: int = 0
    skips: int = 0


class Budget(NamedTuple):
    """Share of all load that a round may move; for an hourly limit, also the seconds until it changes. `setting` is the
    field of the settings that limits it, None for a constant.
    """

    share: float
    seconds_left: float | None = None
    setting: str | None = None


class BrokerObservation(NamedTuple):
    """Observation of a broker: heat above its trigger, coldness, and relative deviation from its average, or NaN."""

    registration: Registration
    excess: float
    is_cold: bool
    deviation: float


@dataclass(frozen=True, slots=True)
class LevelMemory:
    """Memory between rounds: brokers, and the time when each bundle was put on its broker."""

    brokers: Mapping[str, BrokerMemory]
    put: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> LevelMemory:
        seen = {broker: BrokerMemory(*entry) for broker, entry in state.get("brokers", {}).items()}
        return cls(seen, state.get("put", {}))

    def as_state(self) -> dict[str, Any]:
        return {
            "brokers": {broker: list(seen) for broker, seen in self.brokers.items()},
            "put": {broker: dict(bundles) for broker, bundles in self.put.items()},
        }

    def after_pass(self, observations: Iterable[BrokerObservation], now_s: float) -> LevelMemory:
        """Return the memory after a pass over all brokers."""
        brokers = {broker: seen for broker, seen in self.brokers.items() if now_s - seen.at_s < _HOUR_S}
        for each in observations:
            broker = each.registration.broker
            brokers[broker] = _seen(brokers.get(broker), each, now_s)
        return LevelMemory(brokers, _put_after(self.put, now_s - REST_S))

    def after_moves(self, put: Mapping[str, Sequence[str]], relieved: Iterable[str], now_s: float) -> LevelMemory:
        """Return the memory after moves that `put` bundles on brokers.

        The excess of brokers that are no longer hot (`relieved`) restarts at 0. A bundle whose move is not executed
        does not rest, and does not count as moved.
        """
        brokers = {**self.brokers, **{each: self.brokers[each]._replace(excess_s=0.0) for each in relieved}}
        both = {broker: dict(bundles) for broker, bundles in self.put.items()}
        for broker, bundles in put.items():
            both.setdefault(broker, {}).update(dict.fromkeys(bundles, now_s))
        times = sorted((at_s for bundles in both.values() for at_s in bundles.values()), reverse=True)
        oldest_s = times[MOST_RESTING] if len(times) > MOST_RESTING else -math.inf
        return LevelMemory(brokers, _put_after(both, oldest_s))

    def after_failures(self, brokers: Iterable[str]) -> LevelMemory:
        """Return the memory after a search that found nothing for these brokers."""
        failed = {
            broker: seen._replace(failures=seen.failures + 1, skips=1 + min(2**seen.failures, _MOST_SKIPS))
            for broker, seen in ((broker, self.brokers[broker]) for broker in brokers)
        }
        return replace(self, brokers={**self.brokers, **failed})

    def noise(self, brokers: Sequence[str]) -> FloatArray:
        """Return the noise of the brokers (M,), 0 if unknown."""
        known = self.brokers
        return np.array([known[broker].noise if broker in known else 0.0 for broker in brokers], dtype=np.float64)

    def seen(self, registrations: Sequence[Registration]) -> list[BrokerMemory]:
        """Return the memory of each of them, after a pass."""
        return [self.brokers[each.broker] for each in registrations]

    def resting(self, registrations: Sequence[Registration], now_s: float) -> BoolArray:
        """Return a mask (M,) of the brokers that rest, or will from the next pass on."""

        def rests(registration: Registration) -> bool:
            seen = self.brokers.get(registration.broker)
            if seen is None:
                return False
            is_back = seen.incarnation != registration.incarnation and now_s - seen.at_s < _HOUR_S
            return is_back or seen.rests_until_s > now_s

        return np.array([rests(each) for each in registrations], dtype=bool)


def find_budget(settings: PlannerSettings, moved: Mapping[float, float], now_s: float, *, in_need: bool) -> Budget:
    """Return the share of all load that a round may move now; `moved` are shares by the time of their move."""
    round_most, hour_most = (math.inf, math.inf) if in_need else (ROUND_SHARE, HOUR_SHARE)
    a_round, round_setting = _find_limit(settings, "max_load_moved_per_cycle_percentage", round_most)
    an_hour, hour_setting = _find_limit(settings, "max_load_moved_per_hour_percentage", hour_most)
    recent = {at_s: share for at_s, share in moved.items() if share > 0 and now_s - at_s < _HOUR_S}
    left = an_hour - math.fsum(recent.values())
    if a_round <= left:
        return Budget(a_round, setting=round_setting)
    return Budget(max(0.0, left), min(recent, default=now_s) + _HOUR_S - now_s, hour_setting)


def _find_limit(settings: PlannerSettings, name: str, most: float) -> tuple[float, str | None]:
    """Return the lower of a setting and `most`, and the setting's name if that is the lower one."""
    share: float = getattr(settings, name) / 100
    return (share, name) if share < most else (most, None)


def _seen(before: BrokerMemory | None, look: BrokerObservation, now_s: float) -> BrokerMemory:
    """Update the memory of a broker with an observation."""
    seen, is_new = before, before is None
    if seen is None or seen.incarnation != look.registration.incarnation:
        seen = _first_seen(before, look.registration.incarnation, now_s)
    excess_s = max(0.0, seen.excess_s + look.excess * min(now_s - seen.at_s, _LONGEST_S))
    is_hot = look.excess > 0 or excess_s > 0
    cold_since_s = seen.cold_since_s if seen.cold_since_s is not None else now_s - (CALM_S if is_new else 0.0)
    return seen._replace(
        at_s=now_s,
        hot_since_s=(now_s if seen.hot_since_s is None else seen.hot_since_s) if is_hot else None,
        noise=_noise_after(seen.noise, look.deviation),
        excess_s=excess_s,
        cold_since_s=cold_since_s if look.is_cold else None,
        failures=seen.failures if is_hot else 0,
        skips=max(0, seen.skips - 1) if is_hot else 0,
    )


def _first_seen(former: BrokerMemory | None, incarnation: int, now_s: float) -> BrokerMemory:
    """Create the memory of a new registration; `former` is the one before."""
    if former is None:
        return BrokerMemory(incarnation, 0.0, now_s, None, 0.0, came_s=now_s)
    comebacks = 1 + (former.comebacks if now_s - former.rests_until_s < _HOUR_S else 0)
    rest_s = CALM_S * min(2.0 ** (comebacks - 1), _LONGEST_REST)
    return BrokerMemory(incarnation, now_s + rest_s, now_s, None, 0.0, comebacks=comebacks, came_s=former.came_s)


def _noise_after(noise: float, off: float) -> float:
    if math.isnan(off):
        return noise
    off = min(off, _MOST_NOISE + 2 * noise)
    return math.sqrt((1 - _NOISE_WEIGHT) * noise * noise + _NOISE_WEIGHT * off * off)


def _put_after(put: Mapping[str, Mapping[str, float]], oldest_s: float) -> Mapping[str, Mapping[str, float]]:
    """Drop entries up to that time."""
    kept = {
        broker: {name: at_s for name, at_s in bundles.items() if at_s > oldest_s} for broker, bundles in put.items()
    }
    return {broker: bundles for broker, bundles in kept.items() if bundles}
