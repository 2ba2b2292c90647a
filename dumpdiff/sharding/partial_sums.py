"""What is added up over ranks: groups, the reductions that do it, and sums of whole tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..graph.statistics import compute_statistics
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.trace import COMMUNICATION, OPTIMIZER
from .relation import Relation, add_arrays
from .sibling_tensors import Siblings

#: Relative difference up to which a sum over ranks is what the collective wrote.
_REDUCTION_ERROR = 1e-4
#: Partitions of the ranks that sums are tried for: tensor, data, context, expert parallel groups.
_MAX_GROUPS = 4


def list_sum_groups(siblings: Siblings) -> list[tuple[int, ...]]:
    """Return the groups that values may be added up in: all ranks, and those of reductions.

    The ranks of a group have the same result of a reduction.
    """
    groups: Counter[tuple[int, ...]] = Counter()
    for _, output in list_reductions(siblings):
        pattern = tuple(siblings.labels[output].tolist())
        if len(set(pattern)) < len(pattern) and -1 not in pattern:
            groups[pattern] += 1
    everyone = (0,) * siblings.n_ranks
    if siblings.n_batches > 1:
        groups[siblings.batch_groups] += 1
    frequent = [group for group, _ in groups.most_common(_MAX_GROUPS) if group != everyone]
    return [everyone, *frequent]


def list_reductions(siblings: Siblings) -> list[tuple[int, int]]:
    """Return the rows of the input and the output of every reduction over ranks."""
    flow = siblings.flows[siblings.base]
    ops = flow.trace.ops
    is_named_reduction = ops["kind"].str.lower().str.contains("reduce")
    is_reduction = (is_named_reduction & (ops["phase"] == COMMUNICATION)).to_numpy()
    row_ops = flow.tensors["op"].to_numpy()
    slot_kinds = flow.tensors["slot_kind"].to_numpy()
    is_constant = flow.tensors["constant"].to_numpy()
    rows_of: dict[int, tuple[list[int], list[int]]] = {}
    for row in np.flatnonzero(is_reduction[row_ops] & ~is_constant).tolist():
        inputs, outputs = rows_of.setdefault(int(row_ops[row]), ([], []))
        (outputs if slot_kinds[row] == "output" else inputs).append(row)
    return [(inputs[-1], outputs[0]) for inputs, outputs in rows_of.values() if inputs and outputs]


def list_total_patterns(siblings: Siblings) -> Ints:
    """Return (tensors, ranks) the labels of the last micro-batches, which have the total."""
    is_last = np.arange(siblings.n_ranks) % siblings.n_batches == siblings.n_batches - 1
    patterns: Ints = np.where(is_last, siblings.labels, -1)
    return patterns


def list_summand_patterns(siblings: Siblings) -> Ints:
    """Return (tensors, ranks) the labels of the values that may be added up.

    Where the optimizer reads what the last micro-batch has, that is the total of its rank, whatever
    the other micro-batches have.
    """
    patterns = siblings.labels.copy()
    if siblings.n_batches > 1:
        is_total = _flag_totals(siblings)
        patterns[is_total] = list_total_patterns(siblings)[is_total]
    return patterns


def _flag_totals(siblings: Siblings) -> Flags:
    """Return (tensors,) whether the optimizer reads the value of the last micro-batch."""
    flow = siblings.flows[-1]
    is_read = np.array(
        [any(flow.phases[op] == OPTIMIZER for op in ops) for ops in flow.consumers], dtype=bool
    )
    values = siblings.joint_classes[:, -1]
    flags: Flags = (values >= 0) & is_read[values]
    return flags


def load_ranks(siblings: Siblings, row: int) -> list[AnyArray] | None:
    """Return the whole tensors of all ranks; None if one is missing."""
    arrays = []
    for rank, flow in enumerate(siblings.flows):
        tensor = int(siblings.rows[row, rank])
        if tensor < 0 or not flow.tensors["file"].iat[tensor]:
            return None
        arrays.append(flow.trace.array(tensor))
    return arrays


def measure_parts(arrays: Sequence[AnyArray], relation: Relation) -> tuple[Floats, int]:
    """Return (4,) the statistics of the combined value, and its number of elements."""
    parts = [add_arrays(arrays, ranks).reshape(-1) for ranks in relation.parts]
    whole = np.concatenate(parts) * relation.factor
    return np.array(compute_statistics(whole)[:4]), whole.size


def is_reduced(siblings: Siblings, row: int, relation: Relation, result: Floats) -> bool:
    """Return whether a collective wrote the sum, mean or maximum of the values of a row.

    ``result`` are its max, min, mean and norm. True if whole tensors are missing.
    """
    arrays = load_ranks(siblings, row)
    if arrays is None:
        return True
    arrays = [array.astype(np.float64) for array in arrays]
    total = np.concatenate([add_arrays(arrays, part).reshape(-1) for part in relation.parts])
    highs = [np.max([arrays[rank] for rank in part], axis=0).reshape(-1) for part in relation.parts]
    limit = _REDUCTION_ERROR * max(abs(result[0]), abs(result[1]), 1e-30)
    for combined in (total, total / len(relation.parts[0]), np.concatenate(highs)):
        numbers = np.array(compute_statistics(combined)[:3])
        if bool(np.all(np.abs(numbers - result[:3]) <= limit)):
            return True
    return False
