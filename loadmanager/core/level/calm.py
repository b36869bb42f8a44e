"""When Level acts: which brokers are hot, and since when; which have come back just now; what has been moved.

    a broker      hot: heat above 1 + evenness    much too hot: heat from 1.3 on, or little headroom    not hot
    ------------  ------------------------------  ----------------------------------------------------  ------------
    is not hot    HOT since now                   is relieved now                                       is not hot
    HOT           HOT; relieved when it has       is relieved now                                       is not hot
                  waited for its calm

The calm that a broker waits for is shorter the hotter it is. Once it is relieved, it is brought down to a target that
is nearer to the level than what made it hot, so it does not become hot again at once.

    a broker      is seen with a registration       is seen with another one       is not seen for an hour
    ------------  --------------------------------  -----------------------------  -----------------------
    unknown       known; may take at once
    known         known; may take, once its rest    known; RESTS for the calm      unknown
                  is over

So a new broker is filled at once, and one that restarts is not filled, emptied and filled again.

What is remembered besides is how far from its average the load of each broker usually is: its noise.

As JSON: `{"brokers": {broker: [incarnation, rests_until_s, seen_s, hot_since_s or null, noise]}, "moved": [[at_s,
share]]}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmanager.core.load import BoolArray, FloatArray
from loadmanager.core.ownership import Registration
from loadmanager.core.settings import PlannerSettings

MUCH = 1.30
"""A broker as hot as this is relieved at once."""
_NEWEST = 0.02
"""The weight of the newest look in what is usual."""
_MOST_NOISE = 0.15
"""What is further from the average than twice the noise and this does not count for more: it may be a change."""
_TARGET_PART = 0.3
"""The target is this part of the evenness above the level."""
_A_ROUND, _A_ROUND_IN_NEED = 0.10, 0.50
"""What part of all load may move in a round; when some broker is much too hot."""
_AN_HOUR, _AN_HOUR_IN_NEED = 0.50, 1.00
_HOUR_S = 3600.0
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Bands:
    """Heats from which on a broker is hot, and to which it is brought; the calm that one waits for that is just hot;
    from which usage on, a fraction, it is relieved at once.
    """

    trigger: float
    target: float
    calm_s: float
    most_usage: float

    @classmethod
    def of(cls, settings: PlannerSettings) -> Bands:
        evenness = settings.level_evenness_percentage / 100
        return cls(
            trigger=1 + evenness,
            target=1 + _TARGET_PART * evenness,
            calm_s=settings.level_calm_minutes * _MINUTE_S,
            most_usage=1 - settings.level_headroom_percentage / 100,
        )

    def wait_s(self, heat: float) -> float:
        """How long a broker of this heat waits, if it has headroom."""
        if heat >= MUCH:
            return 0.0
        return self.calm_s * min((MUCH - heat) / max(MUCH - self.trigger, 1e-9), 1.0)

    def is_hot(self, heat: FloatArray, used: FloatArray) -> BoolArray:
        return np.asarray((heat > self.trigger) | self.is_urgent(heat, used))

    def is_urgent(self, heat: FloatArray, used: FloatArray) -> BoolArray:
        """Which brokers wait for nothing."""
        return np.asarray((heat > self.trigger) & (heat >= MUCH) | (heat > self.target) & (used >= self.most_usage))


@dataclass(frozen=True, slots=True)
class Seen:
    """What is remembered of a broker; `hot_since_s` is None while it is not hot. `noise` is a part of its load."""

    incarnation: int
    rests_until_s: float
    at_s: float
    hot_since_s: float | None
    noise: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered between rounds: of brokers, and what share of all load was moved when."""

    brokers: Mapping[str, Seen]
    moved: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Memory:
        seen = {broker: Seen(*entry) for broker, entry in state.get("brokers", {}).items()}
        return cls(seen, tuple((at_s, share) for at_s, share in state.get("moved", ())))

    def as_state(self) -> dict[str, Any]:
        brokers = {
            broker: [seen.incarnation, seen.rests_until_s, seen.at_s, seen.hot_since_s, seen.noise]
            for broker, seen in self.brokers.items()
        }
        return {"brokers": brokers, "moved": [list(each) for each in self.moved]}

    def after_look(
        self,
        registrations: Sequence[Registration],
        is_hot: BoolArray,
        deviation: FloatArray,
        calm_s: float,
        now_s: float,
    ) -> Memory:
        """With what is seen of all brokers now: which are hot, and how far from their averages their loads are."""
        brokers = {broker: seen for broker, seen in self.brokers.items() if now_s - seen.at_s < _HOUR_S}
        for registration, hot, off in zip(registrations, is_hot.tolist(), deviation.tolist(), strict=True):
            before = brokers.get(registration.broker)
            rests_until_s, since_s, noise = 0.0, None, 0.0
            if before is not None and before.incarnation == registration.incarnation:
                rests_until_s, since_s, noise = before.rests_until_s, before.hot_since_s, before.noise
            elif before is not None:
                rests_until_s = now_s + calm_s
            since_s = (now_s if since_s is None else since_s) if hot else None
            seen = Seen(registration.incarnation, rests_until_s, now_s, since_s, _noise_after(noise, off))
            brokers[registration.broker] = seen
        moved = tuple((at_s, share) for at_s, share in self.moved if now_s - at_s < _HOUR_S)
        return Memory(brokers, moved)

    def with_moved(self, share: float, now_s: float) -> Memory:
        return Memory(self.brokers, (*self.moved, (now_s, share))) if share else self

    def hot_for_s(self, registrations: Sequence[Registration], now_s: float) -> FloatArray:
        """(M,): for how long each has been hot, not a number for one that is not."""
        since_s = [self.brokers[each.broker].hot_since_s for each in registrations]
        return np.array([np.nan if each is None else now_s - each for each in since_s], dtype=np.float64)

    def resting(self, registrations: Sequence[Registration], now_s: float) -> BoolArray:
        """(M,): which came back so recently that they are given nothing."""
        return np.array([self.brokers[each.broker].rests_until_s > now_s for each in registrations], dtype=bool)

    def budget(self, *, in_need: bool) -> float:
        """What share of all load a round may move now."""
        a_round, an_hour = (_A_ROUND_IN_NEED, _AN_HOUR_IN_NEED) if in_need else (_A_ROUND, _AN_HOUR)
        return max(0.0, min(a_round, an_hour - sum(share for _, share in self.moved)))


def noise_of(state: Mapping[str, Any], brokers: Sequence[str]) -> tuple[float, ...]:
    """The noise of each broker by what is remembered, 0 of one that is not known."""
    known = state.get("brokers", {})
    return tuple(float(known[broker][-1]) if broker in known else 0.0 for broker in brokers)


def _noise_after(noise: float, off: float) -> float:
    if math.isnan(off):
        return noise
    off = min(off, _MOST_NOISE + 2 * noise)
    return math.sqrt((1 - _NEWEST) * noise * noise + _NEWEST * off * off)
