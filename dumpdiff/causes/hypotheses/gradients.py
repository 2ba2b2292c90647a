"""Gradients: the contribution of a branch is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import BACKWARD
from ..element_places import arrange_like
from ..fault_case import FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis
from .gradient_paths import is_derivative

#: Relative L2 within which a gradient is another one times a number: rounding.
_MAX_MULTIPLE_ERROR = 1e-4
_MISSING_BRANCH = "the gradient of one branch missing"
#: Elements of all operands together beyond which a vector's gradient is not searched.
_MAX_SEARCH_ELEMENTS = 1 << 21
#: Operands of both sides that are tried, for a product, a vector and a difference.
_MAX_PRODUCT_OPERANDS = 40
_MAX_VECTOR_OPERANDS = 16
_MAX_DIFFERENCE_OPERANDS = 16
#: Gradients of which a sum is searched, addends that differ together, and solutions that are tried.
MAX_SUM_OPERANDS, _MAX_ADDENDS, _MAX_SOLUTIONS = 24, 3, 3
#: Fewest elements of such a sum: three of 24 gradients explain fewer by chance.
_MIN_SUM_ELEMENTS = 16
#: Squared share of the difference that a solution may leave, before it is checked, and the least
#: coefficient that is a change.
_MAX_REST, _MIN_COEFFICIENT = 1e-4, 1e-3
#: A factor below this is zero.
_ZERO_FACTOR = 1e-3
#: Different whole numbers by which rows are divided, and their relative distance from these.
_MIN_COUNTS, _COUNT_DISTANCE = 2, 1e-3


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
            if total.agrees or gradient.ndim < 2 or gradient.min() >= 0:
                continue  # a gradient has both signs, probabilities do not
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
    """Yield each branch by itself, then the gradient without it.

    What is the gradient times a number is no addend of it.
    """
    for branch in branches:
        if np.any(branch) and not _is_multiple(gradient, branch):
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


def suggest_single_branch(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the gradient of one branch alone, or without it, or with it twice; of few elements.

    What no recorded op adds to, and is the branch times a number, has no other branch.
    ``suggest_other_sum`` says more of gradients of more elements.
    """
    if case.phase != BACKWARD or case.faithful.size < 2:
        return
    has_sum = "add" in case.kinds
    operands = list(case.find_same_size_operands())[:_MAX_DIFFERENCE_OPERANDS]
    for operand in operands:
        branch = operand.array.reshape(case.faithful.shape)
        if np.any(branch) and (has_sum or not _is_multiple(case.faithful, branch)):
            for predicted in (case.faithful - branch, branch):
                yield Candidate(predicted, _MISSING_BRANCH, unchanged=case.faithful)
            yield Candidate(
                case.faithful + branch,
                "the gradient of one branch counted twice",
                unchanged=case.faithful,
                cause="gradient-scaled",
            )


def _is_multiple(array: AnyArray, other: AnyArray) -> bool:
    """Return whether an array is another one times a number: no other gradient was added to it."""
    numbers, others = array.reshape(-1).astype(float), other.reshape(-1).astype(float)
    factor = float(numbers @ others) / float(others @ others)
    return compute_residual(factor * others, numbers) <= _MAX_MULTIPLE_ERROR


@dataclass(frozen=True, eq=False)
class Addend:
    """A gradient that may be one of those of which a gradient is the sum."""

    name: str
    array: Floats


def suggest_other_sum(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that some addends of a gradient are missing, or multiplied by one number.

    The difference of both sides is solved for as a sum of a few gradients of the same shape. The
    fewest that explain it count, and only if all have one coefficient: -1 if they are missing.
    """
    if case.phase != BACKWARD or case.faithful.size < _MIN_SUM_ELEMENTS:
        return
    addends = list_sum_addends(case)
    solutions = find_sums((case.faulty - case.faithful).reshape(-1), addends)
    if solutions and is_derivative(case):
        return
    for own_addends, coefficient in solutions[:_MAX_SOLUTIONS]:
        yield _describe_sum(case, own_addends, coefficient)


def find_sums(
    difference: Floats, addends: Sequence[Addend]
) -> list[tuple[tuple[Addend, ...], float]]:
    """Return (addends, coefficient) of the sums of fewest addends that are a difference.

    Arrays have as many elements as the difference. A missing gradient, with the coefficient -1, is
    a likelier fault than the opposite of another one, added twice.
    """
    if not addends:
        return []
    matrix = np.stack([addend.array.reshape(-1) for addend in addends])
    products, projections = matrix @ matrix.T, matrix @ difference
    energy = float(difference @ difference)
    for n_addends in range(1, _MAX_ADDENDS + 1):
        solutions = []
        for numbers in combinations(range(len(addends)), n_addends):
            rows = np.asarray(numbers)
            coefficient = float(projections[rows].sum() / products[np.ix_(rows, rows)].sum())
            rest = energy - coefficient * float(projections[rows].sum())
            if rest <= _MAX_REST * energy and abs(coefficient) > _MIN_COEFFICIENT:
                solutions.append((rest, numbers, coefficient))
        solutions.sort(key=lambda solution: (abs(1 + solution[2]) >= _ZERO_FACTOR, solution))
        if solutions:
            return [
                (tuple(addends[number] for number in numbers), coefficient)
                for _, numbers, coefficient in solutions
            ]
    return []


def _describe_sum(case: FaultCase, addends: Sequence[Addend], coefficient: float) -> Candidate:
    """Return the candidate with some addends times 1 + ``coefficient``."""
    total = np.sum([addend.array for addend in addends], axis=0)
    names = " and ".join(addend.name for addend in addends)
    noun = "gradients" if len(addends) > 1 else "gradient"
    factor = 1 + coefficient
    is_missing = abs(factor) < _ZERO_FACTOR
    if is_missing:
        factor = 0.0
    if is_missing and len(addends) == 1 and _has_broadcast_factor(case.faithful, addends[0].array):
        return Candidate(
            case.faithful - total.reshape(case.faithful.shape),
            f"{names} times x in place of 1 + x",
            "has 1 + x",
            unchanged=case.faithful,
            cause="missing-term",
        )
    return Candidate(
        case.faithful + (factor - 1) * total.reshape(case.faithful.shape),
        f"the {noun} of {names} missing in a sum"
        if is_missing
        else f"the {noun} of {names} times {factor:.6g} in a sum",
        "adds it" if len(addends) == 1 else "adds them",
        parameters={} if is_missing else {"factor": factor},
        unchanged=case.faithful,
        cause="gradient-stopped" if is_missing else "gradient-scaled",
    )


def _has_broadcast_factor(product: AnyArray, gradient: Floats) -> bool:
    """Return whether a product is a gradient times a factor that has not all of its axes.

    Then no gradient is added to it: what lacks the gradient has the factor less 1.
    """
    factors = gradient.reshape(product.shape).astype(np.float64)
    for axis in np.flatnonzero(np.array(product.shape) > 1).tolist():
        energies = np.sum(factors**2, axis=axis, keepdims=True)
        projections = np.sum(factors * product, axis=axis, keepdims=True)
        fitted = factors * projections / np.where(energies > 0, energies, 1.0)
        if compute_residual(fitted, product) <= _MAX_MULTIPLE_ERROR:
            return True
    return False


def list_sum_addends(case: FaultCase) -> list[Addend]:
    """Return different gradients of the value's size: upstream ones, then those before it.

    A gradient with the axes of the value in another order, as a convolution has it, is arranged
    like the difference of both sides.
    """
    size, difference = case.faithful.size, case.faulty - case.faithful
    addends: list[Addend] = []
    for operand in (*case.list_shared_operands(), *case.find_other_gradients()):
        if int(np.prod(operand.shape)) != size or operand.parameter or not operand.is_floating:
            continue
        array = arrange_like(operand.array, difference)
        is_known = any(np.array_equal(array, addend.array) for addend in addends)
        if np.any(array) and not is_known:
            addends.append(Addend(operand.name, array))
        if len(addends) == MAX_SUM_OPERANDS:
            break
    return addends


def suggest_row_factors(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the gradient of a table with each row divided by how often it was looked up.

    As ``scale_grad_by_freq`` does. The factors are read from the rows, and must be the inverses of
    whole numbers, or whole numbers if the faithful side divides.
    """
    if case.phase != BACKWARD or case.faithful.ndim != 2 or case.faithful.shape[1] < 2:
        return
    energies = np.sum(case.faithful**2, axis=1)
    has_gradient = energies > 0
    products = np.sum(case.faulty * case.faithful, axis=1)
    factors = products[has_gradient] / energies[has_gradient]
    if not factors.size or not np.all(factors > 0):
        return
    for numbers, power, text, contrast in (
        (1 / factors, -1, "each row divided by a whole number", "does not divide them"),
        (factors, 1, "the sums of the gradients of each row", "divides each row by a whole number"),
    ):
        counts = np.round(numbers)
        is_whole = bool(np.all(np.abs(numbers - counts) <= _COUNT_DISTANCE * counts))
        if not is_whole or len(np.unique(counts)) < _MIN_COUNTS:
            continue
        predicted = case.faithful.copy()
        predicted[has_gradient] *= counts[:, None] ** power
        yield Candidate(
            predicted,
            f"{text}, {counts.min():g} to {counts.max():g}: how often a token occurs",
            contrast,
            unchanged=case.faithful,
            cause="gradient-scaled",
        )


HYPOTHESES = (
    Hypothesis("gradient-stopped", suggest_missing_branch_of_product),
    Hypothesis("gradient-stopped", suggest_missing_branch_of_vector),
    Hypothesis("gradient-stopped", suggest_other_sum),
    Hypothesis("gradient-stopped", suggest_single_branch),
    Hypothesis("gradient-scaled", suggest_row_factors),
)
