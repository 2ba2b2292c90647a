"""Gradients at the kinks of functions, where rounding decides which slope they have.

relu passes a gradient on where its input is positive. An input that is nearer to zero than it is
exact may be positive on one side only. Then all of one element of the gradient is missing on the
other side, although both compute the same. So it is where the two largest elements of a window are
nearly equal, or equal: which of them is the maximum is a choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from ..model.arrays import AnyArray, Floats
from ..model.recorded_shapes import load_readable_tensor
from ..model.verdict import AGREEING
from ..operators import (
    Execution,
    compute_gradients,
    compute_interpretations,
    compute_relative_distance,
    read_execution,
)
from ..operators.pooling import bound_maximum_gradient, find_pooling_settings
from .joint_graph import GraphSide, JointGraph

#: Elements of a gradient. A larger one would take seconds.
_MAX_ELEMENTS = 1 << 21
#: Step of the difference quotients, as a share of the largest error of an input.
_STEP_SHARE = 0.125
#: Relative L2 within which a pooling gives a recorded output.
_EQUAL_DISTANCE = 1e-5
#: Unit roundoff of float32: two inputs that are equal have at least this error.
_FLOAT32_ROUNDOFF = 2.0**-24


def measure_error_beside_kinks(
    graph: JointGraph, node: int, state: Sequence[str], errors: Sequence[float]
) -> float:
    """Return the error of a gradient that no error of its function's agreeing input explains.

    For each element, the slopes at all inputs that differ by no more than the two sides' inputs do
    are allowed. The gradients of both sides have to be within what one of them may compute: a wrong
    one is no choice beside a right one. NaN if no recorded function of single numbers has this
    gradient.
    """
    pair = graph.comparison.pairs.iloc[node]
    if pair["metric"] != "relative_l2" or pair["layout"] not in ("same", "reshape"):
        return math.nan
    columns = ("target_tensor", "reference_tensor")
    gradients = [
        load_readable_tensor(side.flow.trace, int(pair[column]))
        for side, column in zip(graph.sides, columns, strict=True)
    ]
    distances = [math.nan]
    for side in graph.sides:
        bounds = _find_bounds(side, node, state, errors)
        if bounds is not None:
            own_distances = [_measure_distance(gradient, *bounds) for gradient in gradients]
            distances.append(max(own_distances))
    return float(np.fmin.reduce(distances))


def _measure_distance(gradient: AnyArray | None, low: Floats, high: Floats) -> float:
    """Return the relative L2 distance of a gradient from the nearest one within its bounds.

    Inf if there is none of that size.
    """
    if gradient is None or gradient.size != low.size:
        return math.inf
    gradient = gradient.astype(np.float64).reshape(low.shape)
    return compute_relative_distance(np.clip(gradient, low, high), gradient)


def _find_bounds(
    side: GraphSide, node: int, state: Sequence[str], errors: Sequence[float]
) -> tuple[Floats, Floats] | None:
    """Return the smallest and the largest gradient that a side may compute for a node."""
    flow, producer = side.flow, side.find_producer(node)
    call = _find_forward_call(side, producer) if producer >= 0 else -1
    if call < 0 or not flow.reads[call]:
        return None
    input_node = int(side.nodes[flow.reads[call][0]])
    if input_node >= len(errors) or state[input_node] != AGREEING:
        return None
    backward, forward = (
        read_execution(flow.trace, flow.get_tensor_ids(op).tolist()) for op in (producer, call)
    )
    if backward is None or forward is None or not backward.inputs or not forward.inputs:
        return None
    gradient, x = (np.asarray(e.inputs[0], dtype=np.float64) for e in (backward, forward))
    if x.size > _MAX_ELEMENTS or gradient.size != forward.output.size:
        return None
    return _bound_gradient(side.kinds[call], gradient, forward, errors[input_node])


def _find_forward_call(side: GraphSide, op: int) -> int:
    """Return the op whose gradient an op computes, -1 if unknown.

    A graph does not name it. It wrote, or it reads, what the gradient is computed from.
    """
    flow = side.flow
    if flow.calls[op] >= 0:
        return int(flow.calls[op])
    kind = side.kinds[op].removeprefix("grad:")
    if kind == side.kinds[op]:
        return -1
    values = flow.reads[op]
    neighbors = chain(
        (int(flow.producers[v]) for v in values), *(flow.consumers[v] for v in values)
    )
    return next((other for other in neighbors if other >= 0 and side.kinds[other] == kind), -1)


def _bound_gradient(
    kind: str, gradient: Floats, forward: Execution, input_error: float
) -> tuple[Floats, Floats] | None:
    """Return the bounds of a gradient whose input has a relative L2 error.

    Of n errors of normal distribution the largest is sqrt(2 ln 2n) times their root mean square
    (David and Nagaraja 2003, section 10.5).
    """
    x = np.asarray(forward.inputs[0], dtype=np.float64)
    normal_maximum = math.sqrt(2 * math.log(2 * x.size))
    largest_error = max(input_error, _FLOAT32_ROUNDOFF) * normal_maximum * _compute_rms(x)
    if kind == "max_pool":
        settings = find_pooling_settings(x, kind, forward.output, _EQUAL_DISTANCE)
        if settings is None:
            return None
        return bound_maximum_gradient(x, gradient, settings, largest_error)
    outputs = [
        output
        for _, output in compute_interpretations(
            kind, forward.inputs, forward.keywords, output_shape=x.shape
        )
    ]
    if not outputs or gradient.size != x.size:
        return None
    gradient, recorded = gradient.reshape(x.shape), forward.output.reshape(x.shape)
    best = int(np.argmin([compute_relative_distance(output, recorded) for output in outputs]))
    step = _STEP_SHARE * largest_error / max(1.0, float(np.abs(x).max()))
    gradients = []
    for shift in (-1.0, 0.0, 1.0):
        moved = x + shift * (1 + _STEP_SHARE) * largest_error  # both ends of the step are beyond
        inputs = (gradient, moved, *forward.inputs[1:])
        found = [values for _, values in compute_gradients(kind, inputs, forward.keywords, step)]
        if best >= len(found):
            return None
        gradients.append(found[best])
    return np.min(gradients, axis=0), np.max(gradients, axis=0)


def _compute_rms(x: Floats) -> float:
    return float(np.sqrt(np.mean(x * x)))
