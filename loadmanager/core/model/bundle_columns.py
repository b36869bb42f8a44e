"""Mutable columns of all bundles, one row per bundle, written by reports and records."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.ownership import Ownership, OwnershipState
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.model.load import DEFAULT_LOAD, METRICS, Float32Array, FloatArray, RowArray
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.model.time_means import SecondsArray, TimeMeans

Rows = npt.NDArray[np.intp]
"""Rows of bundles."""


class RecordedState(enum.IntEnum):
    """Ownership state of a bundle in its namespace record; `NO` if it is only known from a report."""

    NO = 0
    FREE = 1
    OWNED = 2
    RELEASING = 3
    FREED = 4
    """Free because its owner left."""


_RECORDED_STATE = {
    OwnershipState.FREE: RecordedState.FREE,
    OwnershipState.OWNED: RecordedState.OWNED,
    OwnershipState.RELEASING: RecordedState.RELEASING,
}


def recorded_state(ownership: Ownership) -> RecordedState:
    is_freed = ownership.state is OwnershipState.FREE and ownership.reason == OwnershipReason.OWNER_GONE.value
    return RecordedState.FREED if is_freed else _RECORDED_STATE[ownership.state]


@dataclass(slots=True, eq=False)
class BundleColumns:
    """Columns by bundle row. `reporter` and `owner` are registration rows, `namespace` namespace rows; `mean`, `last`,
    `reported_s` and `sigma` are the columns of `TimeMeans`.
    """

    short: FloatArray
    long: FloatArray
    short_samples: npt.NDArray[np.int8]
    long_samples: npt.NDArray[np.int16]
    mean: Float32Array
    last: Float32Array
    reported_s: SecondsArray
    sigma: Float32Array
    topics: RowArray
    reporter: RowArray
    owner: RowArray
    namespace: RowArray
    recorded: npt.NDArray[np.int8]

    @classmethod
    def empty(cls) -> BundleColumns:
        return cls(
            short=np.empty((0, METRICS)),
            long=np.empty((0, METRICS)),
            short_samples=np.empty(0, np.int8),
            long_samples=np.empty(0, np.int16),
            mean=np.empty((0, METRICS), np.float32),
            last=np.empty((0, METRICS), np.float32),
            reported_s=np.empty(0, np.uint32),
            sigma=np.empty(0, np.float32),
            topics=np.empty(0, np.int32),
            reporter=np.empty(0, np.int32),
            owner=np.empty(0, np.int32),
            namespace=np.empty(0, np.int32),
            recorded=np.empty(0, np.int8),
        )

    def grow(self, rows: int) -> None:
        """Grow the columns: large ones by remapping pages, without a copy. Shared columns are left to their readers."""
        for column in fields(self):
            shape = (rows, *getattr(self, column.name).shape[1:])
            try:
                getattr(self, column.name).resize(shape)
            except ValueError:
                old = getattr(self, column.name)
                new = np.zeros(shape, dtype=old.dtype)
                new[: len(old)] = old
                setattr(self, column.name, new)

    def clear(self, rows: Rows, namespace: RowArray) -> None:
        """Reset the rows to bundles without data."""
        self.expect(rows, DEFAULT_LOAD)
        self.reporter[rows] = self.owner[rows] = NOBODY
        for column in (self.short_samples, self.long_samples, self.topics, self.recorded, self.reported_s, self.sigma):
            column[rows] = 0
        self.namespace[rows] = namespace

    def expect(self, rows: Rows, load: FloatArray) -> None:
        """Set the expected load of bundles without history."""
        self.short[rows] = self.long[rows] = self.mean[rows] = self.last[rows] = load

    def time_means(self, rows: Rows | RowArray) -> TimeMeans:
        """Copy the time means of these rows."""
        return TimeMeans(
            self.mean.take(rows, axis=0),
            self.last.take(rows, axis=0),
            self.reported_s.take(rows),
            self.sigma.take(rows),
        )

    def put_time_means(self, rows: Rows, means: TimeMeans) -> None:
        self.mean[rows], self.last[rows] = means.mean, means.last
        self.reported_s[rows], self.sigma[rows] = means.reported_s, means.sigma

    def nbytes(self) -> int:
        return sum(getattr(self, column.name).nbytes for column in fields(self))
