"""The cluster as it is known now: `ClusterModel` is what others know, the files beside it have one purpose each.

what                                              file            is written by
----                                              ----            -------------
a bundle's name and row, its namespace            rows.py         records and reports
the columns that rows are of                      columns.py      the files below
who owns each, and where one on its way goes      owners.py       records
who reports each, a broker's last report          reporters.py    reports
running means, topics, what new ones inherit      averages.py     reports, and records with other bundles
when what was unloaded                            unloads.py      the leader
a snapshot of all that                            snapshotting.py
an image of all that, to be written down          imaging.py
"""

from __future__ import annotations

from loadmanager.core.cluster.latest import LatestReport
from loadmanager.core.cluster.model import ClusterModel

__all__ = ["ClusterModel", "LatestReport"]
