"""Cost of an interruption: clients reconnect, and send what they have buffered.

the bundle                    its clients
----------                    -----------
loses its broker              buffer the messages that they would have sent, for at most `backlog_most_s`
is served again               reconnect, which costs the broker CPU, and send the backlog: at up to `catch_up_factor`
                              times the load in total, limited by the free capacity of the broker
is served for the first time  cost nothing, as there is no backlog
"""

from __future__ import annotations

from collections import deque

import numpy as np

from loadmanager.core.model.load import CPU, METRICS, FloatArray, IntArray
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules
from loadmanager.lab.simulate.sim_brokers import Carried, SimFleet
from loadmanager.lab.simulate.sim_bundles import BundleTable, SimLoads

_CORE = 100.0
"""Percent of one core."""


class Clients:
    """Clients by bundle row: start of the interruption; backlog in seconds of load; and its send rate in this step, in
    seconds per second.

    `reconnections` counts the producers and consumers that had to connect to a broker again.
    """

    def __init__(self, rules: WorldRules) -> None:
        self.reconnections = 0
        self._rules = rules
        self._then_s = 0.0
        self._unserved_since: FloatArray = np.empty(0)
        self._waiting: FloatArray = np.empty(0)
        self._sending: FloatArray = np.empty(0)
        self._connected: deque[tuple[float, int, int]] = deque()

    def unserved(self, rows: IntArray, now_s: float) -> None:
        """Begin an interruption of these bundles."""
        self._grow(int(rows.max(initial=-1)) + 1)
        self._unserved_since[rows] = now_s
        self._waiting[rows] -= self._sending[rows] * (now_s - self._then_s)
        self._sending[rows] = 0.0

    def served(self, rows: IntArray, sessions: IntArray, broker: int, now_s: float) -> None:
        """End the interruption of these bundles, now served by this broker (a number); their `sessions` reconnect."""
        self._grow(int(rows.max(initial=-1)) + 1)
        has_waited = ~np.isnan(self._unserved_since[rows])
        again = rows[has_waited]
        gap_s = now_s - self._unserved_since[again]
        self._waiting[again] = np.minimum(self._waiting[again] + gap_s, self._rules.backlog_most_s)
        self._unserved_since[again] = np.nan
        clients = int(sessions[has_waited].sum())
        self.reconnections += clients
        if clients:
            self._connected.append((now_s, broker, clients))

    def divided(self, rows: IntArray) -> None:
        """Copy the state of the first row to the others, after a split of its bundle into these rows."""
        self._grow(int(rows.max()) + 1)
        for column in (self._unserved_since, self._waiting, self._sending):
            column[rows] = column[rows[0]]

    def send(
        self,
        table: BundleTable,
        fleet: SimFleet,
        cost: CostModel,
        loads: SimLoads,
        own: Carried,
        now_s: float,
        step_s: float,
    ) -> SimLoads:
        """Return the loads of the step that begins: `loads` plus the backlog that clients send.

        It is limited by the capacity that brokers have left beside `own`.
        """
        self._grow(len(table))
        self._waiting -= self._sending * (now_s - self._then_s)
        self._then_s = now_s
        self._sending[:] = 0.0
        behind = np.flatnonzero((self._waiting[: len(table)] > 0) & (table.serving >= 0))
        if not len(behind):
            return loads
        broker = table.serving[behind].astype(np.int64)
        wanted = np.minimum(self._rules.catch_up_factor - 1, self._waiting[behind] / step_s)
        room = _part_with_room(loads.load[behind] * wanted[:, np.newaxis], broker, fleet, cost, own)
        sending = self._sending[behind] = wanted * room[broker]
        load = loads.load.copy()
        load[behind] += load[behind] * sending[:, np.newaxis]
        return SimLoads(load, loads.topics, loads.sessions)

    def waiting_s(self, bundles: int, now_s: float) -> FloatArray:
        """Return the backlog (N,), in seconds of the bundle's load."""
        self._grow(bundles)
        since_s = self._unserved_since[:bundles]
        gap_s = np.where(np.isnan(since_s), 0.0, now_s - since_s)
        left_s = self._waiting[:bundles] - self._sending[:bundles] * (now_s - self._then_s)
        return np.minimum(left_s + gap_s, self._rules.backlog_most_s)

    def cpu(self, brokers: int, now_s: float) -> FloatArray:
        """Return the CPU usage (M,) by reconnecting clients over the last interval, in percent of one core."""
        interval_s, used = self._rules.stats_interval_s, np.zeros(brokers)
        while self._connected and self._connected[0][0] <= now_s - interval_s:
            self._connected.popleft()
        for _, broker, clients in self._connected:
            used[broker] += clients * self._rules.reconnect_cpu_s * _CORE / interval_s
        return used

    def _grow(self, bundles: int) -> None:
        missing = bundles - len(self._waiting)
        if missing > 0:
            self._unserved_since = np.append(self._unserved_since, np.full(missing, np.nan))
            self._waiting = np.append(self._waiting, np.zeros(missing))
            self._sending = np.append(self._sending, np.zeros(missing))


def _part_with_room(wanted: FloatArray, broker: IntArray, fleet: SimFleet, cost: CostModel, own: Carried) -> FloatArray:
    """Return the part (M,) of the loads `wanted` (k, 4) for which their brokers (k,) have capacity beside `own`."""
    columns = [np.bincount(broker, wanted[:, metric], len(fleet)).astype(np.float64) for metric in range(METRICS)]
    more = cost.demand(np.stack(columns, axis=1), np.zeros(len(fleet)))
    more[:, CPU] /= fleet.speed
    left = np.maximum(fleet.capacity - own.usage, 0.0)
    parts = np.divide(left, more, out=np.ones_like(left), where=more > 0)
    return np.asarray(np.minimum(parts.min(axis=1), 1.0))
