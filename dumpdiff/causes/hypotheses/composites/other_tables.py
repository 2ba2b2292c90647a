"""Tables and parameters that both sides hold, but with other numbers.

Neither framework names a constant table (a mask, rotary angles, a bias), and a parameter may have
another name or shape, so the two are not paired. If the operators of one side give the other's
value with the other's table, the table is what differs, and its own hypotheses say how.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....model.arrays import AnyArray
from ....model.finding import Kind
from ...cause_search import Explanation, iterate_explanations
from ...fault_case import FaultCase, Operand
from ...hypothesis import Hypothesis
from ...region import Region
from .. import attention, coordinate_tables, losses, masks, rotary, wave_tables, weights
from .change import Change, compute_with, list_floating_inputs

#: What one table may be to another, the simplest first.
_TABLE_HYPOTHESES: tuple[Hypothesis, ...] = (
    *rotary.TABLE_HYPOTHESES,
    *wave_tables.HYPOTHESES,
    *coordinate_tables.HYPOTHESES,
    *attention.MASK_HYPOTHESES,
    *masks.HYPOTHESES,
    *weights.HYPOTHESES,
)
_PARAMETER_HYPOTHESES: tuple[Hypothesis, ...] = weights.HYPOTHESES
_LOSS_TABLE_HYPOTHESES: tuple[Hypothesis, ...] = (*losses.MASK_HYPOTHESES, *weights.HYPOTHESES)
#: Largest table, and tables of the other side that are tried in place of one.
_MAX_ELEMENTS, _MAX_TABLES = 1 << 20, 8
#: Kinds of ops that compute a table of angles, which the other side may hold as a constant.
_TABLE_KINDS = ("", "cos", "sin")


def list_other_tables(case: FaultCase, region: Region) -> Iterator[Change]:
    """Give a step the other side's table in place of its own."""
    tables = _list_tables(case.faulty_operands)
    for number, step in enumerate(region.steps):
        for position, step_input in list_floating_inputs(step):
            if step_input.producer_kind not in _TABLE_KINDS or step_input.value < 0:
                continue
            for table in tables:
                if bool(table.parameter) != step_input.is_parameter:
                    continue
                is_equal = table.agrees and step_input.agrees
                if is_equal or table.array.size != step_input.array.size:
                    continue
                array = table.array.reshape(step_input.array.shape)
                output = compute_with(step, position, array)
                if output is None or np.array_equal(array, step_input.array):
                    continue
                kind: Kind = "parameter" if step_input.is_parameter else "constant"
                explanation = _compare_tables(case, array, step_input.array, kind)
                if explanation is None:
                    continue
                thing = f"{step_input.name} as " if step_input.is_parameter else ""
                yield Change(
                    number,
                    output,
                    explanation.cause_name,
                    f"{thing}{explanation.candidate.description}",
                    explanation.candidate.contrast,
                    explanation.candidate.parameters,
                    is_evident=True,
                )


def has_unpaired_tables(case: FaultCase) -> bool:
    """Return whether both sides read tables, and one of them is not also the other side's."""
    tables = [operand for operand in case.operands if _is_table(operand)]
    faulty_tables = [operand for operand in case.faulty_operands if _is_table(operand)]
    has_both = bool(tables and faulty_tables)
    return has_both and not all(operand.agrees for operand in (*tables, *faulty_tables))


def _list_tables(operands: Sequence[Operand]) -> list[Operand]:
    """Return the floating operands that no op computed, and tables of angles."""
    tables = [operand for operand in operands if _is_table(operand)]
    return [table for table in tables[:_MAX_TABLES] if table.is_floating]


def _is_table(operand: Operand) -> bool:
    if operand.kind not in _TABLE_KINDS or not operand.shape:
        return False
    return int(np.prod(operand.shape)) <= _MAX_ELEMENTS


def _compare_tables(
    case: FaultCase, faulty: AnyArray, faithful: AnyArray, kind: Kind
) -> Explanation | None:
    """Return what one table is to another; None if no hypothesis says."""
    hypotheses = _PARAMETER_HYPOTHESES
    if kind == "constant":
        hypotheses = _LOSS_TABLE_HYPOTHESES if case.is_of_loss else _TABLE_HYPOTHESES
    table_case = replace(
        case,
        finding=replace(case.finding, kind=kind),
        faulty=faulty,
        faithful=faithful,
        operands=(),
        faulty_operands=(),
        parameters=(),
        call=None,
        dtype="float32",
        load_region=lambda: None,
    )
    return next(iterate_explanations(table_case, hypotheses), None)
