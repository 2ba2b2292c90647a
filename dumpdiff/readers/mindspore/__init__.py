"""MindSpore framework dumps (``MINDSPORE_DUMP_CONFIG``): npy files, statistic.csv and graphs, joined."""

from .reader import FORMAT, find, read

__all__ = ["FORMAT", "find", "read"]
