"""Which call of each sibling rank corresponds, and with it which tensor."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from ..graph import Flow
from ..model.arrays import Ints, Objects
from ..model.trace import COMMUNICATION, flag_words
from ..readers.call_records import is_in_place
from .sibling_tensors import Siblings

#: Share of the ops of a rank that must correspond by shape. Ranks with shards of other sizes (a
#: vocabulary that does not divide) are aligned by the number of axes.
_MIN_SHAPED_SHARE = 0.9
#: Kind, scope, phase, and the slots with their shapes, or only the numbers of axes.
_Call = tuple[str, str, str, tuple[tuple[str, object, str], ...]]


def align_siblings(flows: Sequence[Flow], names: Sequence[str], n_batches: int = 1) -> Siblings:
    """Put ranks that make the same calls side by side.

    The calls correspond in order. Where a rank makes others, the longest equal stretches of kind,
    module and phase do.
    """
    base = max(range(len(flows)), key=lambda rank: (len(flows[rank].trace.ops), -rank))
    columns = []
    for flow in flows:
        column = _align_equal_calls(flows[base], flow)
        if column is not None:
            columns.append(column)
            continue
        column = _align_calls(_list_calls(flows[base]), _list_calls(flow))
        n_missing = len(flow.trace.ops) - int((column >= 0).sum())
        base_calls = _list_calls(flows[base], with_extents=False)
        calls = _list_calls(flow, with_extents=False)
        if n_missing > (1 - _MIN_SHAPED_SHARE) * len(calls):
            column = _align_calls(base_calls, calls)
        elif n_missing:
            _fill_gaps(column, base_calls, calls)
        columns.append(column)
    ops = np.stack(columns, axis=1)
    n_dropped = sum(len(flow.trace.ops) for flow in flows) - int((ops >= 0).sum())
    rows, row_ops = _align_slots(flows, ops, base)
    _continue_running_sums(flows[base], rows)
    return Siblings(tuple(names), tuple(flows), ops, rows, row_ops, n_dropped, n_batches)


def _list_calls(flow: Flow, *, with_extents: bool = True) -> list[_Call]:
    """Return, for each op, what its siblings have in common with it."""
    trace = flow.trace
    slots: list[list[tuple[str, object, str]]] = [[] for _ in range(len(trace.ops))]
    columns = (trace.tensors[name].tolist() for name in ("op", "slot", "shape"))
    for op, slot, shape, name in zip(*columns, _name_values(flow), strict=True):
        extents = shape if with_extents or shape is None else len(shape)
        slots[op].append((slot, extents, name))
    names = (trace.ops[name].tolist() for name in ("kind", "scope", "phase"))
    return list(zip(*names, map(tuple, slots), strict=True))


def _name_values(flow: Flow) -> list[str]:
    """Return, for each tensor, the parameter or gradient that its value is, '' if none."""
    names = np.full(len(flow.classes) + 1, "", dtype=object)
    for column in ("update_of", "parameter", "gradient_of"):
        class_names = flow.classes[column].to_numpy()
        has_name = class_names != ""
        names[:-1][has_name] = [f"{column} {name}" for name in class_names[has_name]]
    _name_reduced_gradients(flow, names)
    named: list[str] = names[flow.tensor_class].tolist()
    return named


def _name_reduced_gradients(flow: Flow, names: Objects) -> None:
    """Name what collectives and updates in place make of named values; ``names`` is by class."""
    ops = flow.trace.ops
    is_communication = (ops["phase"] == COMMUNICATION).to_numpy()
    is_update = flag_words(ops["kind"], is_in_place)
    for op in np.flatnonzero(is_communication | is_update).tolist():
        read_names = {str(names[value]) for value in flow.reads[op]} - {""}
        results = flow.writes[op]
        if len(read_names) == 1 and len(results) == 1 and not names[results[0]]:
            names[results[0]] = f"{read_names.pop()}'"


def _align_equal_calls(base: Flow, flow: Flow) -> Ints | None:
    """Return the op numbers if both ranks make the same calls of the same numbers of tensors."""
    calls = []
    for rank_flow in (base, flow):
        ops = rank_flow.trace.ops
        n_tensors = np.diff(rank_flow.row_offsets)
        names = (ops[name].tolist() for name in ("kind", "scope", "phase"))
        calls.append(list(zip(*names, n_tensors.tolist(), strict=True)))
    return np.arange(len(calls[0])) if calls[0] == calls[1] else None


def _align_calls(base_calls: list[_Call], calls: list[_Call]) -> Ints:
    """Return (base calls,) the corresponding call, -1 if there is none."""
    if calls == base_calls:
        return np.arange(len(calls))
    aligned = _find_subsequence(base_calls, calls)
    if aligned is not None:
        return aligned
    aligned = np.full(len(base_calls), -1)
    matcher = SequenceMatcher(None, base_calls, calls, autojunk=False)
    for block in matcher.get_matching_blocks():
        aligned[block.a : block.a + block.size] = np.arange(block.b, block.b + block.size)
    return aligned


def _fill_gaps(aligned: Ints, base_calls: list[_Call], calls: list[_Call]) -> None:
    """Align the calls between neighbors that correspond, in place: such as of routed tokens."""
    anchors = [-1, *np.flatnonzero(aligned >= 0).tolist(), len(aligned)]
    numbers = [-1, *aligned[aligned >= 0].tolist(), len(calls)]
    for gap in range(len(anchors) - 1):
        begin, end = anchors[gap] + 1, anchors[gap + 1]
        first, last = numbers[gap] + 1, numbers[gap + 1]
        if begin < end and first < last:
            columns = _align_calls(base_calls[begin:end], calls[first:last])
            aligned[begin:end] = np.where(columns >= 0, columns + first, -1)


def _find_subsequence(base_calls: list[_Call], calls: list[_Call]) -> Ints | None:
    """Return (base calls,) the first call of each kind in order; None if some are left over."""
    aligned = np.full(len(base_calls), -1)
    position = 0
    for row, base_call in enumerate(base_calls):
        if position < len(calls) and calls[position] == base_call:
            aligned[row] = position
            position += 1
    return aligned if position == len(calls) else None


def _align_slots(flows: Sequence[Flow], ops: Ints, base: int) -> tuple[Ints, Ints]:
    """Return (tensors, ranks) the tensor of each rank, and (tensors,) the row of ``ops``."""
    base_keys = _list_slots(flows[base], ops[:, base])
    columns = []
    for rank, flow in enumerate(flows):
        keys = base_keys if rank == base else _list_slots(flow, ops[:, rank])
        if keys == base_keys:
            tensor_ids = {key: row for row, key in enumerate(keys) if key[0] >= 0}
        else:
            tensor_ids = {key: row for row, key in reversed(list(enumerate(keys))) if key[0] >= 0}
        columns.append([tensor_ids.get(key, -1) for key in base_keys])
    return np.array(columns).T.reshape(len(base_keys), len(flows)), np.array(
        [key[0] for key in base_keys], dtype=int
    )


def _continue_running_sums(flow: Flow, rows: Ints) -> None:
    """Give a rank that skips a summand the sum that it has so far.

    The norm of all gradients is summed up parameter by parameter; a parameter that several ranks
    hold is counted on one of them. Changes ``rows`` of the base rank's ``flow`` in place.
    """
    table = flow.tensors
    kinds = flow.trace.ops["kind"].str.lower().str
    is_addition = (kinds.contains("add") & ~kinds.contains("adam")).to_numpy()
    is_number = ((table["size"] == 1) & ~table["constant"]).to_numpy()
    is_absent = (rows < 0).any(axis=1) & is_number & is_addition[table["op"].to_numpy()]
    output_of_class: dict[int, int] = {}
    values = flow.tensor_class.tolist()
    ops, slot_kinds = table["op"].tolist(), table["slot_kind"].tolist()
    sum_rows: dict[int, int] = {}  # op -> the output of another addition that it reads
    for row in np.flatnonzero(is_number & is_addition[table["op"].to_numpy()]).tolist():
        if slot_kinds[row] == "output":
            if is_absent[row] and ops[row] in sum_rows:
                earlier = sum_rows[ops[row]]
                is_missing = rows[row] < 0
                rows[row, is_missing] = rows[earlier, is_missing]
            output_of_class[values[row]] = row
        elif values[row] in output_of_class:
            earlier = output_of_class[values[row]]
            sum_rows[ops[row]] = earlier
            is_missing = rows[row] < 0
            rows[row, is_missing] = rows[earlier, is_missing]


def _list_slots(flow: Flow, rank_ops: Ints) -> list[tuple[int, str, str]]:
    """Return, for each tensor, the row of its op among the siblings, its slot and slot kind."""
    row_of_op = np.full(len(flow.trace.ops), -1)
    present = np.flatnonzero(rank_ops >= 0)
    row_of_op[rank_ops[present]] = present
    op_rows = row_of_op[flow.tensors["op"].to_numpy()].tolist()
    slots = flow.tensors["slot"].tolist()
    slot_kinds = flow.tensors["slot_kind"].tolist()
    return list(zip(op_rows, slots, slot_kinds, strict=True))
