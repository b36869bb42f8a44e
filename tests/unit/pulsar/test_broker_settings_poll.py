from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from loadmanager.core.domain.names import BrokerId
from loadmanager.pulsar.broker_settings import BrokerSettings, BrokerSettingsPoll
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError
from loadmanager.pulsar.take_over import SHEDS

BROKER = BrokerId("b1:8080")
LONG_S = 3_600.0


@dataclass
class SettingsClient:
    """One broker, which is as late with what changes as it likes."""

    sheds: str = "false"
    asked: int = 0
    error: Exception | None = None

    def address(self, broker: BrokerId) -> str:
        return f"http://{broker}"

    async def settings(self, url: str) -> BrokerSettings:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return BrokerSettings(url, "c1", {SHEDS: self.sheds})


@dataclass
class Clock:
    now_s: float = 1_000.0
    tells: SettingsClient = field(default_factory=SettingsClient)
    dynamic: dict[str, str] = field(default_factory=dict)

    def monotonic(self) -> float:
        return self.now_s

    async def pass_s(self, brokers: BrokerSettingsPoll, seconds: float) -> None:
        self.now_s += seconds
        await brokers.ask([BROKER], self.dynamic)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("loadmanager.pulsar.broker_settings.time", clock)
    return clock


@pytest.fixture
def brokers(clock: Clock) -> BrokerSettingsPoll:
    return BrokerSettingsPoll(clock.tells)


@pytest.mark.parametrize("switch", ["true", "false"])
async def test_broker_is_asked_again_until_it_applied_a_change(
    clock: Clock, brokers: BrokerSettingsPoll, switch: str
) -> None:
    clock.tells.sheds = "false" if switch == "true" else "true"
    await clock.pass_s(brokers, 0)
    await clock.pass_s(brokers, LONG_S)
    clock.dynamic = {SHEDS: switch}
    await clock.pass_s(brokers, 0)  # quicker than the broker, which reads it a moment later
    clock.tells.sheds = switch
    await clock.pass_s(brokers, 10)
    assert brokers.shedding() == ([BROKER] if switch == "true" else [])


async def test_broker_is_not_asked_again_after_a_while(clock: Clock, brokers: BrokerSettingsPoll) -> None:
    clock.dynamic = {SHEDS: "false"}
    for _ in range(12):
        await clock.pass_s(brokers, 10)
    asked = clock.tells.asked
    for _ in range(12):
        await clock.pass_s(brokers, 10)
    assert clock.tells.asked == asked
    await clock.pass_s(brokers, LONG_S)
    assert clock.tells.asked == asked + 1


async def test_refusing_broker_is_unknown_and_silent_one_keeps_its_settings(
    clock: Clock, brokers: BrokerSettingsPoll
) -> None:
    await clock.pass_s(brokers, 0.0)
    clock.tells.error = PulsarUnreachableError("no answer", was_not_heard=False)
    await clock.pass_s(brokers, LONG_S)
    assert (brokers.unknown(), list(brokers.faults)) == ([], [BROKER])
    clock.tells.error = PulsarRefusedError("its token has ended", 401)
    await clock.pass_s(brokers, LONG_S)
    assert brokers.unknown() == [BROKER]
    clock.tells.error = None
    await clock.pass_s(brokers, LONG_S)
    assert (brokers.unknown(), brokers.faults) == ([], {})
