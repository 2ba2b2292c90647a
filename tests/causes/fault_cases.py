"""Fault cases made of arrays, for tests of single hypotheses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from results import FINDING

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.fault_case import FaultCase, Operand
from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.model.arrays import AnyArray, Floats
from dumpdiff.model.finding import Cause
from dumpdiff.operators import Call


def make_operand(name: str, array: AnyArray, *, kind: str = "", agrees: bool = True) -> Operand:
    """Return a value upstream; names that end in .weight or .bias are parameters."""
    parameter = name if name.endswith((".weight", ".bias")) else ""
    return Operand(name, kind, parameter, agrees, array.shape, lambda: array)


def make_operands(arrays: Mapping[str, AnyArray]) -> tuple[Operand, ...]:
    """Return one operand per array."""
    return tuple(make_operand(name, array) for name, array in arrays.items())


def make_fault_case(
    faulty: AnyArray,
    faithful: AnyArray,
    operands: Mapping[str, AnyArray],
    *,
    kind: str = "introduced",
    phase: str = "forward",
    scope: str = "layers.1.attention",
    consumer_kinds: frozenset[str] = frozenset(),
    numbers: tuple[float, ...] = (),
    dtype: str = "float32",
    call: Call | None = None,
    parameters: Mapping[str, AnyArray] | None = None,
    is_near_loss: bool = False,
) -> FaultCase:
    """Return a case in which the target is faulty; values have float32 rounding, as in dumps."""
    finding = replace(FINDING, kind=kind, phase=phase, scope=scope, tolerance=2e-6)
    return FaultCase(
        finding=finding,
        faulty_side="target",
        faulty=_round_to_float32(faulty),
        faithful=_round_to_float32(faithful),
        operands=make_operands(operands),
        faulty_operands=(),
        numbers=numbers,
        kinds=(),
        faulty_kinds=(),
        consumer_kinds=consumer_kinds,
        tolerance=finding.tolerance,
        dtype=dtype,
        call=call,
        is_near_loss=is_near_loss,
        parameters=make_operands(parameters or {}),
    )


def _round_to_float32(array: AnyArray) -> Floats:
    return np.asarray(array, dtype=np.float32).astype(np.float64)


def explain_fault_case(case: FaultCase) -> tuple[Cause, ...]:
    """Return the causes that all hypotheses together find, best first."""
    return search_causes([case], HYPOTHESES).causes
