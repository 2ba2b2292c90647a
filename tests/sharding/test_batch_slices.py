"""How many slices of the batch a run has, and the factor of their gradients, from real dumps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff import readers
from dumpdiff.graph import build_flow
from dumpdiff.sharding.batch_slices import BatchSlices, find_batch_slices
from dumpdiff.sharding.call_alignment import align_siblings
from dumpdiff.sharding.other_run import OtherRun
from dumpdiff.sharding.sibling_tensors import Siblings

Dumps = Callable[[str], Path]


def read_siblings(dump: Dumps, name: str) -> Siblings:
    parts = sorted(readers.find_parts(dump(name)), key=lambda part: part.rank or 0)
    flows = [build_flow(readers.read_part(part)) for part in parts]
    return align_siblings(flows, [f"rank {rank}" for rank in range(len(flows))])


@pytest.mark.parametrize(
    ("run", "other_run", "expected"),
    [
        ("parallel_pt_tp2_dp2", "parallel_pt_tp1", BatchSlices(2, 0.5)),
        ("parallel_pt_tp2_dp2", "parallel_pt_tp2", BatchSlices(2, 0.5)),
        ("parallel_pt_tp2", "parallel_pt_tp1", BatchSlices(1, 1.0)),
        ("parallel_pt_tp2", "parallel_pt_tp2_dp2", BatchSlices(1, 1.0)),
        ("parallel_ms_tp2", "parallel_pt_tp1", BatchSlices(1, 1.0)),
    ],
)
def test_data_parallel_ranks_average_their_gradients(
    dump: Dumps, run: str, other_run: str, expected: BatchSlices
) -> None:
    other = OtherRun([read_siblings(dump, other_run)])
    assert find_batch_slices([read_siblings(dump, run)], other) == expected


def test_two_runs_that_both_cut_the_batch_have_the_same_number_of_slices(dump: Dumps) -> None:
    siblings = read_siblings(dump, "parallel_pt_tp2_dp2")
    assert find_batch_slices([siblings], OtherRun([siblings])) == BatchSlices(2, 0.5)


def test_gradients_of_slices_are_those_of_the_whole_batch_times_the_factor(dump: Dumps) -> None:
    siblings = read_siblings(dump, "parallel_pt_tp2_dp2")
    own_rows = siblings.is_backward & (siblings.labels != siblings.labels[:, :1]).any(axis=1)
    own_rows &= siblings.sizes.max(axis=1) > 1
    rows = own_rows.nonzero()[0]
    other = OtherRun([read_siblings(dump, "parallel_pt_tp1")])
    counts = {}
    for factor in (1.0, 0.5):
        matches = other.find_combined(siblings, rows, siblings.labels, factor=factor)
        counts[factor] = sum(int((entries >= 0).sum()) for _, _, entries in matches)
    assert counts[0.5] > 50 > counts[1.0]
