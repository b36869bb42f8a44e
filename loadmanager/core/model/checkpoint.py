"""The whole of a `ClusterModel` at one moment, as values that can be written down: what is made of it is its equal.

Everything that a later report, record or snapshot depends on is in it, but for the rules, the policies and the
controls, which are given to a model apart. Bundles are numbers: position i is `names[i]`.
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
    """A broker that has reported: its last report without the bundles, and which those were, in the report's order.

    `find_busiest` gives the busiest of them; `unknown` is what the report said of bundles that are in no record, None
    when there was nothing.
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
    """All bundles (N,), sorted by name, all brokers in the order in which they came, and when what was unloaded.

    `reporter`, `owner` and `destination` (N,) are positions in `registrations`, -1 for nobody; `recorded` (N,) is what
    the namespace's record says (0: nothing). `by_range` (N,): its history is a share of another's by the hash range.
    `time_means` is None in an image that was written down before there were any.
    `with_record` are the namespaces that have a record.
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
