"""A gradient that lacks terms before the op that computes the value from it.

A recorder leaves out sums of gradients: the op behind such a sum reads a gradient that no op
computed. The other side's op reads one of its terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....model.arrays import AnyArray, Floats
from ....model.trace import BACKWARD
from ...fault_case import FaultCase, Operand, compute_residual
from ...hypothesis import Candidate
from ...region import Region
from ..gradients import MAX_SUM_OPERANDS, Addend, find_sums
from .change import compute_with, list_floating_inputs


def suggest_terms_missing_before(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that one side's last step reads only some terms of what the other side's reads.

    The step, run again on the other side's gradient, must give the other side's value.
    """
    if case.phase == BACKWARD:
        yield from _suggest_terms(case, is_lacking=True)
        yield from _suggest_terms(case, is_lacking=False)


def _suggest_terms(case: FaultCase, *, is_lacking: bool) -> Iterator[Candidate]:
    """Suggest that the faulty side's step lacks terms, or that the faithful side's does."""
    region = case.faulty_region if is_lacking else case.region
    operands = case.operands if is_lacking else case.faulty_operands
    expected = case.faithful if is_lacking else case.faulty
    if region is None or region.unchanged is None:
        return
    name = region.steps[-1].name
    for term, total, output in _iterate_totals(region, operands):
        if compute_residual(output, expected) > case.limit:
            continue
        names = _list_missing_terms(total, term, operands)
        is_one = len(names) == 1
        noun = "that of" if is_one else "those of"
        terms = f"{noun} {' and '.join(names)}" if names else "other terms"
        if is_lacking:
            text = f"{name} of a gradient without {terms}"
            contrast = "adds it" if is_one else "adds them"
            yield Candidate(region.unchanged, text, contrast, unchanged=output)
        else:
            text = f"{name} of a gradient with {terms} added"
            contrast = "does not add it" if is_one else "does not add them"
            yield Candidate(output, text, contrast, unchanged=region.unchanged)


def _iterate_totals(
    region: Region, operands: Sequence[Operand]
) -> Iterator[tuple[AnyArray, AnyArray, AnyArray]]:
    """Yield (gradient that the last step reads, one in its place, value that follows from it)."""
    step = region.steps[-1]
    for position, item in list_floating_inputs(step):
        if item.is_parameter or not item.agrees:
            continue
        for operand in operands:
            is_same_size = int(np.prod(operand.shape)) == item.array.size
            if operand.agrees or operand.parameter or not is_same_size or not operand.is_floating:
                continue
            total = operand.array.reshape(item.array.shape)
            output = region.arrange(compute_with(step, position, total))
            if output is not None:
                yield item.array, total, output


def _list_missing_terms(total: Floats, term: Floats, operands: Sequence[Operand]) -> list[str]:
    """Return which gradients are the difference; those that are not recorded have no names."""
    addends = [
        Addend(operand.name, operand.array.reshape(-1))
        for operand in operands
        if int(np.prod(operand.shape)) == total.size and operand.is_floating
        if np.any(operand.array)
    ]
    difference = (total - term).reshape(-1)
    for solution, coefficient in find_sums(difference, addends[:MAX_SUM_OPERANDS]):
        if np.isclose(coefficient, 1):
            return [addend.name for addend in solution]
    return []
