"""From a canonical kind to its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..model.arrays import AnyArray, Floats
from ..model.scaled_sums import compute_norm
from . import (
    activations,
    attention,
    convolution,
    ctc,
    einsum,
    elementwise,
    grid_sampling,
    linear,
    losses,
    norms,
    recurrence,
    reductions,
    resampling,
    rotary,
    row_groups,
    scattering,
    selection,
    softmax,
)
from .call import Call, Interpretations, make_call

#: Canonical kind -> function that computes the interpretations of a call.
KINDS: Mapping[str, Callable[[Call], Interpretations]] = {
    **elementwise.FUNCTIONS,
    **activations.FUNCTIONS,
    **norms.FUNCTIONS,
    **reductions.FUNCTIONS,
    **softmax.FUNCTIONS,
    **linear.FUNCTIONS,
    **rotary.FUNCTIONS,
    **attention.FUNCTIONS,
    **convolution.FUNCTIONS,
    **grid_sampling.FUNCTIONS,
    **resampling.FUNCTIONS,
    **losses.FUNCTIONS,
    **selection.FUNCTIONS,
}
#: Kinds of calls whose record omits what they compute, such as dropout between two layers or the
#: equation of a sum: another output does not show that the record is wrong.
INCOMPLETE_KINDS: Mapping[str, Callable[[Call], Interpretations]] = {
    **recurrence.FUNCTIONS,
    **einsum.FUNCTIONS,
    **losses.INCOMPLETE_FUNCTIONS,
    **ctc.FUNCTIONS,
    **row_groups.FUNCTIONS,
    "segment_sum": scattering.sum_segments,
    "scatter_add": scattering.add_updates,
}


def recompute(
    kind: str,
    inputs: Sequence[AnyArray | float],
    keywords: Mapping[str, AnyArray | float] | None = None,
    *,
    output_shape: tuple[int, ...] | None = None,
    recorded_output: AnyArray | None = None,
) -> Floats | None:
    """Return the output, in float64, that an operator of canonical ``kind`` computes.

    ``inputs`` are arrays, and immediate numbers as floats. ``keywords`` are keyword arguments
    (dim, eps, scale). ``output_shape`` tells which axes a reduction ran over. If the record allows
    several interpretations (a transposed operand, either form of gelu), the one nearest to
    ``recorded_output`` is returned, without it the likeliest. None if the kind is unknown or the
    inputs do not fit it.
    """
    if recorded_output is not None:
        output_shape = recorded_output.shape
    interpretations = compute_interpretations(kind, inputs, keywords, output_shape=output_shape)
    outputs = [output for _, output in interpretations]
    if not outputs:
        return None
    if recorded_output is None or len(outputs) == 1:
        return outputs[0]
    return min(outputs, key=lambda output: compute_relative_distance(output, recorded_output))


#: Kinds that compute each number of their output from one number of each input.
FUNCTIONS_OF_NUMBERS = frozenset({*elementwise.FUNCTIONS, *activations.FUNCTIONS}) - {
    "swiglu",
    "geglu",
    "glu",
}
#: Of these, those of their first input, and perhaps of one number of the second.
_FUNCTIONS_OF_FEW_NUMBERS = FUNCTIONS_OF_NUMBERS & {
    *elementwise.UNARY,
    *elementwise.BINARY,
    *activations.FUNCTIONS,
}
#: Step of a difference quotient, relative to numbers beyond 1. The quotient is exact to 1e-10: the
#: error of the step is its square, that of rounding 2**-53 over the step.
_STEP = 2.0**-17


def compute_gradients(
    kind: str,
    inputs: Sequence[AnyArray | float],
    keywords: Mapping[str, AnyArray | float] | None = None,
    relative_step: float = _STEP,
) -> Interpretations:
    """Yield (name, gradient of the first input) of every interpretation of a call.

    This is done for functions of numbers and for norms. ``inputs`` are the gradient of the output,
    then what the call read. The step of the difference quotient is relative to numbers beyond 1.
    """
    if kind in norms.DIFFERENTIABLE_KINDS:
        yield from _differentiate_norm(kind, inputs, keywords)
        return
    if kind not in _FUNCTIONS_OF_FEW_NUMBERS or len(inputs) < 2:
        return
    gradient, x = (np.asarray(values, dtype=np.float64) for values in inputs[:2])
    if gradient.shape != x.shape:
        return
    step = relative_step * np.maximum(1.0, np.abs(x))
    above, below = (
        compute_interpretations(kind, (moved, *inputs[2:]), keywords, output_shape=x.shape)
        for moved in (x + step, x - step)
    )
    for (name, high), (_, low) in zip(above, below, strict=True):
        yield name, gradient * (high - low) / (2 * step)


def _differentiate_norm(
    kind: str,
    inputs: Sequence[AnyArray | float],
    keywords: Mapping[str, AnyArray | float] | None,
) -> Interpretations:
    gradient, x = (np.asarray(values, dtype=np.float64) for values in inputs[:2])
    if gradient.size == x.size and x.ndim:
        with np.errstate(all="ignore"):
            call = make_call(kind, inputs[1:], keywords, x.shape)
            yield from norms.compute_norm_gradients(call, gradient)


def compute_interpretations(
    kind: str,
    inputs: Sequence[AnyArray | float],
    keywords: Mapping[str, AnyArray | float] | None = None,
    *,
    output_shape: tuple[int, ...] | None = None,
) -> Interpretations:
    """Yield (name, output) of every interpretation of a call, the likeliest first.

    Outputs with another number of elements than ``output_shape`` are omitted.
    """
    compute = KINDS.get(kind) or INCOMPLETE_KINDS.get(kind)
    if compute is None:
        return
    call = make_call(kind, inputs, keywords, output_shape)
    with np.errstate(all="ignore"):
        try:
            for name, output in compute(call):
                if output_shape is None:
                    yield name, output
                elif output.size == int(np.prod(output_shape, dtype=np.int64)):
                    yield name, output.reshape(output_shape)
        except (ValueError, IndexError, TypeError, FloatingPointError):
            return  # the shapes do not fit: the record differs from the call that ran


def compute_relative_distance(output: AnyArray, expected: AnyArray) -> float:
    """Return ||output - expected|| / ||expected|| over elements that are finite in both.

    Infinite if the element counts differ.
    """
    if output.size != expected.size:
        return float("inf")
    a = output.reshape(-1).astype(np.float64)
    b = expected.reshape(-1).astype(np.float64)
    is_finite = np.isfinite(a) & np.isfinite(b)
    if not is_finite.all():
        a, b = a[is_finite], b[is_finite]
    difference, size = compute_norm(a - b), compute_norm(b)
    if size:
        return difference / size
    return 0.0 if difference == 0 else float("inf")
