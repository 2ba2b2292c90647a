"""Situations made of arrays, for tests of single hypotheses: what a gathered one would hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from results import FINDING

from dumpdiff.causes.hypotheses import ALL
from dumpdiff.causes.selection import causes
from dumpdiff.causes.situation import Operand, Situation
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.result import Cause
from dumpdiff.operators import Call


def operand(name: str, array: AnyArray, *, kind: str = "", agreed: bool = True) -> Operand:
    """A value upstream; names that end in .weight or .bias are parameters."""
    parameter = name if name.endswith((".weight", ".bias")) else ""
    return Operand(name, kind, parameter, agreed, array.shape, lambda: array)


def situation(
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
) -> Situation:
    """The target departs; both sides hold float32 rounding, as real dumps do."""
    finding = replace(FINDING, kind=kind, phase=phase, scope=scope, tolerance=2e-6)
    ours, theirs = (np.asarray(v, dtype=np.float32).astype(np.float64) for v in (departing, plain))
    return Situation(
        finding=finding,
        departing_role="target",
        departing=ours,
        plain=theirs,
        operands=tuple(operand(name, array) for name, array in operands.items()),
        others=(),
        numbers=numbers,
        kinds=(),
        after=after,
        tolerance=finding.tolerance,
        dtype=dtype,
        call=call,
        loss_near=loss_near,
        parameters=tuple(operand(name, array) for name, array in (parameters or {}).items()),
    )


def told(seen: Situation) -> tuple[Cause, ...]:
    """What all hypotheses together make of it, best first."""
    return causes([seen], ALL)[1]
