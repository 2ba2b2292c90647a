"""One side at a time: which tensors are the same value, which op produces it and which ops read it.

``build_flow(trace)`` is the entry point. It completes the statistics, collapses tensors that hold
the same values into value classes and returns the :class:`Flow` that the alignment works on.
"""

from .adjoints import find_gradients
from .dataflow import Flow
from .flow_builder import build_flow, mark_shape_reads
from .gradients import Gradients
from .precision import find_common_dtype
from .recorded_gradients import collect_recorded_gradients, find_returned_gradients
from .updates import (
    Update,
    find_updated_weights,
    find_updates,
    is_used_by_update,
    list_kept_values,
)

__all__ = [
    "Flow",
    "Gradients",
    "Update",
    "build_flow",
    "collect_recorded_gradients",
    "find_common_dtype",
    "find_gradients",
    "find_returned_gradients",
    "find_updated_weights",
    "find_updates",
    "is_used_by_update",
    "list_kept_values",
    "mark_shape_reads",
]
