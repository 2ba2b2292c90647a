"""Clipping of gradients: each element by itself in place of all together, or by another norm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from ...model.arrays import Floats
from ...model.trace import FORWARD, OPTIMIZER
from ..fault_case import FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor

#: Relative distance of an element from the limit that it has: rounding of float32.
_LIMIT_DISTANCE = 1e-6
#: Fewest elements at the limit, one has the largest magnitude in any case; and the share of the
#: largest element that is cut: less may be noise.
_MIN_AT_LIMIT, _MIN_CUT = 2, 1e-3
_EQUAL_DISTANCE = 1e-5  #: relative L2 within which a multiple of the gradient is a value
#: Orders of a norm -> how they are named.
_NORMS = {
    1: "the sum of the magnitudes (order 1)",
    2: "the root of the sum of squares (order 2)",
    np.inf: "the largest magnitude (order infinity)",
}
_MIN_NORM_ELEMENTS = 2
#: Kinds of ops whose results make up the norm of all gradients: gradients and their own norms.
_PARTS = ("grad:parameters", "norm")


def suggest_clipped_elements(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = a clip(g, -c, c), where the faithful side has b g of a gradient g.

    In the backward pass g is the faithful value. The optimizer makes a moment of it, or multiplies
    all of it by one number, to limit its norm.
    """
    if case.phase == FORWARD or case.is_source or case.faithful.size < 2 * _MIN_AT_LIMIT:
        return
    magnitudes = np.abs(case.faulty)
    is_at_limit = magnitudes >= magnitudes.max() * (1 - _LIMIT_DISTANCE)
    if not _MIN_AT_LIMIT <= is_at_limit.sum() < is_at_limit.size:
        return
    gradients = [case.faithful]
    if case.phase == OPTIMIZER:
        gradients += [
            operand.array.reshape(case.faithful.shape) for operand in case.find_same_size_operands()
        ]
    for gradient in gradients:
        unchanged = fit_factor(gradient, case.faithful) * gradient
        factor = fit_factor(gradient[~is_at_limit], case.faulty[~is_at_limit])
        is_of_gradient = compute_residual(unchanged, case.faithful) <= _EQUAL_DISTANCE
        if not is_of_gradient or not factor > 0:
            continue
        limit = float(magnitudes.max()) / factor
        if float(np.abs(gradient).max()) < (1 + _MIN_CUT) * limit:
            continue
        is_unclipped = gradient is case.faithful
        yield Candidate(
            factor * np.clip(gradient, -limit, limit),
            f"every element clipped to {limit:.4g}",
            "does not clip elements" if is_unclipped else "multiplies all of them by one number",
            parameters={"limit": limit},
            unchanged=unchanged,
        )


def suggest_other_norm(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a norm of another order of the same tensor, as a single number."""
    if case.phase == FORWARD or case.faithful.size != 1:
        return
    for operand in case.list_shared_operands():
        if not operand.is_floating or operand.array.size < _MIN_NORM_ELEMENTS:
            continue
        norms = {order: _compute_norm(operand.array, order) for order in _NORMS}
        own_orders = [
            order
            for order, norm in norms.items()
            if compute_residual(norm.reshape(case.faithful.shape), case.faithful) <= _EQUAL_DISTANCE
        ]
        if len(own_orders) != 1:
            continue
        unchanged = norms.pop(own_orders[0])
        for order, norm in norms.items():
            yield Candidate(
                norm.reshape(case.faithful.shape),
                _NORMS[order],
                f"takes {_NORMS[own_orders[0]]}",
                unchanged=unchanged.reshape(case.faithful.shape),
            )


def suggest_norm_parts(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the norm of all gradients lacks one of them, or counts it twice.

    The value is the norm, or the sum of squares before the root.
    """
    if case.phase != OPTIMIZER or case.faithful.size != 1:
        return
    parts = [item for item in case.operands if item.is_floating and item.kind in _PARTS]
    for operand in sorted(parts, key=lambda item: _PARTS.index(item.kind)):
        square = _compute_norm(operand.array, 2) ** 2
        for power, sign in product((1, 2), (-1, 1)):
            yield Candidate(
                np.maximum(case.faithful**power + sign * square, 0) ** (1 / power),
                f"without {operand.name}" if sign < 0 else f"with {operand.name} twice",
                "takes it in" if sign < 0 else "takes it once",
                unchanged=case.faithful,
            )


def _compute_norm(array: Floats, order: float) -> Floats:
    return np.asarray(np.linalg.norm(array.reshape(-1).astype(np.float64), order))


HYPOTHESES = (
    Hypothesis("clip", suggest_clipped_elements),
    Hypothesis("norm-order", suggest_other_norm),
    Hypothesis("gradient-norm", suggest_norm_parts, is_choice=True),
)
