"""Whole tensors of a pair: select the two files to read, and measure the difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..alignment import Alignment
from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import get_unit_roundoff
from ..model.errors import DumpError
from ..model.recorded_shapes import drop_unit_axes, load_readable_tensor, load_shaped_tensor
from ..model.threads import map_in_threads
from ..model.trace import FORWARD, Problem
from .layouts import REARRANGED_ERROR, find_common_layout
from .metrics import Metrics, compute_metrics
from .narrow_dtypes import round_to_dtype

METRIC_NAMES = tuple(Metrics.__dataclass_fields__)
#: Pairs between two reports of progress.
_PROGRESS_STEP = 64
#: Canonical kind of a record of the gradient of a parameter.
_PARAMETER_GRADIENT = "grad:parameters"


@dataclass(frozen=True)
class Measurement:
    """The metrics of one pair of whole tensors, or why one of them cannot be read.

    Without either, the two tensors do not show whether the values agree.
    """

    row: int
    tensors: tuple[int, int]  #: of the target and of the reference
    layout: str = "same"
    metrics: Metrics | None = None
    rounded_error: float = np.nan
    problem: str = ""


def select_tensors(
    target: Flow, target_ids: Ints, reference: Flow, reference_ids: Ints
) -> tuple[Ints, Ints]:
    """Return one tensor of either class per pair.

    Whole or sketched tensors of a common shape are preferred, then any such, then the tensors that
    stand for their classes.
    """
    target_members, reference_members = _list_whole_tensors(target), _list_whole_tensors(reference)
    target_tensors = target.classes["tensor"].to_numpy()[target_ids].copy()
    reference_tensors = reference.classes["tensor"].to_numpy()[reference_ids].copy()
    pairs = zip(target_ids.tolist(), reference_ids.tolist(), strict=True)
    for row, (value_t, value_r) in enumerate(pairs):
        shapes_t, shapes_r = target_members.get(value_t), reference_members.get(value_r)
        if not shapes_t or not shapes_r:
            continue
        common_shapes = [shape for shape in shapes_t if shape in shapes_r]
        shape_t = common_shapes[0] if common_shapes else next(iter(shapes_t))
        shape_r = common_shapes[0] if common_shapes else next(iter(shapes_r))
        target_tensors[row] = shapes_t[shape_t]
        reference_tensors[row] = shapes_r[shape_r]
    return target_tensors, reference_tensors


def _list_whole_tensors(flow: Flow) -> dict[int, dict[tuple[int, ...], int]]:
    """Return the whole tensors of each class, one per shape (without unit axes), outputs first.

    Where the dump has none, they are the sketched ones.
    """
    tensors = flow.tensors
    is_input = tensors["slot_kind"].to_numpy() != "output"
    is_recorded = flow.has_whole_tensor
    if not is_recorded.any():
        is_recorded = tensors["sketch"].notna().to_numpy() & (flow.tensor_class >= 0)
    rows = np.flatnonzero(is_recorded)
    rows = rows[np.argsort(is_input[rows], kind="stable")]
    shapes = tensors["shape"].to_numpy()
    table: dict[int, dict[tuple[int, ...], int]] = {}
    for row, value in zip(rows.tolist(), flow.tensor_class[rows].tolist(), strict=True):
        shape = drop_unit_axes(shapes[row])
        table.setdefault(value, {}).setdefault(shape, row)
    return table


def measure_whole_tensors(
    alignment: Alignment,
    pairs: pd.DataFrame,
    rows: Ints,
    is_discrete: Flags,
    progress: Callable[[float], None] | None,
) -> tuple[Problem, ...]:
    """Fill in the metrics of the pairs ``rows``.

    A tensor that cannot be read keeps its statistics and is returned as a problem.
    """
    target = alignment.target
    metric_columns: dict[str, Floats] = {
        name: np.full(len(pairs), np.nan) for name in (*METRIC_NAMES, "rounded_error")
    }
    judged_names = ("error", "metric", "layout", "tolerance")
    judged_columns = {name: pairs[name].to_numpy(copy=True) for name in judged_names}
    target_tensors = pairs["target_tensor"].to_numpy(copy=True)
    reference_tensors = pairs["reference_tensor"].to_numpy(copy=True)
    tolerances = pairs["tolerance"].to_numpy(copy=True)
    has_mask_fill = pairs["has_mask_fill"].to_numpy()
    statistic_errors = pairs["error"].to_numpy(copy=True)
    problems: list[Problem] = []

    def measure(row: int) -> Measurement:
        tensors = int(target_tensors[row]), int(reference_tensors[row])
        try:
            tolerance, may_have_fill = float(tolerances[row]), bool(has_mask_fill[row])
            has_equal_statistics = bool(statistic_errors[row] <= tolerance)
            return _measure_class_pair(
                alignment, row, tensors, tolerance, may_have_fill, has_equal_statistics
            )
        except (DumpError, OSError, ValueError) as error:
            return Measurement(row, tensors, problem=str(error))

    sizes = target.tensors["size"].to_numpy()[target_tensors]
    for n_done, result in enumerate(map_in_threads(measure, rows.tolist(), sizes[rows].tolist())):
        row, metrics = result.row, result.metrics
        target_tensors[row], reference_tensors[row] = result.tensors
        if metrics is None:
            if result.problem:
                file = str(target.tensors["file"].iat[int(target_tensors[row])])
                problems.append(Problem(file, result.problem))
            continue
        for name in METRIC_NAMES:
            metric_columns[name][row] = getattr(metrics, name)
        metric_columns["rounded_error"][row] = result.rounded_error
        judged_columns["layout"][row] = result.layout
        if is_discrete[row]:  # indices and masks are equal or not
            judged_columns["metric"][row] = "mismatches"
            judged_columns["error"][row] = metrics.mismatches / max(1, int(sizes[row]))
            judged_columns["tolerance"][row] = 0.0
        else:
            judged_columns["metric"][row] = "relative_l2"
            judged_columns["error"][row] = metrics.relative_l2
        if progress and n_done % _PROGRESS_STEP == 0:
            progress(n_done / len(rows))
    for name, values in (metric_columns | judged_columns).items():
        pairs[name] = values
    pairs["target_tensor"], pairs["reference_tensor"] = target_tensors, reference_tensors
    return tuple(problems)


def _measure_class_pair(
    alignment: Alignment,
    row: int,
    tensors: tuple[int, int],
    tolerance: float,
    has_mask_fill: bool,
    has_equal_statistics: bool,
) -> Measurement:
    """Measure a pair of classes by ``tensors``, else by what their producers or a parameter have.

    The tensors of a class may hold its numbers in several orders: those before and after a roll, or
    the gradients of a flipped kernel and of the parameter that was flipped. What is computed from
    sorted numbers is put back in the order of before. Two of one shape need not be in one order. In
    a dump of a few ops they may even be two values: a rotation keeps the norm and may keep the
    extremes. Then equal statistics count.
    """
    measurement = _measure_pair(alignment, row, tensors, tolerance, has_mask_fill)
    is_rearranged = _get_error(measurement) > max(tolerance, REARRANGED_ERROR)
    if not is_rearranged or row >= len(alignment.classes):  # a slot pair has tensors of its own
        return measurement
    written_tensors = (
        int(alignment.target.classes["tensor"].iat[alignment.classes["target"].iat[row]]),
        int(alignment.reference.classes["tensor"].iat[alignment.classes["reference"].iat[row]]),
    )
    if has_equal_statistics and _may_be_other_values(alignment, row, written_tensors):
        return Measurement(row, written_tensors)
    read_tensors = _list_read_tensors(alignment, row, tensors)
    groups = (
        [written_tensors],
        _find_last_outputs(alignment, row, tensors),
        _find_parameter_gradients(alignment, row),
        read_tensors,
    )
    for group in dict.fromkeys(map(tuple, groups)):  # often the last output is the only one
        others = [other for other in group if other != tensors]
        try:
            measurements = [
                _measure_pair(alignment, row, other, tolerance, has_mask_fill) for other in others
            ]
        except (DumpError, KeyError, OSError, ValueError):
            continue  # they were not recorded whole, or a file is damaged
        if measurements:
            worst = max(measurements, key=_get_error)
            measurement = min(measurement, worst, key=_get_error)
    return measurement


def _find_last_outputs(
    alignment: Alignment, row: int, tensors: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return what the last ops that give out the values of a pair wrote.

    A side of which no recorded op gives out the value has its own one of ``tensors``.
    """
    last_outputs = []
    for flow, values, tensor in (
        (alignment.target, alignment.classes["target"], tensors[0]),
        (alignment.reference, alignment.classes["reference"], tensors[1]),
    ):
        is_output = flow.is_output & (flow.tensor_class == int(values.iat[row]))
        outputs = np.flatnonzero(is_output & (flow.tensors["file"] != "").to_numpy())
        ops = flow.tensors["op"].to_numpy()[outputs]
        last_outputs.append(int(outputs[np.argmax(ops)]) if len(outputs) else tensor)
    return [(last_outputs[0], last_outputs[1])]


def _list_read_tensors(
    alignment: Alignment, row: int, tensors: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return the tensors of a pair that its readers have, those of two partners together.

    An op that no recorder shows may have moved the elements of ``tensors`` before one side's
    readers read them. None if no reader has them moved, reads the value twice, or other numbers.
    """
    flows = alignment.target, alignment.reference
    values = (int(alignment.classes[side].iat[row]) for side in ("target", "reference"))
    readers_t, readers_r = (
        _index_readers(flow, value) for flow, value in zip(flows, values, strict=True)
    )
    partners = alignment.op_partners
    pairs = [
        (rows, readers_r[partners[op]])
        for op, rows in readers_t.items()
        if partners.get(op, -1) in readers_r
    ]
    if any(len(rows) != 1 for pair in pairs for rows in pair):
        return []
    read_tensors = [(rows_t[0], rows_r[0]) for rows_t, rows_r in pairs]
    is_moved = False
    for side, flow in enumerate(flows):
        others = {read[side] for read in read_tensors} - {tensors[side]}
        own = load_readable_tensor(flow.trace, tensors[side]) if others else None
        for other in sorted(others):
            array = load_readable_tensor(flow.trace, other)
            if own is None or array is None:
                return []
            if np.array_equal(own, array):
                continue  # most are: sorting them would cost time
            if not np.array_equal(np.sort(own, axis=None), np.sort(array, axis=None)):
                return []
            is_moved = True
    return read_tensors if is_moved else []


def _index_readers(flow: Flow, value: int) -> dict[int, list[int]]:
    """Return op -> its input tensors of a value, for the forward ops that compute with it."""
    slot_kinds = flow.tensors["slot_kind"].to_numpy()
    return {
        op: [
            tensor
            for tensor in flow.get_tensor_ids(op).tolist()
            if flow.tensor_class[tensor] == value and slot_kinds[tensor] != "output"
        ]
        for op in flow.users[value]
        if flow.levels[op] == "op" and flow.phases[op] == FORWARD
    }


def _find_parameter_gradients(alignment: Alignment, row: int) -> list[tuple[int, int]]:
    """Return the tensors of a pair that are the gradient of a parameter as it is stored.

    None of them unless either side has recorded one.
    """
    tensors = []
    for flow, kinds, values in (
        (alignment.target, alignment.target_kinds, alignment.classes["target"]),
        (alignment.reference, alignment.reference_kinds, alignment.classes["reference"]),
    ):
        ops = flow.tensors["op"].to_numpy()
        members = np.flatnonzero(flow.tensor_class == int(values.iat[row])).tolist()
        gradients = [tensor for tensor in members if kinds[ops[tensor]] == _PARAMETER_GRADIENT]
        if not gradients:
            return []
        tensors.append(gradients[0])
    return [(tensors[0], tensors[1])]


def _may_be_other_values(alignment: Alignment, row: int, written_tensors: tuple[int, int]) -> bool:
    """Return whether the whole tensors of a pair may be those of other values than the pair's.

    That is so in a dump of a few ops, if what the producers wrote is missing in it, or if two ops
    wrote values of the same statistics and one of them is missing.
    """
    sides = (
        (alignment.target, int(alignment.classes["target"].iat[row]), written_tensors[0]),
        (alignment.reference, int(alignment.classes["reference"].iat[row]), written_tensors[1]),
    )
    for flow, value, written_tensor in sides:
        files = flow.tensors["file"].to_numpy()
        outputs = _list_computed_outputs(flow, value)
        is_missing = any(not files[output] for output in outputs)
        if not files[written_tensor] or (len(outputs) > 1 and is_missing):
            return True
    return False


def _list_computed_outputs(flow: Flow, value: int) -> list[int]:
    """Return the tensors of a class that ops wrote which did not read it: no rearrangements."""
    rows = np.flatnonzero(flow.tensor_class == value)
    is_output = flow.tensors["slot_kind"].to_numpy()[rows] == "output"
    ops = flow.tensors["op"].to_numpy()
    return [row for row in rows[is_output].tolist() if value not in flow.reads[int(ops[row])]]


def _get_error(measurement: Measurement) -> float:
    error = np.inf if measurement.metrics is None else measurement.metrics.relative_l2
    return float(np.nan_to_num(error, nan=np.inf))


def _measure_pair(
    alignment: Alignment,
    row: int,
    tensors: tuple[int, int],
    tolerance: float,
    has_mask_fill: bool,
) -> Measurement:
    target, reference = alignment.target, alignment.reference
    a = load_shaped_tensor(target.trace, tensors[0])
    b = load_shaped_tensor(reference.trace, tensors[1])
    metrics = compute_metrics(a, b, tolerance, has_mask_fill)
    layout = "same" if a.shape == b.shape else "reshape"
    if metrics.relative_l2 > max(tolerance, REARRANGED_ERROR) and a.size > 1:
        layout, a, b = find_common_layout(a, b)
        if "transpose" in layout:
            metrics = compute_metrics(a, b, tolerance, has_mask_fill)
    rounded_error = np.nan
    dtype = _find_narrower_dtype(
        str(target.tensors["dtype"].iat[tensors[0]]),
        str(reference.tensors["dtype"].iat[tensors[1]]),
    )
    if dtype:
        rounded_a, rounded_b = round_to_dtype(a, dtype), round_to_dtype(b, dtype)
        rounded_metrics = compute_metrics(rounded_a, rounded_b, 0.0, has_mask_fill)
        rounded_error = rounded_metrics.relative_l2
    return Measurement(row, tensors, layout, metrics, rounded_error)


def load_pair(
    alignment: Alignment, pairs: pd.DataFrame, row: int
) -> tuple[AnyArray | None, AnyArray | None]:
    """Return the whole tensors of a pair in their recorded shapes; None where one is unreadable."""
    target = load_readable_tensor(alignment.target.trace, int(pairs["target_tensor"].iat[row]))
    reference = load_readable_tensor(
        alignment.reference.trace, int(pairs["reference_tensor"].iat[row])
    )
    return target, reference


def replace_metrics(
    pairs: pd.DataFrame, row: int, metrics: Metrics, error: float, layout: str
) -> None:
    """Set what a pair of whole tensors leaves in another layout."""
    label = pairs.index[row]
    for name in METRIC_NAMES:
        pairs.loc[label, name] = getattr(metrics, name)
    pairs.loc[label, ["error", "rounded_error", "layout"]] = [error, np.nan, layout]


def _find_narrower_dtype(dtype_t: str, dtype_r: str) -> str:
    """Return the less precise of two floating dtypes, '' if they have the same precision."""
    unit_t, unit_r = get_unit_roundoff(dtype_t), get_unit_roundoff(dtype_r)
    if unit_t == unit_r or 0.0 in (unit_t, unit_r):
        return ""
    return dtype_t if unit_t > unit_r else dtype_r
