"""Gradients of parameters that have the same numbers on both sides, in another order.

Checkpoints store rotary pairs next to each other or as halves, and the rows of the weights follow.
The product of queries and keys undoes that order. Where the heads of a group are next to each other
or apart, the rows of the queries' weight and the columns of the output's weight follow. The kernel
of a convolution is a matrix for joined patches. Then the gradients of the weights have that order,
too. Whether the weights themselves are a difference depends on what is computed from them, see
``divergence.states``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..model.arrays import AnyArray, Floats, Ints
from .metrics import compute_metrics
from .whole_tensors import load_pair, replace_metrics

#: Layouts of a gradient whose rows, columns, or single elements are those of the other side in the
#: order of the parameter's, by the axis that has the order; None: the axis of all elements.
_LAYOUTS = {0: "rows permuted", 1: "columns permuted", None: "elements permuted"}


def accept_permuted_rows(alignment: Alignment, pairs: pd.DataFrame) -> None:
    """Compare the gradient of a parameter with permuted rows, columns or elements in its order."""
    is_whole = pairs["metric"].to_numpy() == "relative_l2"
    differs = is_whole & (pairs["error"].to_numpy() > pairs["tolerance"].to_numpy())
    if alignment.gradients is None or not differs.any():
        return
    rows_of_targets = {value: row for row, value in enumerate(pairs["target"].tolist())}
    gradients_t = {
        **alignment.gradients[0].by_value,
        **_map_named_gradients(alignment),
    }
    for value, gradient in gradients_t.items():
        row, gradient_row = rows_of_targets.get(value, -1), rows_of_targets.get(gradient, -1)
        is_parameter = bool(alignment.target.producers[value] < 0)
        has_both = row >= 0 and gradient_row >= 0
        if not is_parameter or not has_both or not (differs[row] and differs[gradient_row]):
            continue
        for axis in _LAYOUTS:
            order = _find_order(alignment, pairs, row, axis)
            if order is not None:
                _compare_in_order(alignment, pairs, gradient_row, axis, order)
                error, tolerance = pairs["error"].iat[gradient_row], pairs["tolerance"]
                differs[gradient_row] = error > tolerance.iat[gradient_row]
                break


def _map_named_gradients(alignment: Alignment) -> dict[int, int]:
    """Return the target's parameters -> their gradients, as either record names them."""
    target, reference = alignment.target, alignment.reference
    partners = {r: t for t, r in alignment.partners.items()}
    gradients: dict[int, int] = {}
    for flow, to_target in ((reference, partners), (target, None)):
        for value, name in enumerate(flow.list_column("parameter")):
            gradient = flow.gradients_of_parameters.get(name, -1) if name else -1
            if gradient < 0:
                continue
            if to_target is None:
                gradients[value] = gradient
            elif value in to_target and gradient in to_target:
                gradients[to_target[value]] = to_target[gradient]
    return gradients


def _find_order(
    alignment: Alignment, pairs: pd.DataFrame, row: int, axis: int | None
) -> Ints | None:
    """Return the lines of the reference in the order of the target's.

    Lines are rows (axis 0), columns (1) or elements (None). None if they are others, or if elements
    are not distinct. Lines are put in order by a fixed sum of their elements.
    """
    a, b = load_pair(alignment, pairs, row)
    if a is None or b is None or a.size != b.size:
        return None
    if axis is not None and (a.shape != b.shape or not axis < a.ndim <= 2):
        return None
    lines_a, lines_b = _list_lines(a, axis), _list_lines(b, axis)
    weights = np.cos(np.arange(lines_a.shape[1]))
    keys_a, keys_b = lines_a @ weights, lines_b @ weights
    order_a, order_b = np.argsort(keys_a), np.argsort(keys_b)
    if axis is None and not np.diff(keys_a[order_a]).all():
        return None
    order: Ints = np.empty(len(order_a), dtype=np.int64)
    order[order_a] = order_b
    error = compute_metrics(lines_a, lines_b[order], 0.0, False).relative_l2
    return order if error <= float(pairs["tolerance"].iat[row]) else None


def _list_lines(array: AnyArray, axis: int | None) -> Floats:
    """Return (lines, elements of a line) in float64."""
    if axis is None:
        return array.reshape(-1, 1).astype(np.float64)
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)


def _compare_in_order(
    alignment: Alignment, pairs: pd.DataFrame, row: int, axis: int | None, order: Ints
) -> None:
    """Set the metrics of a pair whose rows, columns or elements agree in another order."""
    a, b = load_pair(alignment, pairs, row)
    if a is None or b is None or a.size != b.size:
        return
    if axis is not None and (a.shape != b.shape or b.shape[axis] != len(order)):
        return
    tolerance = float(pairs["tolerance"].iat[row])
    has_mask_fill = bool(pairs["has_mask_fill"].iat[row])
    b_in_order = b.take(order, axis).reshape(a.shape)
    metrics = compute_metrics(a, b_in_order, tolerance, has_mask_fill)
    if metrics.relative_l2 <= tolerance:
        replace_metrics(pairs, row, metrics, metrics.relative_l2, _LAYOUTS[axis])
