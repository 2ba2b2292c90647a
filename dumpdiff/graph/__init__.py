"""One side at a time: which tensors are the same value, who made it, who reads it.

``flow_of(trace)`` is the whole package: it completes the statistics, collapses tensors that hold the
same values into value classes and returns the :class:`Flow` that alignment works on.
"""

from .adjoints import Gradients, gradients
from .dataflow import Flow, flow_of

__all__ = ["Flow", "Gradients", "flow_of", "gradients"]
