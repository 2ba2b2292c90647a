"""Rows of the ops that are in no graph; only their records describe them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...model.arrays import AnyArray, Flags, Ints, Objects
from ...model.trace import FORWARD
from . import op_types
from .file_names import PARAMETER
from .record import count_elements
from .record_columns import RecordColumns
from .statistic_csv import Statistics


class UnlinkedRows(NamedTuple):
    """Columns of the op table and of the tensor table; op ids begin with 0."""

    ops: dict[str, AnyArray]
    tensors: dict[str, AnyArray]


class _Grouping(NamedTuple):
    """The records by op."""

    op: Ints  #: (records,) id of the op
    first: Ints  #: (ops,) first record of the op
    is_parameter: Flags  #: (ops,) a parameter, which comes before all other ops


def build_unlinked_rows(
    columns: RecordColumns, statistics: Statistics | None, *, parameters_first: bool
) -> UnlinkedRows:
    """Return the rows of all ops of the records, by time, with their tensors by slot.

    With ``parameters_first``, parameters and graph inputs come before the others, as outputs. They
    were written at the end of the step. So a weight is trusted as what the step began with only
    without an optimizer.
    """
    grouping = _group_by_op(columns, parameters_first)
    first, is_parameter = grouping.first, grouping.is_parameter
    kind, name, full_name = columns.kind[first], columns.name[first], columns.full_name[first]
    may_tell_phase = np.fromiter(map(op_types.may_tell_phase, name), dtype=bool, count=len(name))
    telling_names = name[may_tell_phase & ~is_parameter]
    has_updates = _has_updates(kind[~is_parameter], telling_names)
    has_full_name = (full_name != "") & ~is_parameter
    shown_name = np.where(has_full_name, full_name, name)
    scope = np.full(len(first), "", dtype=object)
    for op in np.flatnonzero(has_full_name).tolist():
        scope[op] = op_types.extract_scope(full_name[op])
    phase, recomputed = _classify_ops(kind, shown_name, may_tell_phase)
    phase[is_parameter] = FORWARD
    recomputed[is_parameter] = False
    ops: dict[str, AnyArray] = {
        "name": _number_names(shown_name, columns.occurrence[first]),
        "kind": kind,
        "phase": phase,
        "scope": scope,
        "recomputed": recomputed,
    }
    return UnlinkedRows(ops, _build_tensors(columns, statistics, grouping, has_updates))


def _group_by_op(columns: RecordColumns, parameters_first: bool) -> _Grouping:
    """Return the ops, parameters first, the others by the time of their earliest record."""
    name_codes, _ = pd.factorize(columns.name)
    n_runs = int(columns.occurrence.max(initial=0)) + 1
    op_codes, op_keys = pd.factorize(name_codes * n_runs + columns.occurrence)
    by_time = np.lexsort((columns.time, op_codes))
    _, starts = np.unique(op_codes[by_time], return_index=True)
    start_times = columns.time[by_time][starts]
    _, first = np.unique(op_codes, return_index=True)
    is_parameter = np.zeros(len(op_keys), dtype=bool)
    if parameters_first:
        is_parameter = columns.kind[first] == PARAMETER
        start_times[is_parameter] = -1  # they keep their order
    order = np.lexsort((start_times, ~is_parameter))
    ids = np.empty(len(order), dtype=np.int64)
    ids[order] = np.arange(len(order))
    return _Grouping(ids[op_codes], first[order], is_parameter[order])


def _has_updates(kinds: Objects, names: Objects) -> bool:
    """Whether one of these ops updates parameters, judged only by types and telling names."""
    if any(op_types.is_in_place(kind) or op_types.is_optimizer(kind) for kind in set(kinds)):
        return True
    return any(op_types.is_optimizer("", name) for name in names)


def _classify_ops(kinds: Objects, names: Objects, may_tell_phase: Flags) -> tuple[Objects, Flags]:
    """Return the phase of every op, and whether the backward pass runs it again."""
    phases, recomputed = np.empty(len(kinds), dtype=object), np.zeros(len(kinds), dtype=bool)
    kind_codes, different_kinds = pd.factorize(kinds)
    kind_phases = [
        op_types.classify_phase(kind, "", op_types.is_optimizer(kind)) for kind in different_kinds
    ]
    phases[:] = np.array(kind_phases, dtype=object)[kind_codes]
    for op in np.flatnonzero(may_tell_phase).tolist():
        kind, name = kinds[op], names[op]
        in_optimizer = op_types.is_optimizer(kind, name)
        phases[op] = op_types.classify_phase(kind, name, in_optimizer)
        recomputed[op] = op_types.is_recomputed(name)
    return phases, recomputed


def _number_names(names: Objects, occurrences: Ints) -> Objects:
    """Return the names of ops, of a repeated one with the number of its run."""
    numbered_names = names.copy()
    for op in np.flatnonzero(occurrences).tolist():
        numbered_names[op] = format_op_name(names[op], int(occurrences[op]))
    return numbered_names


def format_op_name(name: str, occurrence: int) -> str:
    """Return the name of an op in a trace; a repeated one has the number of its run."""
    return f"{name}#{occurrence + 1}" if occurrence else name


def _build_tensors(
    columns: RecordColumns, statistics: Statistics | None, grouping: _Grouping, has_updates: bool
) -> dict[str, AnyArray]:
    """Return the columns of the tensor table, of an op by input or output and slot.

    What an op overwrites is not trusted: without names there is no old weight to judge a new one
    by.
    """
    is_parameter = grouping.is_parameter[grouping.op]
    is_output = (columns.io == "output") | is_parameter
    slot_order = np.where(is_parameter, 0, columns.slot)
    order = np.lexsort((slot_order, is_output, grouping.op))
    kind_codes, kinds = pd.factorize(columns.kind[grouping.first[grouping.op[order]]])
    columns = RecordColumns(*(column[order] for column in columns))
    op, is_parameter, is_output = grouping.op[order], is_parameter[order], is_output[order]
    n_slots = int(columns.slot.max(initial=0)) + 1
    slot_keys = is_output * n_slots + columns.slot
    slot_codes, different_slots = pd.factorize(slot_keys)
    slots = [divmod(key, n_slots) for key in different_slots.tolist()]
    slot_names = [f"{'output' if io else 'input'}.{slot}" for io, slot in slots]
    trust_codes, trust_keys = pd.factorize(kind_codes * len(slots) + slot_codes)
    trusts = []
    for key in trust_keys.tolist():
        kind_code, slot_code = divmod(key, len(slots))
        trusts.append(_is_trusted(kinds[kind_code], *slots[slot_code]))
    trusted = np.array(trusts, dtype=bool)[trust_codes]
    trusted[is_parameter] = not has_updates
    return {
        "op": op,
        "slot": np.array(slot_names, dtype=object)[slot_codes],
        "slot_kind": np.array(["input", "output"], dtype=object)[is_output.astype(np.int64)],
        "dtype": columns.dtype,
        "shape": columns.shape,
        "size": _count_elements(columns, statistics),
        "file": columns.file,
        "row": columns.row,
        "parameter": np.where(is_parameter, columns.name, ""),
        "trusted": trusted,
        "content": columns.content,
    }


def _is_trusted(kind: str, is_output: int, slot: int) -> bool:
    if is_output:
        return not op_types.is_in_place(kind)
    updated_inputs = op_types.find_updated_inputs(kind)
    return updated_inputs is not None and slot not in updated_inputs


def _count_elements(columns: RecordColumns, statistics: Statistics | None) -> Ints:
    """Return the number of elements of every tensor, -1 where it is unknown."""
    shapes = columns.shape.tolist()
    size_of_shape = {shape: count_elements(shape, "", -1) for shape in set(shapes)}
    sizes = np.array([size_of_shape[shape] for shape in shapes], dtype=np.int64)
    if statistics is not None:
        for tensor in np.flatnonzero((sizes < 0) & (columns.row >= 0)).tolist():
            n_bytes = statistics.bytes[columns.row[tensor]]
            sizes[tensor] = count_elements(None, columns.dtype[tensor], n_bytes)
    return sizes
