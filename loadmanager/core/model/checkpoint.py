"""Checkpoint of a `ClusterModel`: all of its state at one moment, as serializable values.

It holds all that later reports, records and snapshots depend on, except rules, policies and controls, which are set
separately. Bundles are numbered: position i is `names[i]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.extensible_load import Listed, LoadAverage
from loadmanager.core.model.load import BoolArray, BrokerReport, FloatArray, RowArray
from loadmanager.core.model.time_means import TimeMeans


@dataclass(frozen=True, slots=True, eq=False)
class BrokerCheckpoint:
    """A broker that has reported: its last report without bundles, and their positions in the report's order.

    `find_busiest` returns the busiest of them; `unknown` is the part of the report on bundles that are in no record,
    None if there is none.
    """

    registration: Registration
    report: BrokerReport
    bundles: RowArray
    find_busiest: Callable[[], Listed]
    average: LoadAverage
    overtaken: bool
    unknown: BrokerReport | None


@dataclass(frozen=True, slots=True, eq=False)
class ModelCheckpoint:
    """All bundles (N,), sorted by name, all brokers in order of arrival, and the times of recent unloads.

    `reporter`, `owner` and `destination` (N,) are positions in `registrations`, -1 for none; `recorded` (N,) is the
    state in the namespace's record (0: none). `by_range` (N,): the history is a share of another's by hash range.
    `time_means` is None in a checkpoint from before they existed. `with_record` are the namespaces that have a record.
    """

    revision: int
    names: tuple[str, ...]
    registrations: tuple[Registration, ...]
    short: FloatArray
    long: FloatArray
    short_samples: npt.NDArray[np.int8]
    long_samples: npt.NDArray[np.int16]
    topics: RowArray
    reporter: RowArray
    owner: RowArray
    destination: RowArray
    recorded: npt.NDArray[np.int8]
    by_range: BoolArray
    time_means: TimeMeans | None = None
    brokers: tuple[BrokerCheckpoint, ...] = ()
    with_record: tuple[str, ...] = ()
    unloaded: Mapping[str, float] = field(default_factory=dict)
    unloaded_from: Mapping[BrokerId, float] = field(default_factory=dict)
