"""The library's front door: every step in order, from paths to what a report prints."""

from .checkpoints import convert, optimizer, weights
from .dump_cost import expected_mindspore, expected_msprobe
from .dumps import align, read
from .progress import Progress
from .saved_results import explain, mapping, narrow, repeat
from .triage import triage

__all__ = [
    "Progress",
    "align",
    "convert",
    "expected_mindspore",
    "expected_msprobe",
    "explain",
    "mapping",
    "narrow",
    "optimizer",
    "read",
    "repeat",
    "triage",
    "weights",
]
