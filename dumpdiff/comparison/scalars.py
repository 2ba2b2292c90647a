"""Scalar arguments of paired ops: a wrong epsilon, scale or axis is a scalar input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.dtypes import is_floating

#: Relative difference within which two scalars are equal: the graph text prints six digits, which
#: are off by up to 5e-6.
_MAX_DIFFERENCE = 6e-6


def find_scalar_differences(alignment: Alignment) -> pd.DataFrame:
    """Return the floating scalars that differ between paired ops.

    Columns: target_op, reference_op, target, reference (the values). Only ops of one kind with the
    same number of floating scalars are compared: frameworks write shapes, axes and flags too
    differently. They are compared by size, because the order of arguments differs, too.
    """
    target_scalars = _collect_scalars(alignment.target)
    reference_scalars = _collect_scalars(alignment.reference)
    rows = []
    for op_t, op_r in alignment.ops.itertuples(index=False):
        scalars_t, scalars_r = target_scalars.get(op_t, ()), reference_scalars.get(op_r, ())
        has_same_kind = alignment.target_kinds[op_t] == alignment.reference_kinds[op_r]
        if not has_same_kind or len(scalars_t) != len(scalars_r):
            continue
        for a, b in pair_different_scalars(scalars_t, scalars_r):
            rows.append((op_t, op_r, a, b))
    return pd.DataFrame(rows, columns=["target_op", "reference_op", "target", "reference"])


def pair_different_scalars(
    scalars: tuple[float, ...], other_scalars: tuple[float, ...]
) -> Iterator[tuple[float, float]]:
    """Yield the scalars without an equal one on the other side, paired in slot order.

    Frameworks order arguments differently: (epsilon, momentum) against (momentum, epsilon).
    """
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
    yield from zip(different_scalars, remaining_scalars, strict=True)


def _are_equal(a: float, b: float) -> bool:
    return abs(a - b) <= _MAX_DIFFERENCE * max(abs(a), abs(b))


def _collect_scalars(flow: Flow) -> dict[int, tuple[float, ...]]:
    """Return the floating scalars of each op in slot order.

    Scalars that are tensors of one element count only if they are constant.
    """
    tensors = flow.tensors
    is_scalar = tensors["constant"] & (tensors["size"] <= 1)
    is_scalar &= tensors["dtype"].map(is_floating).astype(bool)
    is_scalar &= np.isfinite(tensors["max"])
    scalars: dict[int, tuple[float, ...]] = {}
    for op, value in tensors.loc[is_scalar, ["op", "max"]].itertuples(index=False):
        scalars[op] = (*scalars.get(op, ()), value)
    return scalars
