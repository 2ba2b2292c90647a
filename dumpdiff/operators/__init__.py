"""Reference arithmetic in float64: the output that an operator computes from its inputs.

Pure functions on arrays, one module per operator family, selected by canonical kind (the kinds of
``rules/operators.yaml``). :func:`recompute` takes a kind and arrays and returns the output;
:func:`read_execution` reads those arrays from a trace.
"""

from .call import Call
from .execution import Execution, read_execution
from .outputs import OUTPUT_KINDS, compute_outputs
from .recomputation import (
    FUNCTIONS_OF_NUMBERS,
    INCOMPLETE_KINDS,
    KINDS,
    compute_gradients,
    compute_interpretations,
    compute_relative_distance,
    recompute,
)

__all__ = [
    "FUNCTIONS_OF_NUMBERS",
    "INCOMPLETE_KINDS",
    "KINDS",
    "OUTPUT_KINDS",
    "Call",
    "Execution",
    "compute_gradients",
    "compute_interpretations",
    "compute_outputs",
    "compute_relative_distance",
    "read_execution",
    "recompute",
]
