"""Which run on one device do these ranks make up?

``merge_runs`` returns one trace for all ranks of each run, which everything after it compares like
the trace of one device.
"""

from .combined_tensors import Shards
from .layout_rows import LayoutRow
from .layouts import (
    Merged,
    RunOfRanks,
    has_equal_layout,
    has_other_batches,
    list_changed_layouts,
    merge_runs,
)
from .sibling_tensors import RankOps

__all__ = [
    "LayoutRow",
    "Merged",
    "RankOps",
    "RunOfRanks",
    "Shards",
    "has_equal_layout",
    "has_other_batches",
    "list_changed_layouts",
    "merge_runs",
]
