"""CSV files that the monitors of msprobe write (``TrainerMon``, ``TrainerMonitorV2``)."""

from .reader import FORMAT, find_parts, is_index_file, read_part
from .rows import Row, find_rank, find_scope_v1, list_columns, read_rows

__all__ = [
    "FORMAT",
    "Row",
    "find_parts",
    "find_rank",
    "find_scope_v1",
    "is_index_file",
    "list_columns",
    "read_part",
    "read_rows",
]
