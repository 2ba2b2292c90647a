"""Reader of MindSpore framework dumps (``MINDSPORE_DUMP_CONFIG``, all versions).

It joins npy files, statistic.csv and graph files.
"""

from .reader import FORMAT, find_parts, read_part

__all__ = ["FORMAT", "find_parts", "read_part"]
