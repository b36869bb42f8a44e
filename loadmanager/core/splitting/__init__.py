"""The split algorithms by name. A new one is a file beside this and a line below."""

from __future__ import annotations

from loadmanager.core.splitting.base import SplitAlgorithm
from loadmanager.core.splitting.flow_or_qps_equally_divide import flow_or_qps_equally_divide
from loadmanager.core.splitting.range_equally_divide import range_equally_divide
from loadmanager.core.splitting.specified_positions_divide import specified_positions_divide
from loadmanager.core.splitting.topic_count_equally_divide import topic_count_equally_divide

SPECIFIED_POSITIONS = "specified_positions_divide"
"""The one algorithm that has to be told where to cut."""

SPLIT_ALGORITHMS: dict[str, SplitAlgorithm] = {
    "range_equally_divide": range_equally_divide,
    "topic_count_equally_divide": topic_count_equally_divide,
    SPECIFIED_POSITIONS: specified_positions_divide,
    "flow_or_qps_equally_divide": flow_or_qps_equally_divide,
}
