"""Whether the ranks of a run have slices of the batch, and the factor of their gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Ints
from ..model.trace import FORWARD
from .other_run import OtherRun
from .partial_sums import list_sum_groups, list_total_patterns, load_ranks, measure_parts
from .relation import add_parts
from .sibling_tensors import Siblings

#: Gradients of activations whose factor is looked for; one factor holds for the whole pass.
_MAX_ACTIVATIONS = 64
#: Gradients of parameters whose whole tensors are read and added up to find the factor.
_MAX_PARAMETERS = 6


@dataclass(frozen=True)
class BatchSlices:
    """How the batch, or the sequence, is cut."""

    count: int = 1  #: of slices; 1: every rank has the whole batch
    #: a gradient of a slice times it is that part of the gradient of the whole batch
    factor: float = 1.0


def find_batch_slices(stages: Sequence[Siblings], other: OtherRun) -> BatchSlices:
    """Return the slices of the batch that the ranks and micro-batches of a run have.

    The factor is that of most gradients which are, combined, a value that all ranks of the other
    run have. If both runs cut the batch, these are the gradients of parameters after their
    reduction. Without evidence, the loss is a mean: ranks have that of their own slice, and
    micro-batches are divided by their number.
    """
    count = max(_count_slices(stage, other) for stage in stages)
    count = max(count, _compare_sizes(stages, other))
    if count < 2:
        return BatchSlices()
    votes: Counter[float] = Counter()
    for stage in stages:
        for factor in (1.0, 1.0 / count):
            votes[factor] += _count_activations(stage, other, factor)
            votes[factor] += _count_parameters(stage, other, factor)
        votes[1.0] += _count_totals(stage, other)
    has_batches = any(stage.n_batches > 1 for stage in stages)
    if votes[1.0] == votes[1.0 / count]:
        return BatchSlices(count, 1.0 if has_batches else 1.0 / count)
    return BatchSlices(count, max((1.0, 1.0 / count), key=votes.__getitem__))


def _count_slices(siblings: Siblings, other: OtherRun) -> int:
    """Return the number of slices that the input ids are cut into; 1 if they are whole.

    Slices are integers of the forward pass that together are integers which all ranks of the other
    run have. If the other run cuts the ids, too, they are integers that no op computes: others may
    be the ids of a shard of the vocabulary.
    """
    is_open = siblings.is_discrete & ~siblings.is_constant & (siblings.phases == FORWARD)
    distinct = np.where(siblings.is_present, np.arange(siblings.n_ranks), -1)
    count = 1
    for patterns in (siblings.labels, distinct):
        for relation, rows, entries in other.find_combined(
            siblings, np.flatnonzero(is_open), patterns
        ):
            for row, entry in zip(rows.tolist(), entries.tolist(), strict=True):
                if entry < 0:
                    continue
                is_open[row] = False
                if other.is_shared(entry) or siblings.is_given_id[row]:
                    count = max(count, len(relation.parts))
    return count


def _compare_sizes(stages: Sequence[Siblings], other: OtherRun) -> int:
    """Return how many times larger the largest ids of the other run are; 1 if they are not."""
    size = max(int(stage.sizes[stage.is_given_id].max(initial=1)) for stage in stages)
    ratio, remainder = divmod(other.largest_ids, size)
    n_ranks = max(stage.n_ranks for stage in stages)
    return ratio if not remainder and 1 < ratio <= n_ranks else 1


def _count_activations(siblings: Siblings, other: OtherRun, factor: float) -> int:
    """Return how many gradients of slices are, times the factor, a gradient of the other run."""
    is_sliced = (siblings.labels != siblings.labels[:, :1]).any(axis=1)
    is_open = is_sliced & siblings.is_backward & ~siblings.is_constant
    rows = _take_some(np.flatnonzero(is_open), _MAX_ACTIVATIONS)
    count = 0
    for _, _, entries in other.find_combined(siblings, rows, siblings.labels, factor=factor):
        count += sum(other.is_shared(entry) for entry in entries[entries >= 0].tolist())
    return count


def _count_parameters(siblings: Siblings, other: OtherRun, factor: float) -> int:
    """Return how many sums of gradients of parameters are, times the factor, one of the other."""
    is_sliced = (siblings.labels != siblings.labels[:, :1]).any(axis=1)
    is_sliced &= siblings.is_present.all(axis=1) & (siblings.sizes.max(axis=1) > 1)
    is_sliced &= siblings.collect_base("gradient_of") != ""
    count = 0
    for row in _take_some(np.flatnonzero(is_sliced), _MAX_PARAMETERS).tolist():
        arrays = load_ranks(siblings, row)
        if arrays is None or len({array.shape for array in arrays}) > 1:
            continue
        for group in list_sum_groups(siblings):
            relation = add_parts(tuple(siblings.labels[row].tolist()), group, factor)
            if relation is None:
                continue
            entry = other.find_whole(*measure_parts(arrays, relation), siblings.match_errors[row])
            if entry >= 0 and other.is_shared(entry):
                count += 1
                break
    return count


def _count_totals(siblings: Siblings, other: OtherRun) -> int:
    """Return how many gradients of the last micro-batch are gradients of the other run."""
    if siblings.n_batches < 2:
        return 0
    is_open = (siblings.collect_base("gradient_of") != "") & (siblings.sizes.max(axis=1) > 1)
    patterns = list_total_patterns(siblings)
    count = 0
    for _, _, entries in other.find_combined(siblings, np.flatnonzero(is_open), patterns):
        count += sum(other.is_shared(entry) for entry in entries[entries >= 0].tolist())
    return count


def _take_some(rows: Ints, count: int) -> Ints:
    """Return rows at equal distances, at most ``count``."""
    if len(rows) <= count:
        return rows
    chosen_rows: Ints = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    return chosen_rows
