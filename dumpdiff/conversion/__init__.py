"""Conversion of a checkpoint to another framework.

The source is read as canonical parameters, which are laid out and named as the target framework
expects.
"""

from .canonical import SourceOptions
from .parallel_ranks import ParallelSizes
from .pipeline import ConversionResult, plan_conversion, write_conversion
from .plan import TargetOptions
from .writer import check_folder_is_free

__all__ = [
    "ConversionResult",
    "ParallelSizes",
    "SourceOptions",
    "TargetOptions",
    "check_folder_is_free",
    "plan_conversion",
    "write_conversion",
]
