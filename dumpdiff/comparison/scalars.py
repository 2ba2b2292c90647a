"""Scalar arguments of paired ops: a wrong epsilon, scale or axis is a scalar input."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.dtypes import is_floating

_SAME = 6e-6  # relative: six printed digits, as the graph text has them, are off by up to 5e-6


def scalar_differences(alignment: Alignment) -> pd.DataFrame:
    """Floating scalars that differ between paired ops: columns target_op, reference_op, target, reference (the values).

    Only ops of one kind with as many floating scalars are compared: shapes, axes and flags are written too differently.
    """
    scalars_t, scalars_r = _floats(alignment.target), _floats(alignment.reference)
    rows = []
    for t, r in alignment.ops.itertuples(index=False):
        ours, theirs = scalars_t.get(t, ()), scalars_r.get(r, ())
        if alignment.kinds_t[t] != alignment.kinds_r[r] or len(ours) != len(theirs):
            continue
        rows += [
            (t, r, a, b)
            for a, b in zip(ours, theirs, strict=True)
            if abs(a - b) > _SAME * max(abs(a), abs(b))
        ]
    return pd.DataFrame(rows, columns=["target_op", "reference_op", "target", "reference"])


def _floats(flow: Flow) -> dict[int, tuple[float, ...]]:
    """Per op its floating scalars in slot order; scalars that are tensors of one element count only if constant."""
    tensors = flow.tensors
    chosen = (
        tensors["constant"]
        & (tensors["size"] <= 1)
        & tensors["dtype"].map(is_floating).astype(bool)
    )
    table = tensors.loc[chosen & np.isfinite(tensors["max"]), ["op", "max"]]
    found: dict[int, tuple[float, ...]] = {}
    for op, value in table.itertuples(index=False):
        found[op] = (*found.get(op, ()), value)
    return found
