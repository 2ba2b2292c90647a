"""Sums of two branches: one is scaled, taken from elsewhere, or has elements dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from os.path import commonprefix

import numpy as np

from ...model.arrays import AnyArray, Flags
from ...model.trace import BACKWARD
from ..fault_case import ZERO, FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor
from ..scalings import Scaling
from .attention import SCORE_KINDS

#: Operands that may be branches of a sum, and branches to which dropped elements were added.
_MAX_BRANCHES, _MAX_DROPOUT_BASES = 12, 8
#: Kinds of the ops that compute scores; what is added to them is a bias.
_PRODUCT_KINDS = {"matmul", "mul", "div", "addmm"}
#: A branch with a smaller factor is missing.
_MIN_FACTOR = 1e-6
#: A recorded value is the scaled branch within this many limits of the case: the factor was fitted
#: to the sum, of which the branch is a part.
_BRANCH_LIMITS = 10
#: Words in the names of experts that all tokens use.
_EXPERT_WORDS = ("expert", "shared")
#: Share of elements that dropout drops.
_MIN_DROPPED, _MAX_DROPPED = 0.01, 0.95
#: Fewest elements of a value, and of a dropout mask, that show dropout.
_MIN_ELEMENTS, _MIN_MASK_ELEMENTS = 16, 9
#: Relative to the largest element: a dropped element is at most the first, and was more than the
#: second.
_ZERO_SHARE, _NONZERO_SHARE = 1e-5, 1e-4
#: Standard deviations by which the share of dropped elements may differ from p.
_MAX_DEVIATIONS = 12.0
#: Different numbers of a value from which elements may be dropped.
_MIN_DIFFERENT = 8


def suggest_changed_branch(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = a + c b, a, or d + b with another operand d, if faithful = a + b."""
    if case.faithful.size < 2 or case.is_source:
        return
    same_size = list(case.find_same_size_operands())[:_MAX_BRANCHES]
    branches = [(operand, operand.array.reshape(case.faithful.shape)) for operand in same_size]
    for (first, a), (second, b) in combinations(branches, 2):
        if not case.matches_faithful(a + b):
            continue
        if case.phase == BACKWARD:
            for branch in (a, b):
                yield Candidate(
                    branch,
                    "the gradient of one branch missing",
                    unchanged=a + b,
                    cause="gradient-stopped",
                )
        for (kept, kept_branch), (changed, changed_branch) in (
            ((first, a), (second, b)),
            ((second, b), (first, a)),
        ):
            yield _scale_branch(case, kept_branch, changed_branch, changed)
            if case.consumer_kinds & SCORE_KINDS:
                continue  # a sum of scores and a bias has no residual branch
            is_residual = case.depends_on(kept.value, changed.value)
            yield from _replace_branch(
                case, branches, kept_branch, changed_branch, is_residual=is_residual
            )
        return


def _scale_branch(
    case: FaultCase, kept_branch: AnyArray, changed_branch: AnyArray, operand: Operand
) -> Candidate:
    """Return the candidate with the branch of an operand multiplied by the best factor."""
    factor = fit_factor(changed_branch, case.faulty - kept_branch)
    cause = "residual-scale"
    if case.consumer_kinds & SCORE_KINDS:
        cause = "scale" if operand.kind in _PRODUCT_KINDS else "relative-bias"
    if not np.isfinite(factor) or abs(factor) <= _MIN_FACTOR:
        return Candidate(
            kept_branch,
            "one branch of the sum missing",
            unchanged=kept_branch + changed_branch,
            cause=cause,
        )
    scaled_branch = factor * changed_branch
    return Candidate(
        kept_branch + scaled_branch,
        f"one branch of the sum {factor:.6g} times the {case.faithful_side}'s",
        recorded=_describe_branch_scalings(case, operand, scaled_branch, factor),
        parameters={"factor": factor},
        unchanged=kept_branch + changed_branch,
        cause="gradient-scaled" if case.phase == BACKWARD else cause,
    )


def _describe_branch_scalings(
    case: FaultCase, operand: Operand, scaled_branch: AnyArray, factor: float
) -> str:
    """Return the recorded numbers that make the factor of a branch; '' if none do."""
    faulty_scalings: Sequence[Scaling] = ()
    for faulty_operand in case.faulty_operands:
        if faulty_operand.array.size != scaled_branch.size or not faulty_operand.is_floating:
            continue
        if compute_residual(faulty_operand.array, scaled_branch) <= _BRANCH_LIMITS * case.limit:
            faulty_scalings = faulty_operand.load_scalings()
            break
    return case.describe_scalings(factor, faulty_scalings, operand.load_scalings())


def _replace_branch(
    case: FaultCase,
    branches: list[tuple[Operand, AnyArray]],
    kept_branch: AnyArray,
    changed_branch: AnyArray,
    *,
    is_residual: bool,
) -> Iterator[Candidate]:
    """Suggest another value in place of a branch; a residual is what the other branch reads."""
    for operand, branch in branches:
        if branch is kept_branch or branch is changed_branch:
            continue
        cause, description = "residual-order", f"the residual taken from {operand.name}"
        for addend_operand, addend in branches:
            if compute_residual(branch + addend, changed_branch) <= case.limit:
                cause, description = _describe_missing_addend(case, addend_operand)
                break
        if cause == "residual-order" and not is_residual:
            continue
        yield Candidate(
            kept_branch + branch,
            description,
            unchanged=kept_branch + changed_branch,
            cause=cause,
        )


def _describe_missing_addend(case: FaultCase, addend: Operand) -> tuple[str, str]:
    """Return (cause, description) of an addend that is left out.

    The parameters that the faulty side does not use show to which module it belongs.
    """
    modules = [
        operand.parameter.split(".")[:-1]
        for operand in case.operands
        if operand.parameter and not operand.agrees
    ]
    common_path = ".".join(commonprefix(modules))
    if not common_path:
        return "missing-term", f"without {addend.name} in the sum"
    is_expert = all(any(word in ".".join(path) for word in _EXPERT_WORDS) for path in modules)
    return "expert-missing" if is_expert else "missing-term", f"without {common_path} in the sum"


def suggest_dropout(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that dropout was applied to the value, or to a branch of a sum.

    Some elements are zero, the others are multiplied by 1 / (1 - p).
    """
    if not case.is_forward_value or case.faithful.size < _MIN_ELEMENTS:
        return
    if len(np.unique(case.faithful)) < _MIN_DIFFERENT:
        return  # a table of a few numbers, such as shares of labels
    bases = [ZERO, *case.find_same_size_arrays()][:_MAX_DROPOUT_BASES]
    for base in bases:
        faulty, faithful = case.faulty - base, case.faithful - base
        largest = float(np.abs(faithful).max())
        if largest == 0:
            continue
        is_zero = np.abs(faulty) <= _ZERO_SHARE * largest
        is_dropped = is_zero & (np.abs(faithful) > _NONZERO_SHARE * largest)
        share = float(is_dropped.mean())
        undropped = np.where(is_dropped, 0.0, faithful)
        if (
            not _MIN_DROPPED <= share < _MAX_DROPPED
            or not undropped.any()
            or _drops_rows(is_dropped)
        ):
            continue
        factor = fit_factor(undropped, faulty)
        max_deviation = _MAX_DEVIATIONS / np.sqrt(faulty.size)
        if factor >= 1 + _MIN_DROPPED / 2 and abs(factor * (1 - share) - 1) < max_deviation:
            yield Candidate(
                base + factor * undropped,
                _format_dropout(share, factor),
                parameters={"share": share, "factor": factor},
                unchanged=case.faithful,
                cause="dropout",
            )


def _drops_rows(is_dropped: Flags) -> bool:
    """Return whether only whole rows are dropped: these are tokens without a value, not dropout."""
    rows = is_dropped.reshape(-1, is_dropped.shape[-1])
    return bool(np.all(rows.all(axis=1) | ~rows.any(axis=1)))


def _format_dropout(share: float, factor: float) -> str:
    """Return the description with p = 1 - 1 / factor: the share of zeros is an estimate of it."""
    return (
        f"dropout with p = {1 - 1 / factor:.3g}: {share:.2g} of the elements are zero, the others "
        f"multiplied by {factor:.4g}"
    )


def suggest_dropout_of_input(case: FaultCase) -> Iterator[Candidate]:
    """Suggest dropout on an input of the last op, by a mask that only the faulty side has.

    The mask holds zeros and 1 / (1 - p).
    """
    if case.call is None or not case.is_forward_value:
        return
    for operand in case.faulty_operands:
        mask = operand.array
        factor = _read_operand_mask(operand)
        if factor is None:
            continue
        share = float(np.mean(mask == 0))
        for position, value in enumerate(case.call.inputs):
            if value.size != mask.size:
                continue
            inputs = list(case.call.inputs)
            inputs[position] = value * mask.reshape(value.shape)
            predicted = case.repeat_call(inputs)
            if predicted is not None:
                yield Candidate(
                    predicted,
                    _format_dropout(share, factor),
                    parameters={"share": share, "factor": factor},
                    unchanged=case.faithful,
                    cause="dropout",
                )


def _read_operand_mask(operand: Operand) -> float | None:
    """Return the factor of a dropout mask that only one side has; None for other operands."""
    if operand.agrees or not operand.is_floating:
        return None
    return read_mask_factor(operand.array)


def read_mask_factor(array: AnyArray) -> float | None:
    """Return 1 / (1 - p) of a dropout mask, which holds it and zeros; None for other arrays."""
    if array.size < _MIN_MASK_ELEMENTS:
        return None
    values = np.unique(array)
    if len(values) != 2:
        return None
    zero, factor = float(values[0]), float(values[1])
    return factor if zero == 0 and factor > 1 else None


HYPOTHESES = (
    Hypothesis("residual-scale", suggest_changed_branch),
    Hypothesis("dropout", suggest_dropout),
    Hypothesis("dropout", suggest_dropout_of_input),
)
