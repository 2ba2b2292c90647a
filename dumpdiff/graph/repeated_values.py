"""Values that one side computes more often than once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..model.arrays import Ints
from ..model.int_lists import IntLists
from ..model.trace import FORWARD
from .dataflow import Flow


def count_repeats(flow: Flow) -> dict[int, int]:
    """Return value -> number of forward ops that computed it, where several did.

    An example is a product and its transpose, which is computed again with the factors exchanged.
    Module calls and ops around others are left out, and so is what is computed again in the
    backward pass. A call and the one inside it have one gradient; without a record of gradients,
    they read the same.
    """
    lists = flow.writes
    is_counted = flow.flag_phase(FORWARD) & ~flow.trace.ops["recomputed"].to_numpy()
    is_kept = is_counted[lists.rows]
    writers = IntLists.from_pairs(len(flow.classes), lists.values[is_kept], lists.rows[is_kept])
    repeated_values = np.flatnonzero(writers.counts > 1).tolist()
    calls = flow.trace.ops["forward"].to_numpy()
    records = np.flatnonzero(calls >= 0)
    record_of_call = np.full(len(calls), -1)
    record_of_call[calls[records]] = records
    repeats = {}
    for value in repeated_values:
        ops = writers[value]
        enclosing_ops = {call for op in ops for call in flow.iterate_enclosing_calls(op)}
        own_ops = [op for op in ops if op not in enclosing_ops]
        origins = set()
        for op in own_ops:
            record = int(record_of_call[op])
            origins.add(flow.reads[record] if record >= 0 else flow.operands[op])
        if len(origins) > 1:
            repeats[value] = len(origins)
    return _count_equal_calls(flow, writers) | repeats


def _count_equal_calls(flow: Flow, writers: IntLists) -> dict[int, int]:
    """Return value -> number of values that ops of one kind compute of the same operands alike.

    Single numbers are no one class, even if they are equal. ``writers`` are the ops of each class.
    """
    values = _list_values_of_equal_norm(flow)
    columns = flow.classes.loc[values, ["size", "max", "min", "norm"]]
    groups = np.full(len(flow.classes), -1)
    # -1 where a number is missing or NaN: such values are not known to be equal
    groups[values] = columns.groupby(list(columns), sort=False).ngroup().fillna(-1).to_numpy()
    # negative, so that it is the number of no class
    is_number = (flow.sizes == 1) & (groups >= 0)
    operand_ids = np.where(is_number, -2 - groups, np.arange(len(groups)))
    is_equal = columns.duplicated(keep=False).to_numpy()
    kinds = flow.trace.ops["kind"].tolist()
    equal_values: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for value in values[is_equal & (groups[values] >= 0) & (writers.counts[values] > 0)].tolist():
        op = int(writers.values[writers.starts[value]])
        if flow.operands[op] and flow.levels[op] == "op":
            operands = tuple(operand_ids[list(flow.operands[op])].tolist())
            equal_values[kinds[op], operands, int(groups[value])].append(value)
    repeats = {}
    for equal_results in equal_values.values():
        if len(equal_results) > 1:
            repeats.update(dict.fromkeys(equal_results, len(equal_results)))
    return repeats


def _list_values_of_equal_norm(flow: Flow) -> Ints:
    """Return the values whose norm another value has, too, in order. None has NaN."""
    order = np.argsort(flow.norms)
    is_equal = flow.norms[order[1:]] == flow.norms[order[:-1]]
    values: Ints = np.unique(np.concatenate([order[1:][is_equal], order[:-1][is_equal]]))
    return values
