"""A gradient that lacks terms before the op that computes the value from it.

A recorder leaves out sums of gradients: the op behind such a sum reads a gradient that no op
computed. The other side's op reads one of its terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import BACKWARD
from ..fault_case import FaultCase, Operand, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..region import Region
from .composites.change import compute_with, list_floating_inputs
from .gradients import MAX_SUM_OPERANDS, Addend, find_sums


def suggest_terms_missing_before(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that one side's last step reads only some terms of what the other side's reads.

    The step, run again on the other side's gradient, must give the other side's value.
    """
    if case.phase != BACKWARD:
        return
    region = case.faulty_region
    if region is not None:
        for term, total, output in _iterate_totals(region, case.operands):
            if case.matches_faithful(output):
                names = _name_missing_terms(total, term, case.operands)
                yield Candidate(
                    region.steps[-1].output if region.unchanged is None else region.unchanged,
                    f"{region.steps[-1].name} of a gradient without {names}",
                    "adds it" if names.startswith("that") else "adds them",
                    unchanged=output,
                )
    region = case.region
    if region is not None:
        for term, total, output in _iterate_totals(region, case.faulty_operands):
            if compute_residual(output, case.faulty) <= case.limit:
                names = _name_missing_terms(total, term, case.faulty_operands)
                yield Candidate(
                    output,
                    f"{region.steps[-1].name} of a gradient with {names} added",
                    "does not add it" if names.startswith("that") else "does not add them",
                    unchanged=region.unchanged,
                )


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


def _name_missing_terms(total: Floats, term: Floats, operands: Sequence[Operand]) -> str:
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
            noun = "those of" if len(solution) > 1 else "that of"
            return f"{noun} {' and '.join(addend.name for addend in solution)}"
    return "other terms"


HYPOTHESES = (Hypothesis("gradient-stopped", suggest_terms_missing_before),)
