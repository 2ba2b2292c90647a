"""Results whose order an operator chooses freely: ``topk(sorted=False)``.

The k largest elements of a row are the same on both sides, in another order. So are the indices,
and what is gathered with them, until a sum or a scatter removes the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.arrays import AnyArray
from .metrics import Metrics, compute_metrics
from .whole_tensors import load_pair, replace_metrics

#: Slots of the argument that asks for an order, and of the axis that is ordered. As positions they
#: have numbers, of which only those of topk(input, k, dim, largest, sorted) are known.
_ORDER_SLOTS, _AXIS_SLOTS = ("input.sorted", "input.4"), ("input.dim", "input.2")
_POSITIONAL_KIND = "topk"
#: Axis that is ordered where the record does not name one.
_LAST_AXIS = -1


def accept_free_orders(alignment: Alignment, pairs: pd.DataFrame) -> None:
    """Compare whole tensors row by row as sets where the order of a row has no meaning.

    These are the results of an op of either side that may order freely, and what is computed from
    such a result as long as it has the same elements in another order. Where the sorted rows agree,
    the metrics are theirs and the layout is 'sorted(axis)'.
    """
    flows = (alignment.target, alignment.reference)
    visited: set[tuple[int, int, int]] = set()  # (side, class, axis)
    stack = []
    kinds = (alignment.target_kinds, alignment.reference_kinds)
    for side, flow in enumerate(flows):
        stack += [(side, value, axis) for value, axis in _iterate_free_results(flow, kinds[side])]
    if not stack:
        return
    rows_of_classes = _index_rows(pairs)
    while stack:
        side, value, axis = entry = stack.pop()
        if entry in visited:
            continue
        visited.add(entry)
        row = rows_of_classes[side].get(value)
        values = [-1, -1]
        values[side] = value
        if row is not None:
            if not _sort_pair(alignment, pairs, row, axis):
                continue
            values = [int(pairs["target"].iat[row]), int(pairs["reference"].iat[row])]
        for flow_side, flow_value in enumerate(values):
            if flow_value >= 0:
                followers = _list_followers(flows[flow_side], flow_value)
                stack += [(flow_side, follower, axis) for follower in followers]


def _index_rows(pairs: pd.DataFrame) -> tuple[dict[int, int], dict[int, int]]:
    """Return per side: class -> its row of the pairs of classes."""
    is_class_pair = (pairs["slot_pair"].isna() & pairs["group"].isna()).to_numpy()
    rows = np.flatnonzero(is_class_pair).tolist()
    classes_t, classes_r = pairs["target"].to_numpy()[rows], pairs["reference"].to_numpy()[rows]
    return (
        dict(zip(classes_t.tolist(), rows, strict=True)),
        dict(zip(classes_r.tolist(), rows, strict=True)),
    )


def _iterate_free_results(flow: Flow, kinds: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (class, axis counted from the end) of the results of ops that may order freely.

    ``kinds`` are the canonical kinds of the ops.
    """
    tensors = flow.tensors
    is_free = tensors["slot"].isin(_ORDER_SLOTS) & (tensors["max"] == 0)
    free_rows = np.flatnonzero(is_free.to_numpy()).tolist()
    for free_row in free_rows:
        op = int(tensors["op"].iat[free_row])
        is_named = tensors["slot"].iat[free_row] == _ORDER_SLOTS[0]
        if not is_named and kinds[op] != _POSITIONAL_KIND:
            continue
        rows = flow.get_tensor_ids(op)
        axis_slots = _AXIS_SLOTS if kinds[op] == _POSITIONAL_KIND else _AXIS_SLOTS[:1]
        is_axis = tensors["slot"].iloc[rows].isin(axis_slots).to_numpy()
        axis = _LAST_AXIS
        if is_axis.any():
            axis = int(tensors["max"].iat[int(rows[is_axis][0])])
        for value in flow.writes[op]:
            shape = tensors["shape"].iat[int(flow.list_column("tensor")[value])] or ()
            yield value, axis - len(shape) if axis >= 0 else axis


def _list_followers(flow: Flow, value: int) -> list[int]:
    """Return the values of the same size that are computed from a value."""
    followers = []
    for op in flow.users[value]:
        results = flow.writes[op]
        followers += [result for result in results if flow.sizes[result] == flow.sizes[value]]
    return followers


def _sort_pair(alignment: Alignment, pairs: pd.DataFrame, row: int, axis: int) -> bool:
    """Set the metrics of a pair that differs only in the order of its rows.

    Return whether it does.
    """
    metric, tolerance = pairs["metric"].iat[row], float(pairs["tolerance"].iat[row])
    if metric not in ("relative_l2", "mismatches") or pairs["error"].iat[row] <= tolerance:
        return False
    a, b = load_pair(alignment, pairs, row)
    if a is None or b is None or not _has_equal_rows(a, b, axis):
        return False
    has_mask_fill = bool(pairs["has_mask_fill"].iat[row])
    metrics = compute_metrics(np.sort(a, axis), np.sort(b, axis), tolerance, has_mask_fill)
    error = _get_error(metrics, str(metric), a.size)
    if not error <= tolerance:
        return False
    replace_metrics(pairs, row, metrics, error, f"sorted({axis})")
    return True


def _has_equal_rows(a: AnyArray, b: AnyArray, axis: int) -> bool:
    """Return whether both tensors have rows of one length along an axis, and as many."""
    if a.size != b.size or min(a.ndim, b.ndim) < -axis:
        return False
    return a.shape[axis] == b.shape[axis] and a.shape[axis:] == b.shape[axis:]


def _get_error(metrics: Metrics, metric: str, size: int) -> float:
    """Return the error by the metric that judges a pair."""
    if metric == "mismatches":
        return metrics.mismatches / max(1, size)
    return metrics.relative_l2
