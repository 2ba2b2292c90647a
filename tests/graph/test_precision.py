"""Whether a dtype that only one side has is how that side computes, or one block that was cast."""

import pytest
from traces import edit_tensors

from dumpdiff.graph import build_flow, find_common_dtype


def cast_results(trace, scopes):
    """Return the trace with the results of ops in some modules in float16."""
    is_inside = trace.ops["scope"].str.contains(scopes)
    rows = trace.tensors.index[
        is_inside.to_numpy()[trace.tensors["op"]]
        & (trace.tensors["slot_kind"] == "output")
        & (trace.tensors["dtype"] == "float32")
    ]
    return edit_tensors(trace, rows.tolist(), dtype="float16")


@pytest.mark.parametrize(
    ("scopes", "dtype"),
    [
        (r"layers\.1\.mlp", "float32"),  # the same layers of block 0 compute in float32
        (r"layers\.1\.", "float32"),
        (r"norm", "float32"),  # every norm, and no matrix product
        (r"layers\.\d", "float16"),
    ],
)
def test_a_dtype_of_one_block_is_not_what_the_run_computes_in(trace, scopes, dtype):
    clean = build_flow(trace("pt_none"))
    cast = build_flow(cast_results(trace("pt_none"), scopes))
    assert cast.coarsest_dtype == "float16"
    assert find_common_dtype(cast, clean) == dtype
    assert find_common_dtype(clean, cast) == dtype


def test_a_dtype_of_both_sides_counts_wherever_it_is(trace):
    cast = build_flow(cast_results(trace("pt_none"), r"layers\.1\.mlp"))
    assert find_common_dtype(cast, cast) == "float16"
