"""Reader of MindSpore framework dumps (``MINDSPORE_DUMP_CONFIG``): npy files, statistic.csv and graphs, joined."""

from .reader import FORMAT, find_parts, read_part

__all__ = ["FORMAT", "find_parts", "read_part"]
