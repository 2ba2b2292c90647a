"""Small references of a dump for a repository: does a change of the code change numbers?

``reference`` makes one from a trace: statistics and a checksum of every result. ``comparison``
holds a later trace of the same model and framework against it.
"""

from .comparison import GoldenCheck, ValueCheck, check_trace
from .reference import GoldenReference, build_reference, read_reference, write_reference

__all__ = [
    "GoldenCheck",
    "GoldenReference",
    "ValueCheck",
    "build_reference",
    "check_trace",
    "read_reference",
    "write_reference",
]
