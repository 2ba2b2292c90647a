"""Differences of weights that a step inherits from the step before, and that are allowed to it.

Two correct runs leave weights that differ by more than their rounding: Adam divides a gradient by
its own size, and so enlarges its noise. Where the step before was compared, the error that it left
is known.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..graph.missing_edges import is_graph_input
from ..model.inheritance import MAX_GROWTH, Inheritance
from .new_weights import find_new_weight_rows


def index_weights(flow: Flow) -> dict[str, int]:
    """Return the class of each parameter as it is when the step begins, by its name."""
    names = flow.tensors["parameter"]
    first_rows = names[names != ""].drop_duplicates().index
    classes = flow.tensor_class[first_rows.to_numpy()].tolist()
    values = zip(names[first_rows].tolist(), classes, strict=True)
    return {name: value for name, value in values if value >= 0}


def allow_inherited_errors(
    alignment: Alignment, pairs: pd.DataFrame, inheritance: Inheritance | None
) -> None:
    """Raise the tolerances of weights to inherited errors, and of what is computed from them.

    A computed value may differ by a multiple of the largest error that a weight of any rank has, a
    new weight by the error of the old one.
    """
    if inheritance is None:
        return
    values = index_weights(alignment.target)
    error_of_value = {
        values[name]: error for name, error in inheritance.allowed_errors.items() if name in values
    }
    allowed_errors = np.zeros(len(pairs))
    for row, (value, group) in enumerate(zip(pairs["target"], pairs["group"], strict=True)):
        parts = (value,) if group is None else group.target
        allowed_errors[row] = max(error_of_value.get(part, 0.0) for part in parts)
    tolerance = pairs["tolerance"].to_numpy(dtype=float)
    is_given = [is_graph_input(alignment.target, value) for value in pairs["target"].tolist()]
    is_computed = ~np.array(is_given, dtype=bool) & (tolerance > 0)
    allowed_errors[is_computed] = MAX_GROWTH * inheritance.largest_error
    for new_weight, row in zip(alignment.new_weights, find_new_weight_rows(alignment), strict=True):
        own_error = error_of_value.get(new_weight.old_target, 0.0)
        allowed_errors[row] = tolerance[row] + own_error
    pairs["tolerance"] = np.maximum(tolerance, allowed_errors)
