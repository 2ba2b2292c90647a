"""One side at a time: which tensors are the same value, who made it, who reads it.

``flow_of(trace)`` is the whole package: it completes the statistics, collapses tensors that hold the
same values into value classes and returns the :class:`Flow` that alignment works on.
"""

from .adjoints import Gradients, find_gradients
from .dataflow import Flow, build_flow

__all__ = ["Flow", "Gradients", "build_flow", "find_gradients"]
