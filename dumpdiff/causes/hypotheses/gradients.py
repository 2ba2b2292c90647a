"""Gradients: the contribution of a branch is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import BACKWARD
from ..fault_case import FaultCase, Operand
from ..hypothesis import Candidate, Hypothesis

_MISSING_BRANCH = "the gradient of one branch missing"
#: Elements of all operands together beyond which a vector's gradient is not searched.
_MAX_SEARCH_ELEMENTS = 1 << 21
#: Operands of both sides that are tried, for a product, a vector and a difference.
_MAX_PRODUCT_OPERANDS = 40
_MAX_VECTOR_OPERANDS = 16
_MAX_DIFFERENCE_OPERANDS = 16


def suggest_missing_branch_of_vector(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a missing branch in a vector's gradient, faithful = sum of G X over the rows.

    faulty has one addend of G in place of G, or lacks one addend.
    """
    if case.phase != BACKWARD or case.faithful.ndim != 1:
        return
    if case.faithful.size < 2:
        return
    arrays = _list_row_arrays(case)
    for i, j in permutations(range(len(arrays)), 2):
        x, gradient = arrays[i], arrays[j]
        if x.shape != gradient.shape:
            continue
        unchanged = _sum_products(gradient, x)
        if case.matches_faithful(unchanged):
            same_shape = [k for k, array in enumerate(arrays) if array.shape == x.shape]
            branches = [arrays[k] for k in same_shape if k not in (i, j)]
            for addend in _list_addends(gradient, branches):
                yield Candidate(_sum_products(addend, x), _MISSING_BRANCH, unchanged=unchanged)
            return


def _has_rows(operand: Operand, width: int) -> bool:
    return len(operand.shape) >= 2 and operand.shape[-1] == width and operand.is_floating


def _sum_products(gradient: Floats, x: Floats) -> Floats:
    result: Floats = np.einsum("ij,ij->j", gradient, x)
    return result


def _list_row_arrays(case: FaultCase) -> list[AnyArray]:
    """Return (rows, size of the faithful value) of operands; none if they have too many elements.

    At most ``_MAX_VECTOR_OPERANDS`` operands are used.
    """
    width = case.faithful.size
    operands = [operand for operand in case.list_shared_operands() if _has_rows(operand, width)]
    arrays = [operand.array.reshape(-1, width) for operand in operands[:_MAX_VECTOR_OPERANDS]]
    n_elements = sum(array.size for array in arrays)
    if n_elements > _MAX_SEARCH_ELEMENTS:
        return []
    return arrays


def suggest_missing_branch_of_product(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a missing branch in faithful = G w, or its sum over the last axis.

    faulty has one addend of G in place of G, or lacks one addend.
    """
    if case.phase != BACKWARD or case.faithful.ndim < 2:
        return
    floating_operands = [operand for operand in case.list_shared_operands() if operand.is_floating]
    operands = [operand for operand in floating_operands if operand.shape][:_MAX_PRODUCT_OPERANDS]
    for is_summed in (False, True):
        for total in operands:
            gradient = total.array
            has_output_size = gradient.size == case.faithful.size
            if total.agrees or gradient.ndim < 2:
                continue
            if has_output_size == is_summed:
                continue
            other_operands = [operand for operand in operands if operand is not total]
            factor = _find_factor(case, gradient, other_operands, is_summed)
            if factor is None:
                continue
            branches = _list_branches(gradient, other_operands)
            yield from _replace_gradient(gradient, branches, factor, is_summed)
            return


def _replace_gradient(
    gradient: AnyArray, branches: Sequence[AnyArray], factor: AnyArray, is_summed: bool
) -> Iterator[Candidate]:
    """Yield the product with each addend of the gradient in place of the gradient."""
    unchanged = _multiply(gradient, factor, is_summed)
    for addend in _list_addends(gradient, branches):
        predicted = _multiply(addend, factor, is_summed)
        yield Candidate(predicted, _MISSING_BRANCH, unchanged=unchanged)


def _list_addends(gradient: AnyArray, branches: Sequence[AnyArray]) -> Iterator[AnyArray]:
    """Yield each branch by itself, then the gradient without it."""
    for branch in branches:
        yield branch
        yield gradient - branch


def _list_branches(gradient: AnyArray, operands: list[Operand]) -> list[AnyArray]:
    """Return the operands that may be an addend of the gradient, in its shape."""
    same_size = [operand.array for operand in operands if operand.array.size == gradient.size]
    return [array.reshape(gradient.shape) for array in same_size]


def _find_factor(
    case: FaultCase, gradient: AnyArray, operands: list[Operand], is_summed: bool
) -> AnyArray | None:
    """Return the operand with which the gradient's product is the faithful side's value."""
    for operand in operands:
        factor = operand.array
        if factor.size == gradient.size:
            factor = factor.reshape(gradient.shape)
        if factor.shape not in (gradient.shape, gradient.shape[-1:]):
            continue
        if case.matches_faithful(_multiply(gradient, factor, is_summed)):
            return factor
    return None


def _multiply(gradient: AnyArray, factor: AnyArray, is_summed: bool) -> AnyArray:
    product: AnyArray = gradient * factor
    return product.sum(axis=-1, keepdims=True) if is_summed else product


def suggest_difference(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the gradient a of one branch missing, alone, or counted twice, for an operand a."""
    if case.phase != BACKWARD or case.faithful.size < 2:
        return
    operands = list(case.find_same_size_operands())[:_MAX_DIFFERENCE_OPERANDS]
    for operand in operands:
        branch = operand.array.reshape(case.faithful.shape)
        if np.any(branch):
            for predicted in (case.faithful - branch, branch):
                yield Candidate(predicted, _MISSING_BRANCH, unchanged=case.faithful)
            yield Candidate(
                case.faithful + branch,
                "the gradient of one branch counted twice",
                unchanged=case.faithful,
                cause="gradient-scaled",
            )


HYPOTHESES = (
    Hypothesis("gradient-stopped", suggest_missing_branch_of_product),
    Hypothesis("gradient-stopped", suggest_missing_branch_of_vector),
    Hypothesis("gradient-stopped", suggest_difference),
)
