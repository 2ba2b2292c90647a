"""The library's front door: every step in order, from paths to what a report prints."""

from .again import explain, mapping, narrow, repeat
from .cost import expected_mindspore, expected_msprobe
from .dumps import align, read
from .progress import Progress
from .saved import convert, optimizer, weights
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
