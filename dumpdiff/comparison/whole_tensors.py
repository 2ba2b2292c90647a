"""Whole tensors of a pair: which two files to read, and what they say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import unit_roundoff
from ..model.errors import DumpError
from ..model.threads import each
from ..model.trace import Problem
from .layouts import laid_out
from .metrics import Metrics, compare
from .narrow_dtypes import round_to

METRICS = tuple(Metrics.__dataclass_fields__)
_REARRANGED = 0.2  # relative L2: elements in another order are farther apart than this


def tensors_to_compare(
    target: Flow, ids_t: Ints, reference: Flow, ids_r: Ints
) -> tuple[Ints, Ints]:
    """Per pair one tensor of either class: whole ones of one shape if there are any, else those that stand for it."""
    members_t, members_r = _members(target), _members(reference)
    chosen_t = target.classes["tensor"].to_numpy()[ids_t].copy()
    chosen_r = reference.classes["tensor"].to_numpy()[ids_r].copy()
    for row, (t, r) in enumerate(zip(ids_t.tolist(), ids_r.tolist(), strict=True)):
        shapes_r = members_r.get(r)
        shapes_t = members_t.get(t)
        if not shapes_t or not shapes_r:
            continue
        common = next((shape for shape in shapes_t if shape in shapes_r), None)
        chosen_t[row] = shapes_t[common] if common is not None else next(iter(shapes_t.values()))
        chosen_r[row] = shapes_r[common] if common is not None else next(iter(shapes_r.values()))
    return chosen_t, chosen_r


def _members(flow: Flow) -> dict[int, dict[tuple[int, ...], int]]:
    """Per class the whole tensors it has, one per shape (without axes of length 1), outputs first."""
    tensors = flow.tensors
    rows = np.flatnonzero((tensors["file"] != "").to_numpy() & (flow.tensor_class >= 0))
    rows = rows[np.argsort((tensors["role"].to_numpy()[rows] != "output"), kind="stable")]
    table: dict[int, dict[tuple[int, ...], int]] = {}
    shapes = tensors["shape"].to_numpy()
    for row, value in zip(rows.tolist(), flow.tensor_class[rows].tolist(), strict=True):
        shape = tuple(length for length in (shapes[row] or ()) if length != 1)
        table.setdefault(value, {}).setdefault(shape, row)
    return table


def measure_whole(
    alignment: Alignment,
    pairs: pd.DataFrame,
    todo: Ints,
    discrete: Flags,
    progress: Callable[[float], None] | None,
) -> tuple[Problem, ...]:
    """Fill in the metrics of the pairs ``todo``; what cannot be read keeps its statistics and becomes a problem."""
    target, reference = alignment.target, alignment.reference
    columns: dict[str, Floats] = {
        name: np.full(len(pairs), np.nan) for name in (*METRICS, "rounded_error")
    }
    error, metric, layout = (
        pairs[name].to_numpy(copy=True) for name in ("error", "metric", "layout")
    )
    tolerance = pairs["tolerance"].to_numpy(copy=True)
    tensors_t, tensors_r = pairs["target_tensor"].to_numpy(), pairs["reference_tensor"].to_numpy()
    problems: list[Problem] = []

    def measure(row: int) -> tuple[int, str, Metrics | None, float]:
        try:
            a, b = shaped(target, int(tensors_t[row])), shaped(reference, int(tensors_r[row]))
            found = compare(a, b, float(tolerance[row]))
            name = "same" if a.shape == b.shape else "reshape"
            if found.relative_l2 > max(tolerance[row], _REARRANGED) and a.size > 1:
                name, a, b = laid_out(a, b)
                if "transpose" in name:
                    found = compare(a, b, float(tolerance[row]))
            narrow = _narrower(target, int(tensors_t[row]), reference, int(tensors_r[row]))
            rounded = (
                compare(round_to(a, narrow), round_to(b, narrow), 0.0).relative_l2
                if narrow
                else np.nan
            )
        except (DumpError, OSError, ValueError) as reason:
            return row, str(reason), None, np.nan
        return row, name, found, rounded

    elements = target.tensors["size"].to_numpy()[tensors_t[todo]].tolist()
    for done, (row, name, found, rounded) in enumerate(each(measure, todo.tolist(), elements)):
        if found is None:
            problems.append(Problem(str(target.tensors["file"].iat[int(tensors_t[row])]), name))
            continue
        for field in METRICS:
            columns[field][row] = getattr(found, field)
        columns["rounded_error"][row] = rounded
        layout[row] = name
        if discrete[row]:  # indices and masks are equal or not
            size = int(target.tensors["size"].iat[int(tensors_t[row])])
            metric[row], error[row], tolerance[row] = (
                "mismatches",
                found.mismatches / max(1, size),
                0.0,
            )
        else:
            metric[row], error[row] = "relative_l2", found.relative_l2
        if progress and done % 64 == 0:
            progress(done / len(todo))
    for column, values in columns.items():
        pairs[column] = values
    pairs["error"], pairs["metric"], pairs["layout"], pairs["tolerance"] = (
        error,
        metric,
        layout,
        tolerance,
    )
    return tuple(problems)


def shaped(flow: Flow, tensor: int) -> AnyArray:
    """The whole tensor in its recorded shape (graph-mode files of reshaped outputs carry the input's)."""
    array = flow.trace.array(tensor)
    shape = flow.tensors["shape"].iat[tensor]
    if shape is not None and array.shape != shape and array.size == np.prod(shape, dtype=np.int64):
        return array.reshape(shape)
    return array


def _narrower(target: Flow, t: int, reference: Flow, r: int) -> str:
    """The narrower dtype of two floating ones that differ in precision, '' if they do not."""
    a, b = target.tensors["dtype"].iat[t], reference.tensors["dtype"].iat[r]
    units = unit_roundoff(a), unit_roundoff(b)
    return "" if units[0] == units[1] or 0.0 in units else (a if units[0] > units[1] else b)
