"""The cluster as it is known now: `ClusterModel` is what others know, the files beside it have one purpose each.

what                                              file             comes from
----                                              ----             ----------
a bundle's name and row, and its namespace        rows.py          records and reports
the columns that rows are of                      columns.py
who owns each, and where one on its way goes      owners.py        records
what a record does to all the rest                records.py       records
who reports each                                  reporters.py     reports
what a broker reported last                       reported.py      reports; given out by latest.py
means over reports and by time, latest topics     averages.py      reports; a record's new bundles inherit them
when what was unloaded                            unloads.py       whoever unloads
a snapshot of all that, to decide on              snapshotting.py
what is shown of it again and again               glance.py
an image of all that, to be written down          imaging.py
"""

from __future__ import annotations

from loadmanager.core.cluster.latest import LatestReport
from loadmanager.core.cluster.model import ClusterModel

__all__ = ["ClusterModel", "LatestReport"]
