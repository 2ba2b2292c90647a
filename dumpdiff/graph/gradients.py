"""Which value is the gradient of which, and through which op it flows back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..model.arrays import Flags, Ints
from .dataflow import Flow

#: Products: the gradient of one factor is computed from the other.
PRODUCT_KINDS = frozenset({"mul", "div", "matmul", "convolution", "addmm", "outer"})
MATRIX_PRODUCT_KINDS = frozenset({"matmul", "convolution", "addmm"})
#: The gradient depends on the input or the output.
NONLINEAR_KINDS = frozenset(
    {"square", "pow", "sqrt", "rsqrt", "reciprocal", "exp", "log", "softmax", "log_softmax",
     "sigmoid", "silu", "gelu", "tanh", "relu", "abs", "sin", "cos", "erf",
     "layer_norm", "rms_norm", "batch_norm"}
)  # fmt: skip
#: The gradient is computed with the values of the forward call.
VALUE_DEPENDENT_KINDS = PRODUCT_KINDS | NONLINEAR_KINDS
#: Values above an output that are searched for a second way from an input to it.
_MAX_DETOUR_VALUES = 12


@dataclass(frozen=True)
class Gradients:
    """The gradients of one side, all by value class."""

    by_value: dict[int, int]  #: value -> its gradient
    #: (output, input, whether the input reaches the output in another way too) of an op -> the
    #: gradient that flows back through it
    by_edge: dict[tuple[int, int, bool], int]
    #: value -> how often it was computed, of those that were computed several times, and 2 for the
    #: inner states of recurrent ops: what flows back to each of them is a share of the gradient
    repeats: dict[int, int] = field(default_factory=dict)


def flag_detours(flow: Flow, outputs: Ints, values: Ints) -> Flags:
    """Return (edges,) what :func:`_has_detour` says of each edge.

    Only a value that several ops read can have one, to an op that also reads another computed
    value; few do.
    """
    flags = np.zeros(len(outputs), dtype=bool)
    n_users = np.bincount(flow.operands.values, minlength=len(flow.classes))
    edges = np.flatnonzero((outputs >= 0) & (n_users[values] > 1))
    edges = edges[flow.producers[outputs[edges]] >= 0]
    operands_of = flow.operands.take(flow.producers[outputs[edges]])
    operands, edges = operands_of.values, edges[operands_of.rows]
    is_other = (operands != values[edges]) & (flow.producers[operands] >= 0)
    flags[edges[is_other]] = True
    edge_list = zip(outputs[flags].tolist(), values[flags].tolist(), strict=True)
    flags[flags] = [_has_detour(flow, output, value) for output, value in edge_list]
    return flags


def _has_detour(flow: Flow, output: int, value: int) -> bool:
    """Return whether the producer of the output also reads something computed from the value.

    An example is x * sigmoid(x).
    """
    producers = flow.list_column("producer")
    todo = [other for other in flow.operands[producers[output]] if other != value]
    for other in todo:  # grows on the way
        producer = producers[other]
        if producer < 0:
            continue
        reads = flow.operands[producer]
        if value in reads:
            return True
        if len(todo) < _MAX_DETOUR_VALUES:
            todo += [read for read in reads if read not in todo]
    return False
