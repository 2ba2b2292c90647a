"""Situations made of arrays, for tests of single hypotheses: what a gathered one would hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from results import FINDING

from dumpdiff.causes.hypotheses import HYPOTHESES
from dumpdiff.causes.cause_search import find_causes
from dumpdiff.causes.fault_case import Operand, FaultCase
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.finding import Cause
from dumpdiff.operators import Call


def make_operand(name: str, array: AnyArray, *, kind: str = "", agreed: bool = True) -> Operand:
    """A value upstream; names that end in .weight or .bias are parameters."""
    parameter = name if name.endswith((".weight", ".bias")) else ""
    return Operand(name, kind, parameter, agreed, array.shape, lambda: array)


def make_fault_case(
    departing: AnyArray,
    plain: AnyArray,
    operands: Mapping[str, AnyArray],
    *,
    kind: str = "introduced",
    phase: str = "forward",
    scope: str = "layers.1.attention",
    after: frozenset[str] = frozenset(),
    numbers: tuple[float, ...] = (),
    dtype: str = "float32",
    call: Call | None = None,
    parameters: Mapping[str, AnyArray] | None = None,
    loss_near: bool = False,
) -> FaultCase:
    """The target departs; both sides hold float32 rounding, as real dumps do."""
    finding = replace(FINDING, kind=kind, phase=phase, scope=scope, tolerance=2e-6)
    ours, theirs = (np.asarray(v, dtype=np.float32).astype(np.float64) for v in (departing, plain))
    return FaultCase(
        finding=finding,
        faulty_role="target",
        faulty=ours,
        faithful=theirs,
        operands=tuple(make_operand(name, array) for name, array in operands.items()),
        faulty_operands=(),
        numbers=numbers,
        kinds=(),
        consumer_kinds=after,
        tolerance=finding.tolerance,
        dtype=dtype,
        call=call,
        is_near_loss=loss_near,
        parameters=tuple(make_operand(name, array) for name, array in (parameters or {}).items()),
    )


def explain_fault_case(seen: FaultCase) -> tuple[Cause, ...]:
    """What all hypotheses together make of it, best first."""
    return find_causes([seen], HYPOTHESES)[1]
