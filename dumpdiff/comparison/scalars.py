"""Scalar arguments of paired ops: a wrong epsilon, scale or momentum is a scalar input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.dtypes import is_floating
from ..model.trace import flag_words
from ..rulebook import Rules

#: Relative difference within which two scalars are equal: the graph text prints six digits, which
#: are off by up to 5e-6.
MAX_DIFFERENCE = 6e-6


@dataclass(frozen=True)
class Scalar:
    """One floating scalar argument of an op."""

    argument: str  #: its name in the signature of the op, '' if that is not known
    number: float
    slot: str = ""  #: input.2, input.eps

    def get_key(self, *, is_same_call: bool) -> str:
        """Return what tells which argument it is; in one API a slot does."""
        return self.slot if is_same_call else self.argument


#: Op -> its scalar arguments, of one side.
OpScalars = Mapping[int, Sequence[Scalar]]


def find_scalar_differences(alignment: Alignment, scalars: Sequence[OpScalars]) -> pd.DataFrame:
    """Return the floating scalars that differ between paired ops of one kind.

    ``scalars`` are those of the target and of the reference, see :func:`collect_scalars`.
    Columns: target_op, reference_op, argument ('' if unknown), target, reference (the values).
    Frameworks write shapes, axes and flags too differently, so these are not compared.
    """
    target_scalars, reference_scalars = scalars
    kinds_t = alignment.target.trace.ops["kind"].tolist()
    kinds_r = alignment.reference.trace.ops["kind"].tolist()
    rows = []
    op_pairs = zip(
        alignment.ops["target"].tolist(), alignment.ops["reference"].tolist(), strict=True
    )
    for op_t, op_r in op_pairs:
        scalars_t = target_scalars.get(op_t)
        scalars_r = reference_scalars.get(op_r) if scalars_t else None
        if not scalars_t or not scalars_r:
            continue
        if alignment.target_kinds[op_t] != alignment.reference_kinds[op_r]:
            continue
        is_same_call = kinds_t[op_t] == kinds_r[op_r]
        for scalar_t, scalar_r in pair_different_scalars(
            scalars_t, scalars_r, is_same_call=is_same_call
        ):
            argument = scalar_t.argument or scalar_r.argument
            rows.append((op_t, op_r, argument, scalar_t.number, scalar_r.number))
    columns = ["target_op", "reference_op", "argument", "target", "reference"]
    return pd.DataFrame(rows, columns=columns)


def pair_different_scalars(
    scalars: Sequence[Scalar], other_scalars: Sequence[Scalar], *, is_same_call: bool = False
) -> list[tuple[Scalar, Scalar]]:
    """Return the scalars that differ, paired by the names of the arguments.

    Frameworks order arguments differently: (epsilon, momentum) against (momentum, epsilon). Without
    names, equal numbers are one argument. What is left is a pair only if each side has one left,
    and had as many as the other: in two APIs a position does not tell which argument it is.
    """
    keys = [scalar.get_key(is_same_call=is_same_call) for scalar in scalars]
    other_keys = [other.get_key(is_same_call=is_same_call) for other in other_scalars]
    if _are_names(keys) and _are_names(other_keys):
        others = dict(zip(other_keys, other_scalars, strict=True))
        named_pairs = [
            (scalar, others[key])
            for key, scalar in zip(keys, scalars, strict=True)
            if key in others
        ]
        return [(a, b) for a, b in named_pairs if not _are_equal(a, b)]
    if len(scalars) != len(other_scalars):
        return []
    remaining_scalars = list(other_scalars)
    different_scalars = []
    for scalar in scalars:
        equal_scalar = next(
            (other for other in remaining_scalars if _are_equal(scalar, other)), None
        )
        if equal_scalar is None:
            different_scalars.append(scalar)
        else:
            remaining_scalars.remove(equal_scalar)
    if len(different_scalars) != 1:
        return []
    return [(different_scalars[0], remaining_scalars[0])]


def _are_names(keys: Sequence[str]) -> bool:
    """Return whether all scalars of an op have a name, and different ones."""
    return bool(keys) and len(set(keys)) == len(keys) and "" not in keys


def _are_equal(a: Scalar, b: Scalar) -> bool:
    return abs(a.number - b.number) <= MAX_DIFFERENCE * max(abs(a.number), abs(b.number))


def collect_scalars(flow: Flow, rules: Rules) -> dict[int, tuple[Scalar, ...]]:
    """Return the floating scalars of each op in slot order.

    Scalars that are tensors of one element count only if they are constant.
    """
    tensors = flow.tensors
    is_scalar = tensors["constant"] & (tensors["size"] <= 1)
    is_scalar &= flag_words(tensors["dtype"], is_floating)
    is_scalar &= np.isfinite(tensors["max"])
    rows = np.flatnonzero(is_scalar.to_numpy())
    ops, slots, numbers = (tensors[name].to_numpy()[rows] for name in ("op", "slot", "max"))
    kinds = flow.trace.ops["kind"].to_numpy()[ops]

    @cache
    def get_argument_name(kind: str, slot: str) -> str:
        return rules.get_argument_name(kind, slot.partition(".")[2])

    scalars: dict[int, tuple[Scalar, ...]] = {}
    columns = (ops.tolist(), kinds.tolist(), slots.tolist(), numbers.tolist())
    for op, kind, slot, number in zip(*columns, strict=True):
        scalar = Scalar(get_argument_name(kind, slot), number, slot)
        scalars[op] = (*scalars.get(op, ()), scalar)
    return scalars
