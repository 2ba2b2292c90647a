"""Reference arithmetic in float64: what an operator makes of its inputs, as the textbook has it.

Pure functions on arrays, one module per family, found by canonical kind (the kinds of ``rules/operators.yaml``):
:func:`recompute` is given a kind and arrays, and asked for the output. :func:`execution` gets those from a trace.
"""

from .call import Call
from .execution import Execution, execution
from .recomputation import KINDS, gap, readings, recompute

__all__ = ["KINDS", "Call", "Execution", "execution", "gap", "readings", "recompute"]
