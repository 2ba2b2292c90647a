"""Values that one side computes more often than once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ..model.trace import FORWARD
from .dataflow import Flow


def count_repeats(flow: Flow) -> dict[int, int]:
    """Return value -> number of forward ops that computed it, where several did.

    An example is a product and its transpose, which is computed again with the factors exchanged.
    Module calls and ops around others are left out, and so is what is computed again in the
    backward pass. A call and the one inside it have one gradient; without a record of gradients,
    they read the same.
    """
    producers: defaultdict[int, list[int]] = defaultdict(list)
    recomputed = flow.trace.ops["recomputed"].tolist()
    for op, values in enumerate(flow.writes):
        if flow.phases[op] != FORWARD or recomputed[op]:
            continue
        for value in values:
            producers[value].append(op)
    gradients_of_call = {
        call: flow.reads[record] for record, call in enumerate(flow.calls) if call >= 0
    }
    repeats = {}
    for value, ops in producers.items():
        if len(ops) == 1:
            continue
        enclosing_ops = {call for op in ops for call in flow.iterate_enclosing_calls(op)}
        own_ops = [op for op in ops if op not in enclosing_ops]
        origins = {gradients_of_call.get(op, flow.operands[op]) for op in own_ops}
        if len(origins) > 1:
            repeats[value] = len(origins)
    return _count_equal_calls(flow, producers) | repeats


def _count_equal_calls(flow: Flow, producers: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return value -> number of values that ops of one kind compute of the same operands alike.

    Single numbers are no one class, even if they are equal.
    """
    kinds = flow.trace.ops["kind"].tolist()
    columns = flow.classes[["size", "max", "min", "norm"]]
    # -1 where a number is missing or NaN: such values are not known to be equal
    groups = columns.groupby(list(columns), sort=False).ngroup().to_numpy()
    # negative, so that it is the number of no class
    is_number = (flow.sizes == 1) & (groups >= 0)
    operand_ids = np.where(is_number, -2 - groups, np.arange(len(groups)))
    equal_values: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for value in np.flatnonzero(columns.duplicated(keep=False) & (groups >= 0)).tolist():
        op = producers[value][0] if value in producers else -1
        if op >= 0 and flow.operands[op] and flow.levels[op] == "op":
            operands = tuple(operand_ids[list(flow.operands[op])].tolist())
            equal_values[kinds[op], operands, int(groups[value])].append(value)
    repeats = {}
    for values in equal_values.values():
        if len(values) > 1:
            repeats.update(dict.fromkeys(values, len(values)))
    return repeats
